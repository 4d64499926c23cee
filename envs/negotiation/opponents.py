"""Scripted opponents: what they accept, and what they ask for themselves.

"any" draws from `USUAL`. Those of `UNSEEN` are other families altogether, kept for evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from rewards.negotiation import Deal, best_accepted, rest, share, utility

_EPSILON = 1e-9

Threshold = Callable[[int, Sequence[float], int], float]
"""(turn from 1, the shares that were offered so far with the latest last, a seed) -> the least share accepted."""


@dataclass(frozen=True, slots=True)
class View:
    """What an opponent goes by: the items, what they are worth to it, the turn (from 1), the shares that it was offered
    before, the task's seed, and the share that no deal is worth to it."""

    counts: Deal
    values: Deal
    turn: int
    past: Sequence[float] = ()
    seed: int = 0
    reserve: float = 0.0


@dataclass(frozen=True, slots=True)
class Opponent:
    """A family of opponents. Its own offers ask for `asks_above` more than the share that it would accept."""

    name: str
    threshold: Threshold
    asks_above: float = 0.15

    def accepts(self, offered: Sequence[int], view: View) -> bool:
        """Whether it takes `offered`, the items that it would get."""
        now = share(offered, view.counts, view.values)
        return now >= self._least(view, [*view.past, now]) - _EPSILON

    def ask(self, view: View) -> Deal:
        """What it wants to keep: its most valuable items, until they are worth its threshold and a margin."""
        counts, values = view.counts, view.values
        target = min(1.0, self._least(view, view.past) + self.asks_above) * utility(counts, values)
        keep = [0] * len(counts)
        for item in sorted(range(len(counts)), key=lambda item: -values[item]):
            while keep[item] < counts[item] and utility(keep, values) < target - _EPSILON:
                keep[item] += 1
        return tuple(keep)

    def _least(self, view: View, offered: Sequence[float]) -> float:
        return max(view.reserve, self.threshold(view.turn, offered, view.seed))


def linear(opening: float, pace: float, floor: float) -> Threshold:
    """Concedes by the same share each turn."""
    return lambda turn, offered, seed: max(floor, opening - pace * turn)


def polynomial(opening: float, floor: float, exponent: float, turns: int = 5) -> Threshold:
    """Concedes late (exponent above 1, "Boulware") or early (below 1, a conceder) (Faratin, Sierra, Jennings 1998)."""

    def threshold(turn: int, offered: Sequence[float], seed: int) -> float:
        return opening - (opening - floor) * min(1.0, turn / turns) ** exponent

    return threshold


def tit_for_tat(opening: float, floor: float) -> Threshold:
    """Concedes as much as the other side has conceded since its first offer."""

    def threshold(turn: int, offered: Sequence[float], seed: int) -> float:
        conceded = max(offered) - offered[0] if offered else 0.0
        return max(floor, opening - conceded)

    return threshold


def noisy(inner: Threshold, width: float) -> Threshold:
    """`inner`, moved up or down by at most `width`, differently each turn and each task."""

    def threshold(turn: int, offered: Sequence[float], seed: int) -> float:
        digest = hashlib.blake2b(f"{seed} {turn}".encode(), digest_size=4).digest()
        return inner(turn, offered, seed) + width * (int.from_bytes(digest, "big") / 2**31 - 1)

    return threshold


USUAL = ("firm", "soft", "slow")
UNSEEN = ("boulware", "conceder", "hardliner", "tit_for_tat", "noisy", "liar")
OPPONENTS = {
    each.name: each
    for each in (
        Opponent("firm", linear(0.45, 0.0, 0.45)),
        Opponent("soft", linear(0.70, 0.15, 0.20)),
        Opponent("slow", linear(0.90, 0.12, 0.30)),
        Opponent("boulware", polynomial(0.80, 0.25, 3.0)),
        Opponent("conceder", polynomial(0.80, 0.25, 0.4)),
        Opponent("hardliner", linear(0.65, 0.0, 0.65)),
        Opponent("tit_for_tat", tit_for_tat(0.70, 0.25)),
        Opponent("noisy", noisy(linear(0.60, 0.05, 0.30), 0.1)),
        Opponent("liar", linear(0.45, 0.02, 0.35), asks_above=0.45),  # asks as if it needed nearly everything
    )
}
POOLS = {"any": USUAL, "unseen": UNSEEN} | {name: (name,) for name in OPPONENTS}


@dataclass(frozen=True, slots=True)
class Best:
    """The largest return that an opponent lets the other side reach, and the turn and the proposal that reach it.

    No proposal (None) is best where no deal is worth more than those that can be had.
    """

    value: float
    turn: int
    keep: Deal | None


@lru_cache(maxsize=4096)
def best_return(
    opponent: Opponent,
    counts: Deal,
    values: Deal,
    other: Deal,
    turns: int,
    discount: float,
    seed: int = 0,
    reserves: tuple[float, float] = (0.0, 0.0),
) -> Best:
    """Every deal in every turn, enumerated; a share is worth `discount` times less a turn later.

    `values` are those of the side that proposes, `other` the opponent's, `reserves` what no deal is worth to either, in
    shares. Before the turn of the deal it asks for everything, which is the most that it can concede from.
    """
    best = Best(reserves[0], 1, None)
    for turn in range(1, turns + 1):
        view = View(counts, other, turn, [0.0] * (turn - 1), seed, reserves[1])
        found = best_accepted(counts, values, partial(_accepts_rest, opponent, view))
        if found and found[0] * discount ** (turn - 1) > best.value:
            best = Best(found[0] * discount ** (turn - 1), turn, found[1])
    return best


def _accepts_rest(opponent: Opponent, view: View, keep: Deal) -> bool:
    return opponent.accepts(rest(keep, view.counts), view)
