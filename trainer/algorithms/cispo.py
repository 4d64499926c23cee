"""A clipped weight instead of a clipped objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.algorithms import policy
from trainer.algorithms.base import Algorithm, TokenTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CISPO(Algorithm):
    """CISPO (arXiv 2506.13585): the importance weight is clipped rather than the objective, so that no token loses its
    gradient, rare and decisive ones among them.

    J = sg(min(r, 1 + high)) A log pi, where sg stops the gradient.
    """

    algorithm: str = "cispo"
    clip_high: float = 4.0
    """The weight is at most 1 + this (4 to 8 work alike in arXiv 2510.13786)."""

    def objective(self, ratio: Tensor, old: Tensor, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        return policy.clipped_weight(ratio, terms.current, terms.advantage, self.clip_high)
