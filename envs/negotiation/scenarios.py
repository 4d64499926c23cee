"""Scenarios from files: Deal-or-No-Deal's self-play contexts, and CaSiNo's conversations."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

CASINO_ITEMS = ("Food", "Water", "Firewood")
CASINO_COUNT = 3
CASINO_VALUES = {"High": 5, "Medium": 4, "Low": 3}

Scenario = dict[str, list[int]]  # counts, values, other


@lru_cache(maxsize=16)
def load(path: str) -> tuple[Scenario, ...]:
    """The scenarios of a file; either side of each is one. Raises `ValueError` for a file that holds none."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    text = file.read_text(encoding="utf-8").strip()
    try:
        found = read_casino(json.loads(text)) if text.startswith(("[", "{")) else read_deal_or_no_deal(text)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path!r} is not a file of conversations: {type(error).__name__}: {error}") from error
    if not found:
        raise ValueError(f"{path!r} holds no scenario")
    return tuple(found)


def read_deal_or_no_deal(text: str) -> list[Scenario]:
    """Pairs of lines, one a side, each `count value count value ...` over the same counts.

    Raises `ValueError` naming the line that is not.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    found: list[Scenario] = []
    for number in range(0, len(lines) - 1, 2):
        try:
            mine, theirs = ([int(part) for part in line] for line in lines[number : number + 2])
        except ValueError:
            raise ValueError(f"line {number + 1} or {number + 2} does not hold whole numbers alone") from None
        if mine[::2] != theirs[::2] or len(mine) % 2 or len(mine) != len(theirs):
            raise ValueError(f"lines {number + 1} and {number + 2} are not two sides of one scenario")
        found += _both(mine[::2], mine[1::2], theirs[1::2])
    return found


def read_casino(conversations: list[dict[str, Any]]) -> list[Scenario]:
    """Three packages each of food, water and firewood; a side's priorities give their values."""
    found: list[Scenario] = []
    for conversation in conversations:
        sides = [
            {item: CASINO_VALUES[rank] for rank, item in person["value2issue"].items()}
            for person in conversation["participant_info"].values()
        ]
        mine, theirs = ([side[item] for item in CASINO_ITEMS] for side in sides)
        found += _both([CASINO_COUNT] * len(CASINO_ITEMS), mine, theirs)
    return found


def _both(counts: list[int], mine: list[int], theirs: list[int]) -> list[Scenario]:
    return [{"counts": counts, "values": a, "other": b} for a, b in ((mine, theirs), (theirs, mine))]
