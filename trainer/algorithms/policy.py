"""From log-probabilities to a policy-gradient objective.

pi is the current policy, pi_prox the policy at the start of the step, mu the behaviour policy. All tensors are [M]
float32 over sampled tokens; log-ratios are clamped to +-20 before `exp`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Level = Literal["token", "sequence"]
LOG_RATIO_BOUND = 20.0


def ratio(numerator: Tensor, denominator: Tensor, row: Tensor, level: Level) -> Tensor:
    """exp(numerator - denominator) per token, or exp of its mean over the row (GSPO, arXiv 2507.18071)."""
    log_ratio = numerator - denominator
    if level == "sequence":
        rows = int(row.max()) + 1 if row.numel() else 0
        count = torch.zeros(rows, device=row.device).index_add(0, row, torch.ones_like(log_ratio))
        mean = torch.zeros(rows, device=row.device).index_add(0, row, log_ratio) / count.clamp(min=1)
        log_ratio = mean[row]
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The objective to maximise, and where its gradient was clipped away.

    min(r A, clip(r, 1 - low, 1 + high) A): PPO with unequal bounds (DAPO, arXiv 2503.14476). With `dual` = c > 1, and
    only for A < 0, max(that, c A) bounds it from below (arXiv 1912.09729).
    """
    plain = ratio * advantage
    bounded = ratio.clamp(1 - low, 1 + high) * advantage
    objective = torch.minimum(plain, bounded)
    clipped = bounded < plain
    if dual:
        floor = dual * advantage
        below = (advantage < 0) & (objective < floor)
        objective = torch.where(below, floor, objective)
        clipped = clipped | below
    return objective, clipped


def truncated_weight(rho: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: min(rho, C)."""
    return rho.clamp(max=cap)


def masked_weight(rho: Tensor, low: float, high: float) -> Tensor:
    """Masked importance sampling (IcePop): rho inside [low, high], 0 outside."""
    return torch.where((rho >= low) & (rho <= high), rho, torch.zeros_like(rho))


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(pi || reference) at tokens drawn from pi: r - log r - 1, r = reference / pi."""
    log_ratio = (reference - current).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_ratio.exp() - log_ratio - 1
