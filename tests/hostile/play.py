"""Plays every attack of `programs/` against a sandbox, each followed by a check that nothing of it is left.

`python -m tests.hostile.play` plays them on the embedded backend and prints the verdicts as JSON, one line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import sandbox
from rewards.code import CallTest, StdioTest, run_tests
from sandbox import Limits, Sandbox, SandboxError

PROGRAMS = Path(__file__).with_name("programs")
LIMITS = Limits(wall_s=1.2, cpu_s=0.5, memory_bytes=96 << 20, pids=24, tmp_bytes=8 << 20, file_bytes=4 << 20)
_SLOTS = 4  # many attacks only sleep
INPUTS = (1013, 2027, 3041, 4093)
ANSWERS = {x: 3 * x * x + 7 for x in INPUTS}

# A correct program that first looks for traces of the one before it.
CLEAN = """
import builtins, json, os, sys
assert os.listdir("/tmp") == ["main.py"], os.listdir("/tmp")
assert os.listdir("/dev/shm") in (["main.py"], []), os.listdir("/dev/shm")
assert sorted(os.environ) == ["HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"], dict(os.environ)
assert builtins.len([1, 2]) == 2 and json.dumps(True) == "true" and not 1 == 2
assert "sitecustomize" not in sys.modules and "conftest" not in sys.modules
others = []
for pid in range(2, 500):
    try:
        os.kill(pid, 0)
        others.append(pid)
    except OSError:
        pass
assert set(others) <= {os.getpid()}, others
def f(x):
    return 3 * x * x + 7
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One program of `programs/`. `labels`: one of them must be in the outcome; none are asked for where empty."""

    name: str
    source: str
    kind: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attack earned. `fault` is what the sandbox did wrong ("" where it held)."""

    fraction: float
    labels: tuple[str, ...]
    error: str
    fault: str


def load_attacks() -> list[Attack]:
    attacks = []
    for path in sorted(PROGRAMS.glob("*.py")):
        source = path.read_text()
        comments = [line[2:] for line in source.splitlines()[:3] if line.startswith("# ") and ": " in line]
        head = dict(comment.split(": ", 1) for comment in comments)
        attacks.append(Attack(path.stem, source, head.get("kind", "call"), tuple(head.get("label", "").split())))
    return attacks


async def play_one(box: Sandbox, attack: Attack) -> Verdict:
    tests: list = [CallTest((x,), answer) for x, answer in ANSWERS.items()]
    good = tests
    if attack.kind == "script":
        tests = [StdioTest(f"{x}\n", f"{answer}\n") for x, answer in ANSWERS.items()]
    try:
        outcome = await run_tests(box, attack.source, tests, limits=LIMITS)
        after = await run_tests(box, CLEAN, good)
    except SandboxError as error:
        return Verdict(-1.0, (), "", f"SandboxError: {error}")
    fault = ""
    if outcome.fraction:
        fault = f"earned {outcome.fraction}"
    elif attack.labels and not {*attack.labels, "limit:wall"} & set(outcome.labels):  # slow machines hit that first
        fault = f"labelled {outcome.labels}, not {attack.labels}"
    elif after.fraction != 1.0:
        fault = f"left something behind: {after}"
    return Verdict(outcome.fraction, outcome.labels, outcome.error, fault)


async def play(box: Sandbox, attacks: list[Attack], at_once: int) -> dict[str, Verdict]:
    """Every attack, with the answers lying about on the host (in its environment and on its disk) to be found."""
    gate = asyncio.Semaphore(at_once)

    async def one(attack: Attack) -> Verdict:
        async with gate:
            return await play_one(box, attack)

    answers = json.dumps(ANSWERS)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "answers.json").write_text(answers)  # noqa: ASYNC240
        os.environ["GRADER_ANSWERS"] = answers
        try:
            verdicts = await asyncio.gather(*(one(attack) for attack in attacks))
        finally:
            del os.environ["GRADER_ANSWERS"]
    return {attack.name: verdict for attack, verdict in zip(attacks, verdicts, strict=True)}


async def play_all(backend: str, **options) -> dict[str, Verdict]:
    box = sandbox.create(backend, slots=_SLOTS, **options)
    await box.start()
    try:
        return await play(box, load_attacks(), _SLOTS)
    finally:
        await box.aclose()


if __name__ == "__main__":
    print(json.dumps({name: asdict(verdict) for name, verdict in asyncio.run(play_all("local")).items()}))
    sys.stdout.flush()
