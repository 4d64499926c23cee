"""`code_exec`: write a small program, try it on a public test, and submit it to the hidden ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import sandbox
from envs.actions import call
from envs.code_exec import files, pipelines, tasks
from envs.code_exec.expressions import is_pure, shared_expressions
from envs.code_exec.public import (
    Feedback,
    outcome,
    outcome_of_script,
    run_scripted,
    same_json,
    verdict,
    with_public_input,
)
from envs.levels import Level, pick_level
from envs.registry import register
from envs.scoring import reward
from envs.tool_env import InfrastructureError, ToolEnv
from envs.tools import tool
from envs.types import Message, Status
from rewards.code import CallTest, StdioTest, TestOutcome, run_tests
from sandbox.protocol import Box, ExecResult, Limits

LIMITS = Limits(wall_s=5.0, cpu_s=2.0)
SANDBOX_TIMEOUT_S = 120.0  # above a program's own limits and its wait for a slot
TOOL_TIMEOUT_S = 2 * SANDBOX_TIMEOUT_S
MAX_DELAY = 5

# The demonstrator's gaps: words that it takes for one of a few, slips on the others, and how it goes on after a failed
# try. Reinforcement learning needs to see success now and then: of guesses among all words, some were never learnt.
UNKNOWN_KEEP = frozenset({"negative", "below {k}", "nonzero"})
UNKNOWN_CHANGE = frozenset({"subtract {k}", "halve", "triple", "absolute"})
UNKNOWN_RETURN = frozenset({"smallest", "reversed", "last"})
STAGES = (
    ("keep", pipelines.KEEP, UNKNOWN_KEEP),
    ("change", pipelines.CHANGE, UNKNOWN_CHANGE),
    ("then", pipelines.KEEP, UNKNOWN_KEEP),
    ("again", pipelines.CHANGE, UNKNOWN_CHANGE),
    ("result", pipelines.RETURN, UNKNOWN_RETURN),
)
GUESSES = 4
SLIPS = 0.2
TRIES_AGAIN = 0.6

Shaping = Literal["success", "fraction", "power"]


@register("code_exec-v0", max_turns=4)
class CodeExec(ToolEnv):
    """Write a Python program, try it on a public test, and submit it to hidden ones.

    `level` 0 to 4: one expression of `x`, of that many stages; 5: a function `f` of two steps; 6: a script of three.
    By default 2 and 3: where fewer words are unknown, each is learnt sooner, and then helps with the longer programs.
    `feedback="full"` tells more of a failed try than a verdict. `shaping` pays for some of the hidden tests: "fraction"
    by their share, "power" by its power of 1.5 (as CodeFu does); "success" pays for all of them only. `file` takes the
    tasks from a JSONL file instead (see `envs.code_exec.files`).
    """

    def __init__(
        self, level: Level = (2, 3), feedback: Feedback = "short", shaping: Shaping = "success", file: str = ""
    ) -> None:
        self.level = level
        self.feedback = feedback
        self.shaping = shaping
        self.rows = files.load(file) if file else ()
        self.scripted = not self.rows
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        if self.rows:
            return self.rows[int(rng.integers(len(self.rows)))]
        return tasks.sample_task(rng, pick_level(rng, self.level, tasks.LEVELS))

    def task_key(self, payload: dict[str, Any]) -> Any:
        return payload.get("behaviour", payload["prompt"])

    async def start(self, task: dict[str, Any]) -> str:
        self.code: str | None = None
        self.public_passed = False
        self.hidden_passed: tuple[bool, ...] = ()
        self.limits_hit = 0
        self._box: Box | None = None
        self._session_is_fresh = True
        self._scripted: set[str] = set()  # programs that this class wrote itself, in this episode
        return task["prompt"]

    async def stop(self) -> None:
        if self._box is not None:
            await self._box.aclose()

    @tool(timeout_s=TOOL_TIMEOUT_S)
    async def run_code(self, code: str) -> str:
        """Run Python in a session that lasts, and try it on the public test.

        Args:
            code: a program, or one expression of the input `x`.
        """
        self.code, self.public_passed = code, False
        self._session_is_fresh = self._session_is_fresh and is_pure(code)
        given, want = self.task.payload["public"]
        if code in self._scripted:
            text, self.public_passed = outcome(run_scripted(code, *given), want, self.feedback)
        elif self._session_is_fresh and self.feedback == "short" and self.task.payload["entry"] == "f":
            found = await self._judge(code)
            self.isolation = found.isolation
            self.limits_hit += _hit_limit(found)
            text, self.public_passed = verdict(found)
        elif not self.task.payload["entry"]:
            text, self.public_passed = outcome_of_script(await self._run(code, given.encode()), want, self.feedback)
        else:
            try:
                source = with_public_input(code, self.task.payload["entry"], given)
            except SyntaxError as error:
                return "fail: SyntaxError" if self.feedback == "short" else f"fail: SyntaxError: {error.msg}"
            text, self.public_passed = outcome(await self._run(source), want, self.feedback)
        return text

    @tool(timeout_s=TOOL_TIMEOUT_S)
    async def submit(self, code: str = "") -> str:
        """Submit a program, which ends the episode.

        Args:
            code: the program; by default the one that was run last.
        """
        self.code = code or self.code
        if self.code in self._scripted:
            self.hidden_passed = tuple(
                same_json(run_scripted(self.code, *given).result, want) for given, want in self.task.payload["hidden"]
            )
        elif self.code is not None:
            await self._grade(self.code)
        return self.finish("submitted")

    async def act(self, message: Message) -> list[Message]:
        replies = await super().act(message)
        if self.status is not Status.RUNNING:
            await self.stop()  # others of its group, who are scored with it, may wait for a box
        return replies

    async def _grade(self, code: str) -> None:
        """Run the hidden tests in a fresh child."""
        if is_pure(code) and self.task.payload["entry"] == "f":
            found = await self._judge(code)
            self.hidden_passed = found.passed[1:]
        else:
            found = await self._run_tests(code, self.task.payload["hidden"])
            self.hidden_passed = found.passed
        self.isolation = found.isolation
        for label in found.labels:
            self.label(label)

    async def _judge(self, code: str) -> TestOutcome:
        """All tests of a pure expression, the public one first, run together for all episodes that send it.

        It can neither tell what it was given nor keep it, so that the hidden inputs may go along with the public one.
        """
        cases = [self.task.payload["public"], *self.task.payload["hidden"]]
        async with _deadline():
            return await shared_expressions().judge(code, [CallTest(tuple(x), want) for x, want in cases], LIMITS)

    async def _run_tests(self, code: str, cases: list[list[Any]]) -> TestOutcome:
        entry = self.task.payload["entry"]
        tests: list[CallTest] | list[StdioTest]
        if entry:
            tests = [CallTest(tuple(given), want) for given, want in cases]
        else:
            tests = [StdioTest(given, want) for given, want in cases]
        async with _deadline():
            return await run_tests(await sandbox.shared(), code, tests, entry=entry or "f", limits=LIMITS)

    async def _run(self, source: str, stdin: bytes = b"") -> ExecResult:
        """Run `source` in the episode's session."""
        async with _deadline():
            if self._box is None:
                self._box = await (await sandbox.shared()).open(limits=LIMITS)
            result = await self._box.run(source, stdin=stdin)
        self.isolation = result.isolation
        self.limits_hit += bool(result.limits_hit)
        return result

    @reward(weight=1.0)
    def success(self) -> float:
        """Whether the submitted program passes every hidden test."""
        return float(bool(self.hidden_passed) and all(self.hidden_passed))

    @reward(weight=-0.1, range=(0, MAX_DELAY))
    def delay(self) -> float:
        """Moves beyond one run and the submission, of a success."""
        return self.success() * min(max(self.num_moves - 2, 0), MAX_DELAY)

    @reward(weight=1.0)
    def partial(self) -> float:
        """What `shaping` pays for passing some of the hidden tests."""
        if self.shaping == "success" or self.success():
            return 0.0
        return self.tests() ** (1.5 if self.shaping == "power" else 1.0)

    @reward(weight=0.0)
    def tests(self) -> float:
        """The share of hidden tests that the submitted program passes."""
        return sum(self.hidden_passed) / len(self.task.payload["hidden"])

    @reward(weight=0.0)
    def public_gap(self) -> float:
        """What the public test promised of the submission and the hidden ones did not keep."""
        return max(0.0, float(self.public_passed) - self.tests()) if self.hidden_passed else 0.0

    @reward(weight=0.0)
    def calls(self) -> float:
        return self.num_calls

    @reward(weight=0.0)
    def limits(self) -> float:
        """How many runs hit a limit of the sandbox."""
        return self.limits_hit

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """Takes the words that it does not know for one of a few, slips on others, and may submit what failed."""
        tries_again = self.num_turns < self.max_turns - 1 and rng.random() < TRIES_AGAIN
        if self.code is None or (not self.public_passed and tries_again):
            return self._run_scripted(self._attempt(rng))
        return call("submit")

    async def expert(self, rng: np.random.Generator) -> Message:
        return call("submit") if self.code is not None else self._run_scripted(self.task.payload["solution"])

    def _run_scripted(self, source: str) -> Message:
        if "program" in self.task.payload:  # one expression, of this package's own words
            self._scripted.add(source)
        return call("run_code", code=source)

    def _attempt(self, rng: np.random.Generator) -> str:
        """The task's program as the demonstrator understands it."""
        if "chain" in self.task.payload:
            return tasks.skip_a_step(self.task.payload, rng)
        program = pipelines.Program(**self.task.payload["program"])
        for stage, words, unknown in STAGES:
            position = getattr(program, stage)
            if position is None:
                continue
            if words[position].text in unknown:
                program = replace(program, **{stage: (position + int(rng.integers(GUESSES))) % len(words)})
            elif rng.random() < SLIPS:
                program = replace(program, **{stage: int(rng.integers(len(words)))})
        return program.source


@asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    """A sandbox that does not answer is a fault of ours, not the program's."""
    try:
        async with asyncio.timeout(SANDBOX_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise InfrastructureError(f"the sandbox did not answer within {SANDBOX_TIMEOUT_S:g} s") from error


def _hit_limit(found: TestOutcome) -> bool:
    return any(label.startswith("limit:") for label in found.labels)
