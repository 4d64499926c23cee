"""The optimizers, and how the learning rate moves over a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.config import OptimConfig


class Muon(torch.optim.Optimizer):
    """Muon: momentum whose update is orthogonalised by five Newton-Schulz iterations (Jordan et al., 2024).

    `torch.optim.Muon` computes those in bfloat16, which a CPU without bfloat16 units does an order of magnitude
    slower than float32; here they run in the parameter's dtype, over all matrices of a shape at once.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    state = self.state[p]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(p)
                    buffer = state["momentum"].mul_(group["momentum"]).add_(p.grad)
                    updates.append(p.grad + group["momentum"] * buffer)  # Nesterov
                scale = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Push the singular values of each matrix [B, m, n] towards 1 with a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def build(model: PreTrainedModel, config: OptimConfig, momentum: float = 0.9) -> list[torch.optim.Optimizer]:
    """The optimizers of `model`'s trainable parameters, at their peak learning rates."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    outer = {id(p) for m in (embedding, head) if m is not None for p in m.parameters()}
    hidden = [p for p in trainable.values() if p.dim() == 2 and id(p) not in outer]
    if config.optimizer == "adamw" or not hidden:
        hidden = []
    chosen = {id(p) for p in hidden}
    rest = [p for p in trainable.values() if id(p) not in chosen]
    optimizers: list[torch.optim.Optimizer] = []
    if hidden:
        optimizers.append(Muon(hidden, lr=config.muon_lr, momentum=momentum, weight_decay=config.weight_decay))
    if rest:
        optimizers.append(torch.optim.AdamW(rest, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay))
    return optimizers


def schedule(step: int, steps: int, kind: Literal["constant", "linear", "cosine"], warmup_steps: int) -> float:
    """The share of the peak learning rate at update `step` (from 0) of `steps`."""
    warmup = min(1.0, (step + 1) / (warmup_steps + 1))
    progress = max(0.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    fall = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))}
    return warmup * max(0.0, fall[kind])


def set_learning_rate(optimizers: list[torch.optim.Optimizer], peaks: list[list[float]], share: float) -> None:
    for optimizer, peak in zip(optimizers, peaks, strict=True):
        for group, lr in zip(optimizer.param_groups, peak, strict=True):
            group["lr"] = lr * share


def peaks(optimizers: list[torch.optim.Optimizer]) -> list[list[float]]:
    return [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
