"""Scenarios: how many items of each kind, what they are worth to either side, and what no deal is worth to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rewards.negotiation import utility

LEVELS = (1, 2, 3)
MAX_COUNT = 3
MAX_VALUE = 5
MIN_TOTAL = 5
RESERVES = (0.2, 0.8)  # what no deal is worth, as a share of everything, at least and at most


def sample_scenario(rng: np.random.Generator, level: int) -> dict[str, Any]:
    """Level 1: two kinds of items and opposite tastes. Level 2: three kinds and any tastes. Level 3: as level 2, and no
    deal is worth something to either side too, so that some deals are worse than none.

    Everything together is worth `MIN_TOTAL` or more to either side.
    """
    while True:
        if level == 1:
            counts = rng.integers(1, MAX_COUNT + 1, size=2).tolist()
            high, other_high = rng.integers(3, MAX_VALUE + 1, size=2).tolist()
            low, other_low = rng.integers(0, 3, size=2).tolist()
            values, other = [high, low], [other_low, other_high]
            if rng.random() < 0.5:
                values.reverse()
                other.reverse()
        else:
            counts = rng.integers(1, MAX_COUNT + 1, size=3).tolist()
            values, other = rng.integers(0, MAX_VALUE + 1, size=(2, 3)).tolist()
        if values != other and utility(counts, values) >= MIN_TOTAL and utility(counts, other) >= MIN_TOTAL:
            scenario = {"counts": counts, "values": values, "other": other}
            if level < 3:
                return scenario
            mine, theirs = (_reserve(rng, utility(counts, side)) for side in (values, other))
            return scenario | {"reserve": mine, "other_reserve": theirs}


def _reserve(rng: np.random.Generator, everything: int) -> int:
    return round(float(rng.uniform(*RESERVES)) * everything)
