"""Advantages from the rewards of one task's episodes."""

from __future__ import annotations

from torch import Tensor


def mean_centred(rewards: Tensor) -> Tensor:
    """A_i = R_i - mean(R): Dr. GRPO (arXiv 2503.20783). rewards [G] -> [G]."""
    return rewards - rewards.mean()


def standardised(rewards: Tensor, eps: float = 1e-4) -> Tensor:
    """A_i = (R_i - mean(R)) / (std(R) + eps): GRPO (arXiv 2402.03300), unbiased std. rewards [G], G >= 2 -> [G]."""
    return mean_centred(rewards) / (rewards.std() + eps)
