"""Programs of one expression, tersely described: levels 0 to 4.

Level 0 changes a number twice. The others keep some numbers of a list, change each, and reduce them to a result; their
level is the number of stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

LEVELS = (0, 1, 2, 3, 4)
MAX_KEEP_NUMBER = 5
MAX_CHANGE_NUMBER = 9


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


@dataclass(frozen=True, slots=True)
class Program:
    """Positions in `KEEP`, `CHANGE` and `RETURN`, None for no such stage, and the numbers of the stages.

    `then` is a second condition, on the changed numbers; `again` a second change, of programs over one number.
    """

    keep: int | None = None
    change: int | None = None
    then: int | None = None
    result: int | None = None
    again: int | None = None
    keep_number: int = 1
    change_number: int = 1
    then_number: int = 1
    again_number: int = 1

    @property
    def description(self) -> str:
        change = self._text(CHANGE, "change")
        if self.result is None:
            return f"take x, {change}, {self._text(CHANGE, 'again')}"
        parts = [
            f"keep {self._text(KEEP, 'keep')}" if self.keep is not None else "",
            f"{change} each" if change else "",
            f"keep {self._text(KEEP, 'then')}" if self.then is not None else "",
            f"return {RETURN[self.result].text}",
        ]
        return ", ".join(filter(None, parts))

    @property
    def source(self) -> str:
        """One expression of `x`, a list of numbers or, without a result, a number."""
        change = self._source(CHANGE, "change")
        if self.result is None:
            return self._source(CHANGE, "again").replace("v", f"({change.replace('v', 'x')})")
        kept, then = self._source(KEEP, "keep"), self._source(KEEP, "then")
        numbers = f"[{change or 'v'} for v in x{f' if {kept}' if kept else ''}]" if change or kept else "x"
        if then:
            numbers = f"[v for v in {numbers} if {then}]"
        return RETURN[self.result].source.format(x=numbers)

    def _text(self, words: tuple[Word, ...], stage: str) -> str:
        position = getattr(self, stage)
        return "" if position is None else words[position].text.format(k=getattr(self, f"{stage}_number"))

    def _source(self, words: tuple[Word, ...], stage: str) -> str:
        position = getattr(self, stage)
        return "" if position is None else words[position].source.format(k=getattr(self, f"{stage}_number"))


def sample_program(rng: np.random.Generator, level: int) -> Program:
    keep, change, then, again = (int(rng.integers(len(words))) for words in (KEEP, CHANGE, KEEP, CHANGE))
    result, only_keeps = int(rng.integers(len(RETURN))), rng.random() < 0.5
    return Program(
        keep=keep if level >= 3 or (level == 2 and only_keeps) else None,
        change=change if level in (0, 3, 4) or (level == 2 and not only_keeps) else None,
        then=then if level == 4 else None,
        result=result if level > 0 else None,
        again=again if level == 0 else None,
        keep_number=int(rng.integers(1, MAX_KEEP_NUMBER + 1)),
        change_number=int(rng.integers(1, MAX_CHANGE_NUMBER + 1)),
        then_number=int(rng.integers(1, MAX_KEEP_NUMBER + 1)),
        again_number=int(rng.integers(1, MAX_CHANGE_NUMBER + 1)),
    )


def sample_input(rng: np.random.Generator, level: int) -> Any:
    """What the program is run on: a list of 4 to 6 numbers, or one number for level 0."""
    if level == 0:
        return int(rng.integers(-20, 21))
    return rng.integers(-9, 10, size=int(rng.integers(4, 7))).tolist()


@lru_cache(maxsize=4096)
def reference(source: str) -> Callable[[Any], Any]:
    """The function that a reference solution means. `source` is this module's own text, never a model's."""
    names = {"sum": sum, "max": max, "min": min, "len": len, "sorted": sorted, "abs": abs}
    return eval(f"lambda x: {source}", {"__builtins__": names})
