"""The numbers of an evaluation, and how far they can be trusted. Pure functions of the attempts' scores.

Tasks are the sample: attempts of one task resemble each other, so an interval treats a task's mean as one observation
(clustered standard errors, arXiv 2411.00640). Tasks are drawn within each part of the suite, whose sizes are fixed, so
the variance is that within the parts (stratified sampling).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import comb
from statistics import NormalDist, fmean

import msgspec

LEVEL = 0.95
POWER = 0.8  # with which the suggested number of tasks would tell a difference as large as the one that was seen
MOST_TASKS = 100_000

Strata = Mapping[str, Sequence[float]]  # one value a task, by the part of the suite that it was drawn for


class Estimate(msgspec.Struct, frozen=True):
    """A mean over tasks with its 95% interval; that is None where the values do not say how wide it is."""

    mean: float | None  # without any task
    low: float | None
    high: float | None
    tasks: int


class Difference(msgspec.Struct, frozen=True):
    """The paired difference of two evaluations on the tasks that both have. `sentence` says what it means."""

    mean: float | None
    low: float | None
    high: float | None
    tasks: int
    more_tasks: int | None  # that would tell, where it cannot be told; None where it can, or where nobody knows
    sentence: str


def pass_at_k(attempts: int, passed: int, k: int) -> float:
    """The probability that one of `k` attempts passes: 1 - C(n - c, k) / C(n, k), unbiased (arXiv 2107.03374)."""
    assert 0 <= passed <= attempts
    assert 1 <= k <= attempts
    return 1.0 - comb(attempts - passed, k) / comb(attempts, k)


def pass_hat_k(attempts: int, passed: int, k: int) -> float:
    """The probability that all of `k` attempts pass: C(c, k) / C(n, k), unbiased (pass^k, arXiv 2406.12045)."""
    assert 0 <= passed <= attempts
    assert 1 <= k <= attempts
    return comb(passed, k) / comb(attempts, k)


def t_quantile(freedom: float) -> float:
    """The 97.5% quantile of Student's t; `freedom` is rounded down, which widens the interval.

    From 3 degrees on a series in 1/freedom (Abramowitz & Stegun 26.7.5), within 0.002 of the exact value.
    """
    v = math.floor(freedom)
    assert v >= 1
    if v < 3:
        return (12.706205, 4.302653)[v - 1]
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / v**power for power, term in enumerate(terms))


def estimate(strata: Strata) -> Estimate:
    """The mean over all tasks, and its interval.

    Where all values are in [0, 1] it is the score interval (Wilson's) of as many yes-or-no observations as the variance
    is worth, with Student's t for that variance: it stays inside [0, 1], and holds near its ends too. They are at least
    as many as there are tasks, and exactly those where nothing varies (every task solved, or none). Other values have
    mean ± t standard errors, and no interval where they do not vary.
    """
    values = [value for stratum in strata.values() for value in stratum]
    if not values:
        return Estimate(None, None, None, 0)
    shares = all(0.0 <= value <= 1.0 for value in values)
    average, (variance, freedom) = fmean(values), _variance(strata, bounded=shares)
    if shares:
        size = max(len(values), average * (1 - average) / variance if variance > 0 else 0.0)
        return Estimate(average, *_score_interval(average, size, t_quantile(max(1.0, freedom))), len(values))
    if variance <= 0:
        return Estimate(average, None, None, len(values))
    half = t_quantile(freedom) * math.sqrt(variance)
    return Estimate(average, average - half, average + half, len(values))


def difference(strata: Strata, *, bounded: bool) -> Difference:
    """The mean of paired differences, one a task, with its interval. `bounded`: scores are in [0, 1].

    Where every task differs by the same amount, nothing shows how much tasks vary: the interval then allows for the
    share of tasks that may be otherwise although none of this many was.
    """
    values = [value for stratum in strata.values() for value in stratum]
    if not values:
        return Difference(None, None, None, 0, None, "can't tell: no task was scored in both")
    average, (variance, freedom) = fmean(values), _variance(strata, bounded=bounded)
    low: float | None = None
    high: float | None = None
    if variance > 0:
        half = t_quantile(freedom) * math.sqrt(variance)
        low, high = average - half, average + half
    elif bounded:
        unseen = _score_interval(0.0, len(values), t_quantile(max(1.0, freedom)))[1]
        low, high = average - unseen * (1 + average), average + unseen * (1 - average)
    if low is not None and high is not None and bounded:
        low, high = max(-1.0, low), min(1.0, high)
    told = low is not None and high is not None and (low > 0 or high < 0)
    more = None if told else _more_tasks(average, variance, len(values))
    return Difference(average, low, high, len(values), more, _sentence(average, low, high, more))


def _variance(strata: Strata, *, bounded: bool) -> tuple[float, float]:
    """(of the mean over all tasks, its degrees of freedom): within the strata, or over all where one has one task.

    Where some strata vary and others do not (of `bounded` values), the latter are not taken to be without variance:
    Laplace's share of 1 / (n + 2) of their tasks is taken to be otherwise. Degrees of freedom are Satterthwaite's.
    """
    groups = [list(stratum) for stratum in strata.values() if stratum]
    if any(len(group) == 1 for group in groups):
        groups = [[value for group in groups for value in group]]
    total = sum(map(len, groups))
    spreads = [_spread(group) if len(group) > 1 else 0.0 for group in groups]
    if bounded and any(spreads):
        spreads = [spread or (len(g) + 1) / (len(g) + 2) ** 2 for spread, g in zip(spreads, groups, strict=True)]
    parts = [(len(g) * spread / total**2, len(g) - 1) for g, spread in zip(groups, spreads, strict=True) if spread]
    variance = math.fsum(part for part, _ in parts)
    if variance <= 0:
        return 0.0, float(total - len(groups))
    # Scaled first: the square of a tiny variance is 0.
    return variance, 1 / math.fsum((part / variance) ** 2 / freedom for part, freedom in parts)


def _spread(values: Sequence[float]) -> float:
    """The sample variance; exactly 0 for equal values, whatever the rounding of their mean."""
    if min(values) == max(values):
        return 0.0
    average = fmean(values)
    return math.fsum((value - average) ** 2 for value in values) / (len(values) - 1)


def _score_interval(share: float, size: float, z: float) -> tuple[float, float]:
    """Wilson's interval: every p with |share - p| <= z sqrt(p (1 - p) / size)."""
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(max(0.0, share * (1 - share)) / size + z * z / (4 * size * size))
    return max(0.0, middle - half), min(1.0, middle + half)


def _more_tasks(average: float, variance: float, tasks: int) -> int | None:
    """How many more tasks would tell a true difference of this size, with probability `POWER`."""
    if average == 0 or variance <= 0:
        return None
    z = NormalDist().inv_cdf((1 + LEVEL) / 2) + NormalDist().inv_cdf(POWER)
    return max(1, math.ceil(tasks * (z * z * variance / average**2 - 1)))


def _sentence(average: float, low: float | None, high: float | None, more: int | None) -> str:
    if low is None or high is None:
        return f"can't tell: {100 * average:+.1f} points on every task, which says nothing of how tasks vary"
    if low > 0:
        return f"better by {100 * average:.1f} points, 95% interval {100 * low:.1f} to {100 * high:.1f}"
    if high < 0:
        return f"worse by {-100 * average:.1f} points, 95% interval {-100 * high:.1f} to {-100 * low:.1f}"
    seen = f"can't tell: {100 * average:+.1f} points, 95% interval {100 * low:+.1f} to {100 * high:+.1f}"
    if more is None:
        return f"{seen}; no difference was seen"
    return f"{seen}, about {more:,} more tasks would" if more <= MOST_TASKS else f"{seen}; no number of tasks would"
