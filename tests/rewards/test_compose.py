from __future__ import annotations

from typing import Any

import pytest

from rewards.compose import Component, RewardError, compose


def test_the_reward_is_the_weighted_sum() -> None:
    components = [Component("a"), Component("b", -0.1, (0, 5)), Component("metric", 0.0, (0, 1e9))]
    score = compose(components, {"a": 1.0, "b": 3.0, "metric": 7.0})
    assert score.reward == pytest.approx(0.7)
    assert score.components == {"a": 1.0, "b": 3.0, "metric": 7.0}
    assert compose(components, {"a": 0.5}).components == {"a": 0.5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.01, 1.01, "x", None, [1], 10**400])
def test_values_that_are_refused(value: Any) -> None:
    with pytest.raises(RewardError, match="'a'"):
        Component("a").check(value)


@pytest.mark.parametrize(("value", "kept"), [(True, 1.0), (1 + 1e-12, 1.0), (-1e-12, 0.0), ("0.5", 0.5)])
def test_values_that_are_taken(value: Any, kept: float) -> None:
    assert Component("a").check(value) == kept


def test_a_sum_that_overflows_is_refused() -> None:
    components = [Component("a", 1e308, (0, 10)), Component("b", 1e308, (0, 10))]
    with pytest.raises((RewardError, OverflowError)):
        compose(components, {"a": 10.0, "b": 10.0})


@pytest.mark.parametrize(("weight", "bounds"), [(float("nan"), (0, 1)), (1, (1, 0)), (1, (0, float("inf")))])
def test_components_must_be_finite(weight: float, bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="'a'"):
        Component("a", weight, bounds)
