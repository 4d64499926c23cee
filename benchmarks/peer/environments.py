"""The two tasks as environments. Their demonstrators slip, so that there is something to learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peer import tasks
from envs import Message, ToolEnv, call, reward, tool

SLIPS = 0.15  # of a demonstrator's episodes, or calls, have a mistake


class Recite(ToolEnv):
    """One turn: say digits backwards."""

    max_turns = 1

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        count = int(rng.integers(tasks.DIGITS[0], tasks.DIGITS[1] + 1))
        return {"numbers": rng.integers(0, 10, count).tolist()}

    async def start(self, task: dict[str, Any]) -> str:
        self.said = ""
        return tasks.recite_prompt(task["numbers"])

    async def on_text(self, text: str) -> str:
        self.said = text
        return self.finish()

    @reward(weight=1.0)
    def right(self) -> float:
        return tasks.recite_score(self.said, self.task.payload["numbers"])

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        digits = self.task.payload["numbers"][::-1]
        if rng.random() < SLIPS:
            digits = digits[:-1]
        return Message("assistant", tasks.spaced(digits))


class Add(ToolEnv):
    """Several turns: add numbers with a tool, two at a time, and then say the sum."""

    max_turns = tasks.NUMBERS + 1  # one call more than needed

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"numbers": rng.integers(1, tasks.LARGEST + 1, tasks.NUMBERS).tolist()}

    async def start(self, task: dict[str, Any]) -> str:
        self.said = ""
        self.results: list[int] = []
        return tasks.add_prompt(task["numbers"])

    @tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first number.
            b: the second number.
        """
        text = tasks.add(a, b)
        self.results.append(int(text))
        return text

    async def act(self, message: Message) -> list[Message]:
        """As the peer does, take a reply whose call cannot be parsed for an answer in text."""
        if any(each.error for each in message.tool_calls):
            message = Message("assistant", message.content)
        return await super().act(message)

    async def on_text(self, text: str) -> str:
        self.said = text
        return self.finish()

    @reward(weight=1.0)
    def right(self) -> float:
        return tasks.add_score(self.said, self.task.payload["numbers"])

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        numbers, done = self.task.payload["numbers"], len(self.results)
        if done == len(numbers) - 1:
            return Message("assistant", str(self.results[-1]))
        total = self.results[-1] if self.results else numbers[0]
        slip = int(rng.random() < SLIPS)
        return call("add", a=total, b=numbers[done + 1] + slip)
