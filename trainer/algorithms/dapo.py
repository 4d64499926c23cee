"""GRPO with unequal clipping, dynamic sampling and a soft length limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.algorithms.base import Advantage, Outcomes
from trainer.algorithms.grpo import GRPO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DAPO(GRPO):
    """DAPO (arXiv 2503.14476): GRPO with a higher upper bound on the ratio, groups without a difference replaced by
    others, a mean over all tokens, and a length penalty that sets in before the limit.

    The penalty on an episode of n sampled tokens, with the limit L and the buffer B, is 0 up to n = L - B, then
    (L - B - n) / B up to n = L, and -1 above.
    """

    algorithm: str = "dapo"
    advantage: Advantage = "mean_std"
    """The return minus its group's mean, over the group's standard deviation; see `--algorithm grpo` for the others."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    dynamic_sampling: bool = True
    """Replace groups whose returns are all equal by others, so that every step has all of --groups-per-step."""
    overlong_tokens: int = 0
    """Sampled tokens L of an episode above which the length penalty is -1; 0 is off."""
    overlong_buffer: int = 0
    """Tokens B before that in which it grows."""

    def check(self) -> None:
        super().check()
        if not 0 <= self.overlong_buffer <= self.overlong_tokens:
            raise ValueError(
                f"--overlong-buffer {self.overlong_buffer} must be between 0 and --overlong-tokens "
                f"{self.overlong_tokens}"
            )

    def returns(self, outcomes: Outcomes) -> Tensor:
        if not self.overlong_tokens:
            return outcomes.rewards
        over = outcomes.sampled_tokens - (self.overlong_tokens - self.overlong_buffer)
        return outcomes.rewards - (over / max(1, self.overlong_buffer)).clamp(0.0, 1.0)
