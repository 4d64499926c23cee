"""A reward is a weighted sum of named, bounded components."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Scope = Literal["episode", "step", "group"]

ROUNDING = 1e-9  # how far outside its range a value may lie through float arithmetic alone


class RewardError(RuntimeError):
    """A reward could not be computed. The episode is errored: it is retried, and never scored 0."""


@dataclass(frozen=True, slots=True)
class Component:
    """One named part of a reward.

    `weight` 0 makes it a metric. `bounds` are the least and the greatest value that the author allows; for scope
    "step" they hold for each step's value, whose sum over the episode is the component's value.
    """

    name: str
    weight: float = 1.0
    bounds: tuple[float, float] = (0.0, 1.0)
    scope: Scope = "episode"

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not math.isfinite(self.weight):
            raise ValueError(f"reward {self.name!r}: its weight is {self.weight}")
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"reward {self.name!r}: its range {self.bounds} is not a finite interval")

    def check(self, value: object) -> float:
        """`value` as a float. Raises `RewardError` for what is not a finite number inside the bounds."""
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise RewardError(f"reward {self.name!r} is not a number: {value!r:.80}") from error
        low, high = self.bounds
        if not math.isfinite(number):
            raise RewardError(f"reward {self.name!r} is {number}")
        if not low - ROUNDING <= number <= high + ROUNDING:
            raise RewardError(f"reward {self.name!r} is {number}, outside its range [{low}, {high}]")
        return min(max(number, low), high)


@dataclass(frozen=True, slots=True)
class Score:
    """What an episode earned: `reward` is the weighted sum of `components` (metrics included, at weight 0)."""

    reward: float
    components: dict[str, float]


def compose(components: Iterable[Component], values: Mapping[str, float]) -> Score:
    """Sum `values` by weight; a component without a value is left out. Raises `RewardError` for a sum not finite."""
    present = [component for component in components if component.name in values]
    reward = math.fsum(component.weight * values[component.name] for component in present)
    if not math.isfinite(reward):
        raise RewardError(f"the weighted sum of {sorted(values)} is {reward}")
    return Score(reward, {component.name: values[component.name] for component in present})
