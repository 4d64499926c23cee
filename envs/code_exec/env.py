"""`code_exec`: write a small program, try it on a public test, and submit it to the hidden ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import sandbox
from envs.actions import call
from envs.code_exec import tasks
from envs.code_exec.public import Feedback, outcome, run_scripted, same_json, with_public_input
from envs.levels import Level, pick_level
from envs.registry import register
from envs.scoring import reward
from envs.tool_env import ToolEnv
from envs.tools import tool
from envs.types import Message
from rewards.code import CallTest, run_tests
from sandbox.protocol import Box, ExecResult, Limits

LIMITS = Limits(wall_s=5.0, cpu_s=2.0)
TOOL_TIMEOUT_S = 120.0  # above the sandbox's own limits and its queue: a call that takes longer is a fault of ours
MAX_DELAY = 5

# The demonstrator's gaps: words that it does not know (and guesses), slips on the others, and how it goes on after a
# failed try.
UNKNOWN_KEEP = frozenset({"negative", "below {k}", "nonzero"})
UNKNOWN_CHANGE = frozenset({"subtract {k}", "halve", "triple", "absolute"})
UNKNOWN_RETURN = frozenset({"smallest", "reversed", "last"})
STAGES = (
    ("keep", tasks.KEEP, UNKNOWN_KEEP),
    ("change", tasks.CHANGE, UNKNOWN_CHANGE),
    ("then", tasks.KEEP, UNKNOWN_KEEP),
    ("result", tasks.RETURN, UNKNOWN_RETURN),
)
SLIPS = 0.15
TRIES_AGAIN = 0.7


@register("code_exec-v0", max_turns=4)
class CodeExec(ToolEnv):
    """Write Python that does what the prompt says with the list `x`.

    `level` 1 to 4 is the number of stages of the program; `feedback="full"` tells more of a failed try than a verdict.
    """

    def __init__(self, level: Level = 3, feedback: Feedback = "short") -> None:
        self.level = level
        self.feedback = feedback
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return tasks.sample_task(rng, pick_level(rng, self.level, tasks.LEVELS))

    def task_key(self, payload: dict[str, Any]) -> Any:
        return payload["description"]

    async def start(self, task: dict[str, Any]) -> str:
        self.code: str | None = None
        self.public_passed = False
        self.hidden_passed: tuple[bool, ...] = ()
        self.limits_hit = 0
        self._box: Box | None = None
        self._scripted: set[str] = set()  # programs that this class wrote itself, in this episode
        return f"python: {task['description']}"

    async def stop(self) -> None:
        if self._box is not None:
            await self._box.aclose()

    @tool(timeout_s=TOOL_TIMEOUT_S)
    async def run_code(self, code: str) -> str:
        """Run Python in a session that lasts, and try it on the public test.

        Args:
            code: an expression of the list `x`, or a program; one that defines f(x) is tried on the public input.
        """
        self.code, self.public_passed = code, False
        given, want = self.task.payload["public"]
        if code in self._scripted:
            result = run_scripted(code, given)
        else:
            try:
                source = with_public_input(code, given)
            except SyntaxError as error:
                return "fail: SyntaxError" if self.feedback == "short" else f"fail: SyntaxError: {error.msg}"
            result = await self._run_in_box(source)
        text, self.public_passed = outcome(result, want, self.feedback)
        return text

    @tool(timeout_s=TOOL_TIMEOUT_S)
    async def submit(self) -> str:
        """Submit the program that was run last, which ends the episode."""
        if self.code in self._scripted:
            self.hidden_passed = tuple(
                same_json(run_scripted(self.code, given).result, want) for given, want in self.task.payload["hidden"]
            )
        elif self.code is not None:
            tests = [CallTest((given,), want) for given, want in self.task.payload["hidden"]]
            result = await run_tests(await sandbox.shared(), self.code, tests, entry="f", limits=LIMITS)
            self.hidden_passed, self.isolation = result.passed, result.isolation
            for label in result.labels:
                self.label(label)
        return self.finish("submitted")

    async def _run_in_box(self, source: str) -> ExecResult:
        if self._box is None:
            shared = await sandbox.shared()
            self.isolation = shared.isolation
            self._box = await shared.open(limits=LIMITS)
        result = await self._box.run(source)
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
        """Guesses the words that it does not know, slips on others, and may submit what failed."""
        tries_again = self.num_turns < self.max_turns - 1 and rng.random() < TRIES_AGAIN
        if self.code is None or (not self.public_passed and tries_again):
            return self._script(self._attempt(rng).source)
        return call("submit")

    async def expert(self, rng: np.random.Generator) -> Message:
        if self.code is None:
            return self._script(self.task.payload["solution"])
        return call("submit")

    def _script(self, source: str) -> Message:
        self._scripted.add(source)
        return call("run_code", code=source)

    def _attempt(self, rng: np.random.Generator) -> tasks.Program:
        """The task's program as the demonstrator understands it."""
        program = tasks.Program(**self.task.payload["program"])
        for stage, words, unknown in STAGES:
            position = getattr(program, stage)
            if position is not None and (words[position].text in unknown or rng.random() < SLIPS):
                program = replace(program, **{stage: int(rng.integers(len(words)))})
        return program
