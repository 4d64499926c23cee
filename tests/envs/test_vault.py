"""The environment of the authors' guide, as a file that somebody wrote: it loads, plays, scores and checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs import Message, Status, call

VAULT = '''from envs import ToolEnv, register, reward, tool

@register("acme/Vault-v0", max_turns=8)
class Vault(ToolEnv):
    """Find a three-digit code by asking 'higher or lower'."""

    def sample_task(self, rng):                      # pure: rng comes from (env, version, split, index)
        return {"code": int(rng.integers(1000))}

    async def start(self, task):                     # the first user message
        self.code, self.opened = task["code"], False
        return "Open the vault. The code is between 0 and 999."

    @tool
    async def guess(self, n: int) -> str:
        """Try a code.

        Args:
            n: the code to try.
        """
        if n == self.code:
            self.opened = True
            return self.finish("open")               # terminated
        return "higher" if n < self.code else "lower"

    @reward(weight=1.0)
    def success(self) -> float:
        return float(self.opened)

    @reward(weight=0.0)                              # weight 0: a metric, not part of the reward
    def turns(self) -> float:
        return self.num_turns
'''


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("author") / "vault.py"
    path.write_text(VAULT)
    return f"{path}:Vault"


async def test_binary_search_opens_the_vault(vault: str) -> None:
    env = envs.make(vault)
    first = await env.begin("train", 17)
    assert first == [Message("user", "Open the vault. The code is between 0 and 999.")]
    low, high = 0, 999
    env.max_turns = 12
    while env.status is Status.RUNNING:
        middle = (low + high) // 2
        replies = await env.act(call("guess", n=middle))
        if replies:
            assert [reply.role for reply in replies] == ["tool"]
            low, high = (middle + 1, high) if replies[0].content == "higher" else (low, middle - 1)
    assert env.status is Status.TERMINATED
    assert env.closing == [Message("tool", "open", name="guess")]
    score = await env.score()
    assert score.components == {"success": 1.0, "turns": float(env.num_turns)}
    assert score.reward == 1.0


async def test_turns_run_out(vault: str) -> None:
    env = envs.make(vault)
    await env.begin("heldout", 3)
    wrong = (env.code + 1) % 1000
    for _ in range(7):
        assert len(await env.act(call("guess", n=wrong))) == 1
    assert await env.act(call("guess", n=wrong)) == []
    assert env.status is Status.TRUNCATED
    assert (await env.score()).reward == 0.0


def test_its_tool_is_described_by_its_signature(vault: str) -> None:
    (spec,) = envs.make(vault).tools
    assert (spec.name, spec.description) == ("guess", "Try a code.")
    assert spec.parameters == {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": "the code to try."}},
        "required": ["n"],
        "additionalProperties": False,
    }


def test_it_is_registered_under_its_id(vault: str) -> None:
    envs.load(vault)
    assert "acme/Vault-v0" in envs.known_ids()
    assert type(envs.make("acme/Vault")) is envs.load(vault)


def test_gymnasium_accepts_it(vault: str) -> None:
    check_env(envs.make(vault))
