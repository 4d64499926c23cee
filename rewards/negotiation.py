"""Utilities of bargaining over several kinds of items, and what the best deal would have been.

A deal is what one side keeps: a tuple of counts, one a kind of item; the other side gets the rest. Values are whole
numbers a piece. The deals of one scenario are enumerated exactly: there are product(counts + 1) of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product

Deal = tuple[int, ...]


def deals(counts: Sequence[int]) -> Iterator[Deal]:
    """Every division of the items, as what the first side keeps."""
    return product(*(range(count + 1) for count in counts))


def is_deal(keep: Sequence[int], counts: Sequence[int]) -> bool:
    """Whether `keep` divides exactly these items: a whole number of each kind, none negative, none over-allocated."""
    return len(keep) == len(counts) and all(
        type(kept) is int and 0 <= kept <= count for kept, count in zip(keep, counts, strict=True)
    )


def rest(keep: Sequence[int], counts: Sequence[int]) -> Deal:
    """What the other side gets."""
    return tuple(count - kept for kept, count in zip(keep, counts, strict=True))


def utility(keep: Sequence[int], values: Sequence[int]) -> int:
    return sum(kept * value for kept, value in zip(keep, values, strict=True))


def share(keep: Sequence[int], counts: Sequence[int], values: Sequence[int]) -> float:
    """The utility of `keep` as a fraction of having everything, in [0, 1]; 0 where nothing is worth anything."""
    everything = utility(counts, values)
    return utility(keep, values) / everything if everything else 0.0


def best_accepted(
    counts: Sequence[int], values: Sequence[int], accepts: Callable[[Deal], bool]
) -> tuple[float, Deal] | None:
    """The largest `share`, and its deal, among the deals for which `accepts(keep)` is true; None if there is none."""
    return max(((share(keep, counts, values), keep) for keep in deals(counts) if accepts(keep)), default=None)


def pareto_front(counts: Sequence[int], values: Sequence[int], other: Sequence[int]) -> list[Deal]:
    """The deals that no other deal betters for one side without costing the other."""
    points = [(utility(keep, values), utility(rest(keep, counts), other), keep) for keep in deals(counts)]
    return [
        keep
        for mine, theirs, keep in points
        if not any(a >= mine and b >= theirs and (a > mine or b > theirs) for a, b, _ in points)
    ]


def pareto_distance(keep: Sequence[int], counts: Sequence[int], values: Sequence[int], other: Sequence[int]) -> float:
    """How far `keep` lies from the Pareto front, in shares: Euclidean, in [0, sqrt 2]."""
    mine, theirs = share(keep, counts, values), share(rest(keep, counts), counts, other)
    front = _front_shares(tuple(counts), tuple(values), tuple(other))
    return min(((x - mine) ** 2 + (y - theirs) ** 2) ** 0.5 for x, y in front)


@lru_cache(maxsize=4096)  # the episodes of a group ask for the same one
def _front_shares(counts: Deal, values: Deal, other: Deal) -> tuple[tuple[float, float], ...]:
    """What the deals of the Pareto front give both sides, in shares."""
    front = pareto_front(counts, values, other)
    return tuple((share(keep, counts, values), share(rest(keep, counts), counts, other)) for keep in front)


def nash_product(keep: Sequence[int], counts: Sequence[int], values: Sequence[int], other: Sequence[int]) -> float:
    """Product of both sides' shares, in [0, 1]; both walk away with 0 without a deal (Nash 1950)."""
    return share(keep, counts, values) * share(rest(keep, counts), counts, other)


def best_nash(
    counts: Sequence[int], values: Sequence[int], other: Sequence[int], reserve: float = 0.0, other_reserve: float = 0.0
) -> Deal:
    """The deal with the largest product of both sides' gains over no deal, in shares (Nash 1950).

    Where no deal is a gain for both, the one that loses the least for the side that loses most.
    """

    def gains(keep: Deal) -> tuple[float, float]:
        mine, theirs = share(keep, counts, values) - reserve, share(rest(keep, counts), counts, other) - other_reserve
        return (mine * theirs if mine > 0 and theirs > 0 else 0.0), min(mine, theirs)

    return max(deals(counts), key=gains)
