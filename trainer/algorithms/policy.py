"""From log-probabilities to a policy-gradient objective.

pi is the current policy, pi_prox the policy at the start of the step, mu the behaviour policy. All tensors are [M]
float32 over sampled tokens; log-ratios are clamped to +-20 before `exp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence"]
LOG_RATIO_BOUND = 20.0


def ratio(numerator: Tensor, denominator: Tensor, row: Tensor, level: Level) -> Tensor:
    """exp(numerator - denominator) per token, or exp of its mean over the row (GSPO, arXiv 2507.18071)."""
    log_ratio = numerator - denominator
    if level == "sequence":
        rows = int(row.max()) + 1 if row.numel() else 0
        zeros = log_ratio.new_zeros(rows)
        count = zeros.index_add(0, row, log_ratio.new_ones(len(row)))
        mean = zeros.index_add(0, row, log_ratio) / count.clamp(min=1)
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
    objective = plain.minimum(bounded)
    clipped = bounded < plain
    if dual:
        floor = dual * advantage
        below = (advantage < 0) & (objective < floor)
        objective = floor.where(below, objective)
        clipped = clipped | below
    return objective, clipped


def clipped_weight(ratio: Tensor, current: Tensor, advantage: Tensor, high: float) -> tuple[Tensor, Tensor]:
    """sg(min(r, 1 + high)) A log pi, and where r was above: CISPO (arXiv 2506.13585). No token loses its gradient."""
    weight = ratio.detach()
    return weight.clamp(max=1 + high) * advantage * current, weight > 1 + high


def trust_region(ratio: Tensor, advantage: Tensor, divergence: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """r A, without gradient where the policy has moved further than `bound` and A would move it further still, and
    where that is: DPPO (arXiv 2602.04879)."""
    r = ratio.detach()
    outside = (divergence.detach() > bound) & (((advantage > 0) & (r > 1)) | ((advantage < 0) & (r < 1)))
    objective = ratio * advantage
    return objective.detach().where(outside, objective), outside


def binary_tv(current: Tensor, old: Tensor) -> Tensor:
    """|pi(a) - mu(a)|: the total variation between the two policies, each reduced to "the sampled token or another"."""
    return (current.exp() - old.exp()).abs()


def binary_kl(current: Tensor, old: Tensor) -> Tensor:
    """KL(mu || pi) in nats, each reduced to "the sampled token or another"."""
    p, q = (x.exp().clamp(1e-7, 1 - 1e-7) for x in (old, current))
    return p * (p.log() - q.log()) + (1 - p) * ((-p).log1p() - (-q).log1p())


def truncated_weight(rho: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: min(rho, C)."""
    return rho.clamp(max=cap)


def masked_weight(rho: Tensor, low: float, high: float) -> Tensor:
    """Masked importance sampling (IcePop): rho inside [low, high], 0 outside."""
    return rho.where((rho >= low) & (rho <= high), 0.0)


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(pi || reference) at tokens drawn from pi: r - log r - 1, r = reference / pi."""
    log_ratio = (reference - current).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_ratio.exp() - log_ratio - 1
