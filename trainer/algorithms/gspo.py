"""GRPO with ratios of whole sequences."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.algorithms import policy
from trainer.algorithms.base import Advantage, Aggregation
from trainer.algorithms.grpo import GRPO


@dataclass(frozen=True)
class GSPO(GRPO):
    """GSPO (arXiv 2507.18071): the reward is a whole sequence's, so the ratio and its clipping are too.

    r = exp(mean over the sequence's tokens of log pi - log mu), which is near 1: the bounds are a thousand times
    closer than a token's.
    """

    algorithm: str = "gspo"
    level: policy.Level = "sequence"
    """Ratios per sequence as exp(mean log-ratio), or per token."""
    advantage: Advantage = "mean_std"
    """The return minus its group's mean, over the group's standard deviation; see `--algorithm grpo` for the others."""
    aggregation: Aggregation = "sequence_mean"
    """How token terms become one loss: here the mean of episode means."""
    clip_low: float = 3e-4
    """The objective's ratio is clipped below at 1 - this."""
    clip_high: float = 4e-4
    """The objective's ratio is clipped above at 1 + this."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
