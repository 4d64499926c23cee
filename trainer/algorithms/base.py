"""What an algorithm is: options, and the functions that the batch and the learner ask of it.

Algorithms import torch for its types alone: the command line describes their options before torch is loaded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer.algorithms import policy
from trainer.algorithms.advantages import ADVANTAGES
from trainer.algorithms.aggregate import AGGREGATIONS

if TYPE_CHECKING:
    from torch import Tensor

Advantage = Literal["mean", "mean_std", "leave_one_out"]
Aggregation = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True)
class Outcomes:
    """What the G scored episodes of a group came to."""

    rewards: Tensor  # [G] float64
    sampled_tokens: Tensor  # [G] int64, of each episode


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


@dataclass(frozen=True)
class Algorithm:
    """A frozen dataclass: its fields are the command line's options, its docstring what `--help` says of it. A new one
    extends this one, or another, with a name, an `objective`, and defaults and options of its own.

    The loss of a token is ``-w J - entropy_coef H + kl_coef k3``, with the objective J of the algorithm and

    ============  ======================  ===============================================================
    correction    ratio in J              w
    ============  ======================  ===============================================================
    clip          pi / mu                 1
    none          pi / pi_prox            1 (biased as soon as mu is older than pi_prox)
    tis           pi / pi_prox            min(pi_prox / mu, C)
    mis           pi / pi_prox            pi_prox / mu inside [a, b], else 0 (IcePop)
    decoupled     pi / pi_prox            pi_prox / mu (decoupled PPO, arXiv 2505.24298)
    ============  ======================  ===============================================================
    """

    algorithm: str = ""
    """What learns: grpo, dr_grpo, dapo, gspo, cispo, dppo, rloo, reinforce_pp, or `my_file.py:MyAlgorithm`. Each has
    defaults and options of its own: `--algorithm NAME --help` explains them."""
    advantage: Advantage = "mean"
    """mean: the return minus its group's mean (Dr. GRPO, 2503.20783); mean_std: that over the group's standard
    deviation (GRPO, 2402.03300); leave_one_out: minus the mean of the others (RLOO, 2402.14740)."""
    correction: Literal["clip", "none", "tis", "mis", "decoupled"] = "clip"
    """Off-policy correction. clip: ratios are taken to the behaviour policy. The others take them to the policy at the
    start of the step and weight each term by rho = that policy / behaviour policy: none = 1,
    tis = min(rho, --tis-cap), mis = rho inside [--mis-low, --mis-high] and else 0, decoupled = rho."""
    tis_cap: float = 2.0
    """Upper bound C of truncated importance sampling."""
    mis_low: float = 0.5
    """Lower bound of masked importance sampling (IcePop)."""
    mis_high: float = 5.0
    """Upper bound of masked importance sampling (IcePop)."""
    level: policy.Level = "token"
    """Ratios per token, or per sequence as exp(mean log-ratio) (GSPO, 2507.18071)."""
    aggregation: Aggregation = "token_mean"
    """How token terms become one loss: mean over the batch's tokens, mean of episode means, or sum over a constant."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(policy || the run's starting weights); 0 is off."""
    keep_zero_variance: bool = False
    """Keep groups whose returns are all equal. Where the baseline is the group's they have no policy gradient, but
    count in the denominator."""
    dynamic_sampling: bool = False
    """Replace groups whose returns are all equal by others, so that every step has all of --groups-per-step (DAPO,
    2503.14476)."""

    @property
    def least_group(self) -> int:
        """Episodes of a task that it compares: a lone one is its own baseline, and its advantage 0."""
        return 2

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    def check(self) -> None:
        """Raise `ValueError`, naming the option, for values that make no sense."""
        if self.keep_zero_variance and self.dynamic_sampling:
            raise ValueError("--keep-zero-variance and --dynamic-sampling contradict each other: choose one")

    def returns(self, outcomes: Outcomes) -> Tensor:
        """[G] float64: the rewards that advantages are made of."""
        return outcomes.rewards

    def advantages(self, groups: Sequence[Tensor]) -> list[Tensor]:
        """Advantages [G] for the returns [G] of every group of a batch, G >= `least_group`."""
        return [ADVANTAGES[self.advantage](returns) for returns in groups]

    def scales(self, sizes: list[int], episodes: list[int], longest: int) -> list[float]:
        """The weight of each token of every row in a batch whose rows have `sizes` sampled tokens and belong to
        `episodes`; `longest` is the most sampled tokens that an episode may have."""
        return AGGREGATIONS[self.aggregation](sizes, episodes, longest)

    @abstractmethod
    def objective(self, ratio: Tensor, old: Tensor, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        """J [M], and whether its gradient was clipped away [M]; `ratio` [M] is pi's to the policy whose
        log-probabilities are `old` [M]."""

    def loss(self, terms: TokenTerms) -> tuple[Tensor, Tensor]:
        """Loss of each token [M], and whether its gradient was clipped away [M] bool."""
        old = terms.behaviour if self.correction == "clip" else terms.proximal
        ratio = policy.ratio(terms.current, old, terms.row, self.level)
        objective, clipped = self.objective(ratio, old, terms)
        loss = -self._weight(terms) * objective - self.entropy_coef * terms.entropy
        if terms.reference is not None:
            loss = loss + self.kl_coef * policy.k3(terms.current, terms.reference)
        return loss, clipped

    def _weight(self, terms: TokenTerms) -> Tensor:
        rho = policy.ratio(terms.proximal, terms.behaviour, terms.row, self.level)
        match self.correction:
            case "tis":
                return policy.truncated_weight(rho, self.tis_cap)
            case "mis":
                return policy.masked_weight(rho, self.mis_low, self.mis_high)
            case "decoupled":
                return rho
            case _:  # "clip" has the ratio to mu in the objective, "none" leaves it out
                return rho.new_ones(len(rho))
