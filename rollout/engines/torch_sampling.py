"""Drawing tokens: a draw is a function of its request's seed and its position, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rollout.engine import Sampling

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seeds: Sequence[int], positions: Sequence[int], engine_seed: int = 0) -> np.ndarray:
    """[B] float32 in [0, 1): the splitmix64 generator's output for each (seed, position), top 24 bits."""
    mask = 2**64 - 1
    state = np.array([(seed ^ (engine_seed << 32)) & mask for seed in seeds], np.uint64)
    state = _mix(state) + np.array(positions, np.uint64) * _GOLDEN
    return (_mix(_mix(state)) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _mix(state: np.ndarray) -> np.ndarray:
    """Splitmix64's finalizer (Steele, Lea and Flood 2014), modulo 2**64."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def draw(
    logits: torch.Tensor, sampling: Sequence[Sampling], positions: Sequence[int], engine_seed: int = 0
) -> tuple[list[int], list[float]]:
    """A token for each row of `logits` [B, vocabulary], and its log-probability under the distribution drawn from.

    `positions[i]` is the place of the new token in its conversation. A greedy draw has log-probability 0.
    """
    logits = logits.float()
    temperature = np.array([s.temperature for s in sampling], np.float32)
    greedy = temperature == 0
    if (temperature != 1).any():
        divisor = torch.from_numpy(np.where(greedy, 1, temperature)).to(logits.device)
        logits = logits / divisor[:, None]
    limited = [i for i, s in enumerate(sampling) if (s.top_k > 0 or s.top_p < 1) and s.temperature > 0]
    if limited:
        index = torch.tensor(limited, device=logits.device)
        logits = logits.index_copy(0, index, _limit(logits[index], [sampling[i] for i in limited]))
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        tokens = logits.argmax(-1)
    else:
        u = torch.from_numpy(uniform([s.seed for s in sampling], positions, engine_seed)).to(logits.device)
        tokens = _invert(logprobs, u)
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy).to(logits.device), logits.argmax(-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    return tokens.tolist(), [min(p, 0.0) * (not g) for p, g in zip(chosen, greedy.tolist(), strict=True)]


def _invert(logprobs: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The first token of each row at which the cumulative probability exceeds `u` times its total. A token of
    probability 0 is never that."""
    precise = torch.float32 if logprobs.shape[-1] <= 4096 else torch.float64
    cumulative = logprobs.exp().cumsum(-1, dtype=precise)
    target = u.to(precise)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logprobs.shape[-1] - 1)


def _limit(logits: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """`logits` with -inf outside each row's `top_k` likeliest tokens and the fewest that hold `top_p`."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    size = logits.shape[-1]
    rank = torch.arange(size, device=logits.device)
    top_k = torch.tensor([s.top_k if s.top_k > 0 else size for s in sampling], device=logits.device)[:, None]
    top_p = torch.tensor([s.top_p for s in sampling], device=logits.device)[:, None]
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = (before >= top_p) & (rank > 0)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, ordered.masked_fill(outside, -torch.inf))
