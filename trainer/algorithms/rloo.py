"""REINFORCE with the other episodes as the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.algorithms.base import Advantage, Aggregation
from trainer.algorithms.grpo import GRPO


@dataclass(frozen=True)
class RLOO(GRPO):
    """RLOO (arXiv 2402.14740): REINFORCE, whose baseline is the mean return of the task's other episodes: unbiased.

    A = R - mean of the others. On-policy its gradient is that of A log pi summed over an episode; the clipped ratio is
    for what is not.
    """

    algorithm: str = "rloo"
    advantage: Advantage = "leave_one_out"
    """The return minus the mean of the group's others; see `--algorithm grpo` for the others."""
    aggregation: Aggregation = "constant"
    """How token terms become one loss: here a sum over a constant, as REINFORCE adds up an episode's tokens."""
    clip_high: float = 0.2
    """The objective's ratio is clipped above at 1 + this."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
