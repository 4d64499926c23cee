"""Group-relative policy optimisation with off-policy corrections."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.algorithms import advantages, aggregate, policy
from trainer.algorithms.base import TokenTerms
from trainer.config import AlgorithmConfig


class GRPO:
    """GRPO (arXiv 2402.03300): a task's other episodes are the baseline, a clipped ratio bounds each step.

    The loss of a token is ``-w * min(r A, clip(r, 1 - low, 1 + high) A) - entropy_coef H + kl_coef k3``, where

    ============  ======================  ===============================================================
    correction    r                       w
    ============  ======================  ===============================================================
    clip          pi / mu                 1
    none          pi / pi_prox            1 (biased as soon as mu is older than pi_prox)
    tis           pi / pi_prox            min(pi_prox / mu, C)
    mis           pi / pi_prox            pi_prox / mu inside [a, b], else 0 (IcePop)
    decoupled     pi / pi_prox            pi_prox / mu (decoupled PPO, arXiv 2505.24298)
    ============  ======================  ===============================================================

    Ratios are per token, or per sequence as exp(mean log-ratio) (GSPO, arXiv 2507.18071).
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.keep_zero_variance = config.keep_zero_variance
        self.needs_reference = config.kl_coef > 0
        self.scales = aggregate.AGGREGATIONS[config.aggregation]

    def advantages(self, rewards: Tensor) -> Tensor:
        centre = advantages.standardised if self.config.advantage == "mean_std" else advantages.mean_centred
        return centre(rewards)

    def loss(self, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        config = self.config
        against = terms.behaviour if config.correction == "clip" else terms.proximal
        ratio = policy.ratio(terms.current, against, terms.row, config.level)
        objective, clipped = policy.clipped_surrogate(
            ratio, terms.advantage, config.clip_low, config.clip_high, config.dual_clip
        )
        loss = -self._weight(terms) * objective - config.entropy_coef * terms.entropy
        if terms.reference is not None:
            loss = loss + config.kl_coef * policy.k3(terms.current, terms.reference)
        return loss, clipped

    def _weight(self, terms: TokenTerms) -> Tensor:
        config = self.config
        rho = policy.ratio(terms.proximal, terms.behaviour, terms.row, config.level)
        match config.correction:
            case "tis":
                return policy.truncated_weight(rho, config.tis_cap)
            case "mis":
                return policy.masked_weight(rho, config.mis_low, config.mis_high)
            case "decoupled":
                return rho
            case _:  # "clip" has the ratio to mu in the surrogate, "none" leaves it out
                return torch.ones_like(rho)
