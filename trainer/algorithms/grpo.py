"""Group-relative policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.algorithms import policy
from trainer.algorithms.base import Algorithm, TokenTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GRPO(Algorithm):
    """GRPO (arXiv 2402.03300): a task's other episodes are the baseline, a clipped ratio bounds each step.

    J = min(r A, clip(r, 1 - low, 1 + high) A). By default with what later work found better: no division by the
    standard deviation (2503.20783), a higher upper bound and a mean over tokens (2503.14476).
    """

    algorithm: str = "grpo"
    clip_low: float = 0.2
    """The objective's ratio is clipped below at 1 - this."""
    clip_high: float = 0.28
    """The objective's ratio is clipped above at 1 + this (DAPO, 2503.14476)."""
    dual_clip: float = 0.0
    """Bound c > 1 on the ratio where the advantage is negative (1912.09729); 0 is off."""

    def objective(self, ratio: Tensor, old: Tensor, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        return policy.clipped_surrogate(ratio, terms.advantage, self.clip_low, self.clip_high, self.dual_clip)
