"""The `level` argument of the families: one level, or a range that tasks are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Level = int | tuple[int, int]


def pick_level(rng: np.random.Generator, level: Level, known: Sequence[int]) -> int:
    """One level: `level` itself, or any of a range (both ends included), evenly.

    Raises `ValueError` for a level that is not among `known`.
    """
    low, high = (level, level) if isinstance(level, int) else level
    if low > high or low not in known or high not in known:
        raise ValueError(f"level must be one of {', '.join(map(str, known))} or a range such as 1-2, got {level}")
    return low if low == high else int(rng.integers(low, high + 1))
