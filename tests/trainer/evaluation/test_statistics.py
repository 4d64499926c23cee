"""The figures against values worked out by hand, and the intervals against simulated evaluations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from trainer.evaluation.statistics import difference, estimate, pass_at_k, pass_hat_k, t_quantile


def test_pass_at_k_by_hand():
    # Of 4 attempts 2 passed: of the 6 pairs, 1 has no pass, and 1 has two.
    assert pass_at_k(4, 2, 1) == pytest.approx(1 / 2)
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 2, 3) == 1.0
    assert pass_hat_k(4, 2, 1) == pytest.approx(1 / 2)
    assert pass_hat_k(4, 2, 2) == pytest.approx(1 / 6)
    assert pass_hat_k(4, 2, 3) == 0.0
    assert (pass_at_k(3, 0, 2), pass_hat_k(3, 3, 3)) == (0.0, 1.0)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_both_are_unbiased(k):
    """Summed over every outcome of 5 attempts that pass with probability 0.3."""
    n, p = 5, 0.3
    chances = {c: math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)}
    assert sum(chance * pass_at_k(n, c, k) for c, chance in chances.items()) == pytest.approx(1 - (1 - p) ** k)
    assert sum(chance * pass_hat_k(n, c, k) for c, chance in chances.items()) == pytest.approx(p**k)


@pytest.mark.parametrize(
    ("freedom", "exact"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (10.9, 2.2281), (30, 2.0423), (1e9, 1.96)],
)
def test_quantiles_of_student_s_t(freedom, exact):
    assert t_quantile(freedom) == pytest.approx(exact, abs=0.005)


def test_an_interval_by_hand():
    # Rewards beyond [0, 1]: mean 4, sample variance 20/3, standard error sqrt(20/3/4) = 1.291, t(3) = 3.182.
    found = estimate({"": [1.0, 3.0, 5.0, 7.0]})
    assert (found.mean, found.tasks) == (4.0, 4)
    assert found.low == pytest.approx(4 - 3.182 * 1.291, abs=0.01)
    assert found.high == pytest.approx(4 + 3.182 * 1.291, abs=0.01)


def test_strata_by_hand():
    # Two strata of equal variance 2: half of the mean's variance of 2/2 each, weighted by (1/2)^2; t(2) = 4.303.
    found = estimate({"a": [10.0, 12.0], "b": [20.0, 22.0]})
    half = 4.303 * math.sqrt(0.25 * 1 + 0.25 * 1)
    assert (found.low, found.high) == (pytest.approx(16 - half, abs=1e-3), pytest.approx(16 + half, abs=1e-3))
    assert estimate({"": [10.0, 12.0, 20.0, 22.0]}).high > found.high  # what parts differ by is no uncertainty


def test_all_alike_is_no_certainty():
    for value in (0.0, 1.0):
        found = estimate({"": [value] * 20})
        z = t_quantile(19)
        width = z * z / (20 + z * z)  # Wilson's
        assert found.mean == value
        assert found.high - found.low == pytest.approx(width)
    assert estimate({"": [5.0] * 20}).low is None
    assert estimate({}).mean is None
    # A part in which every task was solved counts as uncertain too.
    some = [0.0, 1.0] * 10
    assert estimate({"a": some, "b": [1.0] * 20}).low < estimate({"a": some}).low / 2 + 0.5


def test_a_difference_by_hand():
    # Differences 0.1, 0.3, 0.2, 0.4: mean 0.25, standard error 0.0645, t(3) = 3.182.
    found = difference({"": [0.1, 0.3, 0.2, 0.4]}, bounded=True)
    assert (found.mean, found.more_tasks) == (pytest.approx(0.25), None)
    assert found.low == pytest.approx(0.25 - 3.182 * 0.06455, abs=1e-3)
    assert found.sentence == "better by 25.0 points, 95% interval 4.5 to 45.5"
    worse = difference({"": [-0.1, -0.3, -0.2, -0.4]}, bounded=True)
    assert worse.sentence == "worse by 25.0 points, 95% interval 4.5 to 45.5"


def test_how_many_more_tasks_would_tell():
    # Mean 0.1, standard deviation 0.5: (1.960 + 0.842)^2 (0.5 / 0.1)^2 = 196 tasks in all.
    values = [0.1 + sign * 0.5 * math.sqrt(19 / 20) for sign in [1, -1] * 10]
    found = difference({"": values}, bounded=False)
    assert found.more_tasks == 197 - 20
    assert found.sentence == "can't tell: +10.0 points, 95% interval -13.4 to +33.4, about 177 more tasks would"
    none = difference({"": [1.0, -1.0] * 10}, bounded=True)
    assert none.more_tasks is None
    assert none.sentence.endswith("no difference was seen")


def test_equal_differences_are_no_certainty():
    same = difference({"": [0.0] * 10}, bounded=True)
    z = t_quantile(9)
    assert (same.low, same.high) == (pytest.approx(-z * z / (10 + z * z)), pytest.approx(z * z / (10 + z * z)))
    assert "can't tell" in same.sentence
    ceiling = difference({"": [1.0] * 10}, bounded=True)
    assert 0 < ceiling.low < ceiling.high == 1.0
    assert difference({"": [0.5] * 10}, bounded=False).low is None
    assert difference({}, bounded=True).sentence == "can't tell: no task was scored in both"


EVALUATIONS, ATTEMPTS = 2000, 4


def attempts_at(rate: float, correlation: float, tasks: int, seed: int) -> np.ndarray:
    """[EVALUATIONS, tasks] mean scores of `ATTEMPTS` 0/1 attempts, whose correlation within a task is as given."""
    draw = np.random.default_rng(seed)
    spread = (1 - correlation) / correlation
    solvable = draw.beta(rate * spread, (1 - rate) * spread, size=(EVALUATIONS, tasks))
    return draw.binomial(ATTEMPTS, solvable) / ATTEMPTS


@pytest.mark.parametrize(
    ("tasks", "rate", "correlation"),
    [*itertools.product([50, 100], [0.1, 0.5, 0.9], [0.1, 0.4, 0.8]), (20, 0.5, 0.4), (20, 0.3, 0.1), (200, 0.05, 0.4)],
)
def test_the_95_percent_interval_holds_in_93_to_97_percent_of_evaluations(tasks, rate, correlation):
    scores = attempts_at(rate, correlation, tasks, seed=1)
    found = [estimate({"": row}) for row in scores.tolist()]
    covered = np.mean([each.low <= rate <= each.high for each in found])
    assert 0.93 <= covered <= 0.97


def test_so_does_that_of_parts_that_differ_and_of_a_paired_difference():
    parts = {name: attempts_at(rate, 0.4, 30, seed) for seed, (name, rate) in enumerate([("a", 0.2), ("b", 0.8)])}
    rows = [{name: of[i].tolist() for name, of in parts.items()} for i in range(EVALUATIONS)]
    found = [estimate(row) for row in rows]
    assert 0.93 <= np.mean([each.low <= 0.5 <= each.high for each in found]) <= 0.97
    # The second model solves what the first does with one tenth less, and fails elsewhere as it does.
    draw = np.random.default_rng(7)
    solvable = draw.beta(1.0, 1.0, size=(EVALUATIONS, 60))
    gaps = (draw.binomial(ATTEMPTS, solvable) - draw.binomial(ATTEMPTS, 0.9 * solvable)) / ATTEMPTS
    told = [difference({"": row}, bounded=True) for row in gaps.tolist()]
    assert 0.93 <= np.mean([each.low <= 0.05 <= each.high for each in told]) <= 0.97


def test_independent_attempts_in_one_interval_would_be_too_sure():
    """Why tasks are the sample: the interval over all attempts as if they were independent holds far too seldom."""
    scores = attempts_at(0.5, 0.8, 50, seed=2)
    spread = np.sqrt(scores.mean(1) * (1 - scores.mean(1)) / (50 * ATTEMPTS)) * 1.96
    assert np.mean(np.abs(scores.mean(1) - 0.5) <= spread) < 0.8
