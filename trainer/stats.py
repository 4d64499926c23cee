"""Figures over the sampled tokens of one step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.algorithms import TokenTerms, policy
from trainer.batch import Row


class TokenStats:
    """Sums over tokens, as micro-batches come in, of what tells whether off-policy training is healthy.

    kl_mu_pi: mean of log mu - log pi_prox, an estimate of KL(mu || pi) in nats. ess: (sum rho)^2 / (n sum rho^2),
    rho = pi_prox / mu, the effective share of the samples. A largest ratio in the tens precedes a collapse.
    """

    def __init__(self, version: int, device: torch.device) -> None:
        self.version = version
        self.sums = torch.zeros(
            7, dtype=torch.float64, device=device
        )  # n, log mu - log pi, rho, rho^2, H, clipped, loss
        self.extremes = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64, device=device)  # max rho, max 1/rho, max lag
        self.lag_sum = torch.zeros(1, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, terms: TokenTerms, clipped: Tensor, loss: Tensor, rows: list[Row]) -> None:
        rho = policy.ratio(terms.proximal, terms.behaviour, terms.row, "token")
        gap = terms.behaviour - terms.proximal
        values = [torch.ones_like(rho), gap, rho, rho * rho, terms.entropy, clipped.float()]
        self.sums += torch.stack([*(v.double().sum() for v in values), loss.detach().double()])
        lags = torch.tensor([self.version - v for r in rows for v in r.versions if v >= 0], dtype=torch.float64)
        self.lag_sum += lags.sum()
        newest = torch.stack([rho.max().double(), (1 / rho).max().double(), lags.max().to(rho.device)])
        self.extremes = torch.maximum(self.extremes, newest)

    def result(self) -> dict[str, float]:
        if dist.is_initialized():
            dist.all_reduce(self.sums)
            dist.all_reduce(self.lag_sum)
            dist.all_reduce(self.extremes, op=dist.ReduceOp.MAX)
        n, gap, rho, rho2, entropy, clipped, loss = self.sums.tolist()
        if n == 0:
            return {"train/tokens": 0.0}
        largest, smallest, lag_max = self.extremes.tolist()
        return {
            "train/tokens": n,
            "train/loss": loss,
            "policy/kl_mu_pi": gap / n,
            "policy/ess": rho * rho / (n * rho2),
            "policy/ratio_max": largest,
            "policy/ratio_min": 1 / smallest,
            "policy/entropy": entropy / n,
            "policy/clipped_share": clipped / n,
            "lag/mean": self.lag_sum.item() / n,
            "lag/max": lag_max,
        }
