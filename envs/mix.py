"""A weighted mix of environments: which one each data position plays."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

_COMMAS = re.compile(r",(?![^{]*\})")  # not those of a JSON object in an argument
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Mix:
    """Environment texts (as `envs.make` takes them) and their shares, which add up to 1."""

    names: tuple[str, ...]
    shares: tuple[float, ...]

    def pick(self, position: int) -> str:
        """The environment of one data position: a pure function, with every share kept to within a few positions.

        Multiples of the golden ratio, modulo 1, fill the unit interval evenly (a Kronecker sequence).
        """
        point = (position * _GOLDEN) % 1.0
        bounds = list(accumulate(self.shares))
        return self.names[min(bisect_right(bounds, point), len(self.names) - 1)]


def mix(text: str) -> Mix:
    """Parse `code_exec,doc_search?level=2=0.5`: environments, each with an optional weight (1 by default).

    Raises `ValueError` for a repeated environment or a weight that is not above 0.
    """
    weights: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in _COMMAS.split(text))):
        name, weight = _split_weight(item)
        if name in weights:
            raise ValueError(f"environment {name!r} is in the mix twice")
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"the weight of {name!r} must be above 0, got {weight:g}")
        weights[name] = weight
    if not weights:
        raise ValueError("the mix names no environment")
    total = math.fsum(weights.values())
    return Mix(tuple(weights), tuple(weight / total for weight in weights.values()))


def _split_weight(item: str) -> tuple[str, float]:
    """The environment text and its weight: the "=" that is not an argument's own."""
    if item.endswith("}"):  # an argument in JSON, and no weight
        return item, 1.0
    name, question, arguments = item.partition("?")
    last = arguments.rpartition("&")[2] if question else name
    if last.count("=") <= int(bool(question)):
        return item, 1.0
    head, _, weight = item.rpartition("=")
    try:
        return head, float(weight)
    except ValueError:
        raise ValueError(f"{item!r}: {weight!r} is not a weight") from None
