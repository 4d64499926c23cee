"""The two tasks that both trainers of `benchmarks.vs_trl` play. Plain Python: it is imported by the peer's process too.

Recite: one reply, the digits of the prompt from the last to the first, separated by spaces.
Add: the sum of some numbers, by a tool that adds two of them; one call a turn, then the sum as text.
"""

from __future__ import annotations

from typing import Protocol

DIGITS = (16, 24)  # of a Recite task, both included
NUMBERS = 3  # of an Add task
LARGEST = 49
TOOL_TURNS = NUMBERS - 1  # turns with a call that an Add task needs; one more answers


class Draws(Protocol):
    """What a task is drawn from: numpy's `Generator`."""

    def integers(self, low: int, high: int, size: int) -> list[int]: ...


def recite_prompt(digits: list[int]) -> str:
    return f"backwards: {spaced(digits)}"


def spaced(digits: list[int]) -> str:
    return " ".join(map(str, digits))


def recite_score(reply: str, digits: list[int]) -> float:
    """The share of positions that hold the right digit; what is missing or too much is wrong."""
    said, wanted = reply.split(), spaced(digits[::-1]).split()
    return sum(a == b for a, b in zip(said, wanted, strict=False)) / max(len(said), len(wanted))


def add_prompt(numbers: list[int]) -> str:
    return f"sum: {spaced(numbers)}"


def add_score(reply: str, numbers: list[int]) -> float:
    """1 for the sum, else nothing."""
    return float(reply.strip() == str(sum(numbers)))


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return str(a + b)
