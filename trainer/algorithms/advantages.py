"""Advantages from the returns of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-4


def mean_centred(returns: Tensor) -> Tensor:
    """A_i = R_i - mean(R): Dr. GRPO (arXiv 2503.20783). returns [G] -> [G]."""
    return returns - returns.mean()


def standardised(returns: Tensor, eps: float = EPSILON) -> Tensor:
    """A_i = (R_i - mean(R)) / (std(R) + eps): GRPO (arXiv 2402.03300), unbiased std. returns [G], G >= 2 -> [G]."""
    return mean_centred(returns) / (returns.std() + eps)


def leave_one_out(returns: Tensor) -> Tensor:
    """A_i = R_i - mean of the others = G / (G - 1) (R_i - mean(R)): RLOO (arXiv 2402.14740). [G], G >= 2 -> [G]."""
    return mean_centred(returns) * (len(returns) / (len(returns) - 1))


def batch_normalised(groups: Sequence[Tensor], eps: float = EPSILON) -> list[Tensor]:
    """A = (R - mean) / (std + eps) over all episodes of the batch: REINFORCE++ (arXiv 2501.03262), biased std."""
    if not groups:
        return []
    count = sum(len(group) for group in groups)
    mean = sum(float(group.sum()) for group in groups) / count
    variance = sum(float(((group - mean) ** 2).sum()) for group in groups) / count
    return [(group - mean) / (variance**0.5 + eps) for group in groups]


ADVANTAGES = {"mean": mean_centred, "mean_std": standardised, "leave_one_out": leave_one_out}
