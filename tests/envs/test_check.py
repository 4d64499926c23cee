from __future__ import annotations

from pathlib import Path

import pytest

import sandbox
from envs.__main__ import main
from envs.check import Finding, check

AUTHORED = '''
import threading, time
import numpy as np
from envs import ToolEnv, reward, tool

class Good(ToolEnv):
    """Say a number."""
    max_turns = 3
    def sample_task(self, rng):
        return {"n": int(rng.integers(10_000))}
    async def start(self, task):
        self.said = None
        return f"Say {task['n']}."
    @tool
    async def say(self, n: int) -> str:
        """Say it.

        Args:
            n: the number.
        """
        self.said = n
        return self.finish("ok")
    @reward
    def right(self):
        return self.said == self.task.payload["n"]
    async def expert(self, rng):
        from envs import call
        return call("say", n=self.task.payload["n"])

class Unseeded(Good):
    def sample_task(self, rng):
        return {"n": int(np.random.default_rng().integers(10_000))}

class HashOrder(Good):
    def sample_task(self, rng):
        return {"n": hash(f"salted {rng.integers(10_000)}") % 10_000}

class TooFew(Good):
    def sample_task(self, rng):
        return {"n": 1}

class Infinite(Good):
    @reward
    def right(self):
        return float("nan") if self.said is None else 1.0

class Toolless(ToolEnv):
    def sample_task(self, rng):
        return {"n": int(rng.integers(10_000))}
    async def start(self, task):
        return "hi"

class PaysText(Good):
    async def on_text(self, text):
        self.said = self.task.payload["n"]
        return "thanks"

class Blocking(Good):
    @tool
    async def say(self, n: int) -> str:
        time.sleep(0.15)
        return self.finish("ok")

class Leaky(Good):
    async def start(self, task):
        threading.Thread(target=time.sleep, args=(3.0,), name="forgotten").start()
        return await super().start(task)

class Hopeless(Good):
    expert = ToolEnv.expert
    @reward
    def right(self):
        return 0.0
'''


@pytest.fixture(scope="module")
def authored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("author") / "authored.py"
    path.write_text(AUTHORED)
    return path


def worst(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings if finding.verdict != "ok"}


async def test_a_good_environment_passes(authored: Path) -> None:
    findings = await check(f"{authored}:Good", episodes=6)
    assert worst(findings) == {}
    assert {"tools", "rewards", "determinism", "splits", "gymnasium", "floor and ceiling", "attacks"} <= {
        finding.check for finding in findings
    }


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Unseeded", {"determinism": "fail"}),
        ("HashOrder", {"determinism": "fail"}),
        ("TooFew", {"tasks": "fail"}),
        ("Infinite", {"rewards": "fail"}),
        ("Toolless", {"tools": "fail", "rewards": "fail"}),
        ("PaysText", {"attacks": "fail"}),
        ("Blocking", {"event loop": "warn", "tools": "warn", "floor and ceiling": "fail"}),
        ("Leaky", {"leftovers": "fail"}),
        ("Hopeless", {"floor and ceiling": "warn"}),
    ],
)
async def test_each_fault_is_found_and_explained(authored: Path, name: str, found: dict[str, str]) -> None:
    findings = await check(f"{authored}:{name}", episodes=6)
    assert found.items() <= worst(findings).items()
    assert all(finding.hint for finding in findings if finding.check in found and finding.verdict != "ok")


@pytest.mark.parametrize("name", ["code_exec", "doc_search?level=2", "negotiation?level=2"])
async def test_the_families_pass(name: str) -> None:
    assert worst(await check(name, episodes=6)) == {}
    await sandbox.close_shared()


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("code_exec-v0", "doc_search-v0", "negotiation-v0", "run_code, submit"))
    assert main(["check", "nope"]) == 2
    assert capsys.readouterr().err.startswith("error: no environment 'nope'")
    lines = iter(["propose([9, 9])", "hello", "walk_away()"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["play", "negotiation", "--split", "heldout", "--index", "3"]) == 0
    played = capsys.readouterr().out
    assert "user: items " in played
    assert "tool propose: format_error: keep must be 2 counts" in played
    assert "terminated after 3 turns, reward 0.000" in played
    assert "labels: over_allocated_offer" in played
