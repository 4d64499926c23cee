"""What the batch and the learner ask of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trainer.config import AlgorithmConfig


@dataclass(frozen=True)
class TokenTerms:
    """The M sampled tokens of a micro-batch of S rows. All float32, in nats."""

    current: Tensor  # [M] log pi, with gradient
    proximal: Tensor  # [M] log pi at the start of the step, detached
    behaviour: Tensor  # [M] log mu, as the engine reported it
    entropy: Tensor  # [M] of pi, with gradient
    advantage: Tensor  # [M]
    row: Tensor  # [M] int64 in [0, S)
    reference: Tensor | None = None  # [M] log of the reference policy


class Algorithm(Protocol):
    keep_zero_variance: bool
    needs_reference: bool

    def __init__(self, config: AlgorithmConfig) -> None: ...

    def advantages(self, rewards: Tensor) -> Tensor:
        """Advantages [G] of a group's rewards [G], G >= 2."""
        ...

    def scales(self, sizes: list[int], episodes: list[int], longest: int) -> list[float]:
        """The weight of each token of every row in a batch whose rows have `sizes` sampled tokens and belong to
        `episodes`; `longest` is the most sampled tokens that an episode may have."""
        ...

    def loss(self, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        """Loss of each token [M], and whether its gradient was clipped away [M] bool."""
        ...
