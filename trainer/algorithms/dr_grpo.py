"""GRPO without its two biases."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.algorithms.base import Advantage, Aggregation
from trainer.algorithms.grpo import GRPO


@dataclass(frozen=True)
class DrGRPO(GRPO):
    """Dr. GRPO (arXiv 2503.20783): GRPO without what favours easy and hard tasks (the division by the group's standard
    deviation) and long wrong answers (the division by an episode's own length).

    A = R - mean(R), and the sum over tokens is divided by a constant, the most tokens that the episodes could have.
    """

    algorithm: str = "dr_grpo"
    advantage: Advantage = "mean"
    """The return minus its group's mean; see `--algorithm grpo` for the others."""
    aggregation: Aggregation = "constant"
    """How token terms become one loss: here a sum over a constant, so that no token weighs less in a long episode."""
    clip_high: float = 0.2
    """The objective's ratio is clipped above at 1 + this."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
