"""Scripted opponents: what they accept, and what they ask for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewards.negotiation import Deal, rest, share, utility

_EPSILON = 1e-9
ASKS_ABOVE = 0.15  # an opponent's own offers ask for this share more than it would accept


@dataclass(frozen=True, slots=True)
class Opponent:
    """Concedes with time: in turn t (from 1) it accepts the share max(floor, opening - pace * t) or better."""

    name: str
    opening: float
    pace: float
    floor: float

    def threshold(self, turn: int) -> float:
        return max(self.floor, self.opening - self.pace * turn)

    def accepts(self, offered: Sequence[int], counts: Sequence[int], values: Sequence[int], turn: int) -> bool:
        """Whether it takes `offered`, the items that it would get."""
        return share(offered, counts, values) >= self.threshold(turn) - _EPSILON

    def ask(self, counts: Sequence[int], values: Sequence[int], turn: int) -> Deal:
        """What it wants to keep: its most valuable items, until they are worth its threshold and a margin."""
        target = min(1.0, self.threshold(turn) + ASKS_ABOVE) * utility(counts, values)
        keep = [0] * len(counts)
        for item in sorted(range(len(counts)), key=lambda item: -values[item]):
            while keep[item] < counts[item] and utility(keep, values) < target - _EPSILON:
                keep[item] += 1
        return tuple(keep)

    def gives(self, counts: Sequence[int], values: Sequence[int], turn: int) -> Deal:
        """What is left for the other side of what it asks for."""
        return rest(self.ask(counts, values, turn), counts)


OPPONENTS = {
    each.name: each
    for each in (
        Opponent("firm", opening=0.45, pace=0.0, floor=0.45),
        Opponent("soft", opening=0.70, pace=0.15, floor=0.20),
        Opponent("slow", opening=0.90, pace=0.12, floor=0.30),
    )
}
