"""A trust region in the divergence of policies instead of the ratio of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer.algorithms import policy
from trainer.algorithms.base import Algorithm, TokenTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DPPO(Algorithm):
    """DPPO (arXiv 2602.04879): a ratio says little of how far a policy has moved: for a rare token it is large after a
    harmless change, for a likely one small after a grave one. So a token loses its gradient where the divergence of the
    two policies is above a bound, and its advantage would drive them further apart.

    J = r A, without gradient where D > bound and (A > 0 and r > 1, or A < 0 and r < 1). D is that of the distributions
    over "this token or another".
    """

    algorithm: str = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """D: total variation |pi - mu|, or KL(mu || pi) in nats."""
    divergence_bound: float = 0.15
    """The largest D (0.15 suits tv, 0.05 kl)."""

    def objective(self, ratio: Tensor, old: Tensor, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        measure = policy.binary_tv if self.divergence == "tv" else policy.binary_kl
        moved = measure(terms.current.detach(), old)
        return policy.trust_region(ratio, terms.advantage, moved, self.divergence_bound)
