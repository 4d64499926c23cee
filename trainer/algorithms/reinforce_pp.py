"""REINFORCE with advantages normalised over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.algorithms.advantages import batch_normalised, mean_centred
from trainer.algorithms.grpo import GRPO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReinforcePP(GRPO):
    """REINFORCE++ (arXiv 2501.03262): the baseline and the scale of an advantage are the whole batch's, so that they
    are not a few episodes' noise, and one episode a task is enough.

    A = (R - mean) / std over all episodes of the batch; with --group-baseline, of R minus its group's mean first.
    """

    algorithm: str = "reinforce_pp"
    group_baseline: bool = False
    """Subtract the group's mean before normalising ("REINFORCE++-baseline")."""
    clip_high: float = 0.2
    """The objective's ratio is clipped above at 1 + this."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    keep_zero_variance: bool = True
    """Keep groups whose returns are all equal: the batch is their baseline."""

    @property
    def least_group(self) -> int:
        return 2 if self.group_baseline or not self.keep_zero_variance else 1

    def check(self) -> None:
        super().check()
        if self.advantage != "mean":
            raise ValueError(f"--advantage {self.advantage}: reinforce_pp has its own, and --group-baseline beside it")

    def advantages(self, groups: Sequence[Tensor]) -> list[Tensor]:
        return batch_normalised([mean_centred(group) if self.group_baseline else group for group in groups])
