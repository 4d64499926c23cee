"""Environments of the real verifiers library, played as ours."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import envs
from envs import InfrastructureError, Message, RewardError, Status, ToolEnv, call
from envs.check import check
from envs.splits import SPLITS

AUTHORED = '''
import verifiers as vf
from datasets import Dataset

def rows(start, count):
    return Dataset.from_list([{"question": f"{i} + {i}?", "answer": str(2 * i), "info": {"i": i}}
                              for i in range(start, start + count)])

def right(completion, answer):
    text = completion[-1]["content"]
    if text == "raise":
        raise KeyError("x")
    if text == "nothing":
        return None
    return float(text.strip() == answer)

def brief(completion, **kwargs):
    return 1.0 / (1 + len(completion[-1]["content"]))

class Guess(vf.MultiTurnEnv):
    """Three guesses at the answer; a fourth is not allowed."""

    async def setup_state(self, state):
        state["guesses"] = []
        return state

    async def env_response(self, messages, state, **kwargs):
        text = messages[-1]["content"]
        if text == "broken":
            raise vf.InfraError("the simulator is gone")
        if text == "bug":
            raise IndexError("of the author")
        if text == "rewrite":
            state["rewrite"] = True
        state["guesses"].append(int(text))
        if state["guesses"][-1] == int(state["answer"]):
            state["final_env_response"] = [vf.UserMessage(content="yes")]
            return state["final_env_response"]
        low = state["guesses"][-1] < int(state["answer"])
        return [vf.UserMessage(content="higher" if low else "lower")]

class Rewriting(Guess):
    async def get_prompt_messages(self, state):
        return (await super().get_prompt_messages(state))[-1:]

def guesses(state):
    return float(len(state["guesses"]))

def found(state):
    return float(state["guesses"][-1] == int(state["answer"]))

def double(x: int) -> int:
    """Double a number.

    Args:
        x: the number.
    """
    return 2 * x

def ranked(completions, **kwargs) -> list[float]:
    return [0.0 for _ in completions]

def load_environment(kind="single", own_eval=False):
    data = dict(dataset=rows(0, 40), system_prompt="Be brief.")
    if own_eval:
        data["eval_dataset"] = rows(30, 20)
    if kind == "single":
        return vf.SingleTurnEnv(**data, rubric=vf.Rubric(funcs=[right, brief], weights=[1.0, 0.5]))
    if kind == "group":
        return vf.SingleTurnEnv(**data, rubric=vf.Rubric(funcs=[ranked]))
    if kind == "tools":
        return vf.ToolEnv(**data, tools=[double], max_turns=4, rubric=vf.Rubric(funcs=[right]))
    cls = Rewriting if kind == "rewriting" else Guess
    return cls(**data, max_turns=3, rubric=vf.Rubric(funcs=[found, guesses], weights=[1.0, 0.0]))
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "authored_vf.py").write_text(AUTHORED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sys.modules.pop("authored_vf", None)
    from envs.verifiers import _load

    _load.cache_clear()


def made(kind: str, **more: object) -> ToolEnv:
    extra = "".join(f',"{key}":{str(value).lower()}' for key, value in more.items())
    return envs.make(f'verifiers?env=authored-vf&args={{"kind":"{kind}"{extra}}}')


def says(text: str) -> Message:
    return Message("assistant", text)


async def test_single_turn_with_its_rubric() -> None:
    env = made("single")
    system, user = await env.begin("train", 0)
    answer = str(2 * int(user.content.split()[0]))
    assert (system.content, env.tools, env.max_turns) == ("Be brief.", (), 1)
    assert await env.act(says(answer)) == []
    assert env.status is Status.TERMINATED
    score = await env.score()
    brief = 1 / (1 + len(answer))
    assert score.reward == pytest.approx(1 + 0.5 * brief)
    assert score.components["right"] == 1.0
    assert score.components["brief"] == pytest.approx(brief)
    assert "num_turns" in score.components  # the library's own metrics come along
    await env.aclose()


@pytest.mark.parametrize(("text", "told"), [("raise", "right: KeyError"), ("nothing", "right: TypeError")])
async def test_a_reward_function_that_fails_is_no_zero(text: str, told: str) -> None:
    """The library would log it and count 0."""
    env = made("single")
    await env.begin("train", 0)
    await env.act(says(text))
    with pytest.raises(RewardError, match=told):
        await env.score()
    await env.aclose()


def test_signals_stay_ours() -> None:
    before = signal.getsignal(signal.SIGTERM)
    made("single")
    assert signal.getsignal(signal.SIGTERM) is before


async def test_multi_turn_with_its_own_state() -> None:
    env = made("multi")
    _, user = await env.begin("heldout", 1)
    answer = 2 * int(user.content.split()[0])
    assert await env.act(says(str(answer - 1))) == [Message("user", "higher")]
    assert await env.act(says(str(answer))) == []
    assert (env.status, env.closing) == (Status.TERMINATED, [Message("user", "yes")])
    score = await env.score()
    assert score.reward == 1.0
    assert score.components["guesses"] == 2.0

    await env.begin("train", 1)
    for _ in range(2):
        assert len(await env.act(says("-1"))) == 1
    assert await env.act(says("-1")) == []
    assert env.status is Status.TRUNCATED
    assert (await env.score()).reward == 0.0

    await env.begin("train", 2)
    await env.act(says("-1"))
    env.truncate("tokens")  # as the runner does
    assert (await env.score()).components["guesses"] == 1.0
    await env.aclose()


async def test_its_tools_are_called_with_our_calls() -> None:
    env = made("tools")
    _, user = await env.begin("train", 3)
    number = int(user.content.split()[0])
    (spec,) = env.tools
    assert (spec.name, list(spec.parameters["properties"])) == ("double", ["x"])
    two = Message("assistant", "", tool_calls=(*call("double", x=number).tool_calls, *call("double", x=1).tool_calls))
    first, second = await env.act(two)
    assert (first.role, first.name, first.content) == ("tool", "double", str(2 * number))
    assert second.content == "2"
    (told,) = await env.act(call("treble", x=1))
    assert "treble" in told.content
    assert await env.act(says(str(2 * number))) == []
    score = await env.score()
    assert (score.reward, score.components["double_calls"]) == (1.0, 2.0)
    await env.aclose()


async def test_an_error_of_the_environment_is_a_fault_of_the_infrastructure() -> None:
    for text, fault in (("broken", "the simulator is gone"), ("bug", "IndexError: of the author")):
        env = made("multi")
        await env.begin("train", 0)
        with pytest.raises(InfrastructureError, match=fault):
            await env.act(says(text))
        await env.aclose()


def test_its_rows_are_the_tasks() -> None:
    own, shared = made("single", own_eval=True), made("single")
    for env, train, heldout in ((own, 30, 20), (shared, None, None)):
        tasks = {split: [env.make_task(split, i).payload["info"]["i"] for i in range(40)] for split in SPLITS}
        assert not set(tasks["train"]) & set(tasks["heldout"])
        if train:
            assert set(tasks["train"]) == set(range(train))
            assert set(tasks["heldout"]) == set(range(30, 30 + heldout))
        assert len(set(tasks["train"][:20])) == 20  # each row once before any again
    assert made("single").make_task("train", 5) == shared.make_task("train", 5)


async def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ValueError, match="scores groups"):
        made("group")
    with pytest.raises(ValueError, match="no_such_env"):
        envs.make("verifiers?env=no_such_env")
    env = made("rewriting")
    await env.begin("train", 0)
    with pytest.raises(InfrastructureError, match="rewrites its conversation"):
        await env.act(says("-1"))
    await env.aclose()


async def test_the_checks_of_an_author_pass() -> None:
    findings = await check('verifiers?env=authored-vf&args={"kind":"tools"}', episodes=3)
    assert [finding for finding in findings if finding.verdict == "fail"] == []
