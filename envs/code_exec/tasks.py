"""Small programs over a list of numbers: a terse description, a reference solution, and its tests.

A program keeps some of the numbers, changes each, and reduces them to a result. Its level is the number of stages
before the reduction, plus one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

LEVELS = (1, 2, 3, 4)
HIDDEN_TESTS = 4


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the descriptions and the Python for it; `{k}` stands for a number in both."""

    text: str
    source: str


KEEP = (
    Word("even", "v%2==0"),
    Word("odd", "v%2==1"),
    Word("positive", "v>0"),
    Word("negative", "v<0"),
    Word("above {k}", "v>{k}"),
    Word("below {k}", "v<{k}"),
    Word("nonzero", "v!=0"),
)
CHANGE = (
    Word("double", "v*2"),
    Word("square", "v*v"),
    Word("negate", "-v"),
    Word("add {k}", "v+{k}"),
    Word("subtract {k}", "v-{k}"),
    Word("halve", "v//2"),
    Word("triple", "v*3"),
    Word("absolute", "abs(v)"),
)
RETURN = (
    Word("sum", "sum({x})"),
    Word("largest", "max({x})"),
    Word("smallest", "min({x})"),
    Word("count", "len({x})"),
    Word("sorted", "sorted({x})"),
    Word("reversed", "{x}[::-1]"),
    Word("first", "{x}[0]"),
    Word("last", "{x}[-1]"),
)
MAX_KEEP_NUMBER = 5
MAX_CHANGE_NUMBER = 9


@dataclass(frozen=True, slots=True)
class Program:
    """Positions in `KEEP`, `CHANGE` and `RETURN`, and the numbers of the first three stages; None for no such stage.

    `then` is a second condition, on the changed numbers.
    """

    keep: int | None
    change: int | None
    then: int | None
    result: int
    keep_number: int
    change_number: int
    then_number: int

    @property
    def description(self) -> str:
        parts = []
        if self.keep is not None:
            parts.append(f"keep {KEEP[self.keep].text.format(k=self.keep_number)}")
        if self.change is not None:
            parts.append(f"{CHANGE[self.change].text.format(k=self.change_number)} each")
        if self.then is not None:
            parts.append(f"keep {KEEP[self.then].text.format(k=self.then_number)}")
        return ", ".join([*parts, f"return {RETURN[self.result].text}"])

    @property
    def source(self) -> str:
        """One expression of the list `x`."""
        changed = CHANGE[self.change].source.format(k=self.change_number) if self.change is not None else "v"
        kept = f" if {KEEP[self.keep].source.format(k=self.keep_number)}" if self.keep is not None else ""
        numbers = f"[{changed} for v in x{kept}]" if kept or changed != "v" else "x"
        if self.then is not None:
            numbers = f"[v for v in {numbers} if {KEEP[self.then].source.format(k=self.then_number)}]"
        return RETURN[self.result].source.format(x=numbers)


def sample_program(rng: np.random.Generator, level: int) -> Program:
    keep, change, then = (int(rng.integers(len(words))) for words in (KEEP, CHANGE, KEEP))
    only_keeps = rng.random() < 0.5
    return Program(
        keep=keep if level >= 3 or (level == 2 and only_keeps) else None,
        change=change if level >= 3 or (level == 2 and not only_keeps) else None,
        then=then if level >= 4 else None,
        result=int(rng.integers(len(RETURN))),
        keep_number=int(rng.integers(1, MAX_KEEP_NUMBER + 1)),
        change_number=int(rng.integers(1, MAX_CHANGE_NUMBER + 1)),
        then_number=int(rng.integers(1, MAX_KEEP_NUMBER + 1)),
    )


def sample_task(rng: np.random.Generator, level: int) -> dict[str, Any]:
    """A program and tests that its solution passes: [input, expected value] pairs, the first one public.

    Inputs on which the solution fails are left out, and so are tests with one and the same answer, which a program
    that never looks at its input would pass.
    """
    while True:
        program = sample_program(rng, level)
        solve = reference(program.source)
        tests = []
        for _ in range(1 + HIDDEN_TESTS):
            numbers = rng.integers(-9, 10, size=int(rng.integers(4, 7))).tolist()
            try:
                tests.append([numbers, solve(numbers)])
            except (ValueError, IndexError):  # max, min, first or last of nothing
                break
        if len(tests) == 1 + HIDDEN_TESTS and len({json.dumps(want) for _, want in tests[1:]}) > 1:
            break
    return {
        "kind": f"level-{level}",
        "description": program.description,
        "solution": program.source,
        "program": asdict(program),
        "public": tests[0],
        "hidden": tests[1:],
    }


@lru_cache(maxsize=4096)
def reference(source: str) -> Callable[[list[int]], Any]:
    """The function that a reference solution means. `source` is this module's own text, never a model's."""
    names = {"sum": sum, "max": max, "min": min, "len": len, "sorted": sorted, "abs": abs}
    return eval(f"lambda x: {source}", {"__builtins__": names})
