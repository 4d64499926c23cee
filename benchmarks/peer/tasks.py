"""The prompts, the tool and the rewards of both trainers. Plain Python: the peer's process imports this too.

recite: one reply, the prompt's digits from the last to the first.
add: the sum of some numbers, with a tool that adds two of them: a call a turn, then the sum as text.
"""

from __future__ import annotations

DIGITS = (16, 24)  # how many a recite task has, both included
NUMBERS = 3  # of an add task
LARGEST = 49


def spaced(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def recite_prompt(digits: list[int]) -> str:
    return f"backwards: {spaced(digits)}"


def recite_score(reply: str, digits: list[int]) -> float:
    """The share of positions that hold the right digit; what is missing or too much is wrong."""
    said, wanted = reply.split(), spaced(digits[::-1]).split()
    return sum(a == b for a, b in zip(said, wanted, strict=False)) / max(len(said), len(wanted))


def add_prompt(numbers: list[int]) -> str:
    return f"sum: {spaced(numbers)}"


def add_score(reply: str, numbers: list[int]) -> float:
    """1 for the sum, less its relative error; 0 for what is no number."""
    said = reply.strip()
    if not said.isdecimal() or len(said) > 9:
        return 0.0
    return max(0.0, 1.0 - abs(int(said) - sum(numbers)) / sum(numbers))


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return str(int(a) + int(b))


PROMPTS = {"recite": recite_prompt, "add": add_prompt}
SCORES = {"recite": recite_score, "add": add_score}
