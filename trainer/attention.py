"""Attention over packed rows for any transformers model, and the forward that uses it.

Sequences are laid in one row of N tokens, so that no linear layer sees padding. Those that begin alike share their
beginning: a group's prompt is the same to a causal model in all of its episodes, so it is computed once. Only attention
sees whole sequences: their queries and keys are gathered into a padded [S, L] grid, thrown away after every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

NAME = "slipstream_packed"


@dataclass(frozen=True)
class Layout:
    """S sequences of at most L tokens in a packed row of N tokens, N at most the sum of their lengths."""

    tokens: Tensor  # [N] int64
    positions: Tensor  # [N] int64, 0 at a sequence's first token
    grid: Tensor  # [S, L] int64: index into the row; padding repeats the sequence's first token
    cells: Tensor  # [N] int64: index into the flattened grid, of one of the sequences that have the token

    @classmethod
    def of(cls, sequences: Sequence[list[int]], device: torch.device | str = "cpu") -> Layout:
        """In the order of their tokens each sequence has its longest known beginning in common with the one before."""
        grid = np.empty((len(sequences), max(map(len, sequences))), np.int64)
        tokens: list[int] = []
        before: list[int] = []
        own = np.empty(0, np.int64)
        for index in sorted(range(len(sequences)), key=lambda i: sequences[i]):
            sequence = sequences[index]
            shared = _common(before, sequence)
            own = np.concatenate((own[:shared], np.arange(len(tokens), len(tokens) + len(sequence) - shared)))
            tokens += sequence[shared:]
            grid[index, : len(own)], grid[index, len(own) :] = own, own[0]
            before = sequence
        inside = np.arange(grid.shape[1]) < np.array([[len(s)] for s in sequences])
        cells, positions = np.empty((2, len(tokens)), np.int64)
        cells[grid[inside]] = inside.ravel().nonzero()[0]
        positions[:] = cells % grid.shape[1]
        return cls(*(torch.from_numpy(x).to(device) for x in (np.array(tokens), positions, grid, cells)))


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens the two share from the start on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence. query [1, H, N, D], key and value [1, KV, N, D] -> [1, N, H, D]."""
    length = layout.grid.shape[1]
    if sliding_window is not None and length > sliding_window:
        raise ValueError(f"a sequence of {length} tokens is longer than the model's sliding window of {sliding_window}")
    # Padding cells come after a sequence's own tokens, so the causal mask alone keeps them out of every real token.
    q, k, v = (_gather(x[0], layout.grid) for x in (query, key, value))  # [S, heads, L, D]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)[layout.cells][None], None


def _gather(x: Tensor, grid: Tensor) -> Tensor:
    """x [heads, N, D] -> [S, heads, L, D]. By `index_select`, whose backward adds up in order, fast."""
    return x.transpose(0, 1).index_select(0, grid.flatten()).unflatten(0, grid.shape).transpose(1, 2)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def packed_logits(model: PreTrainedModel, layout: Layout, keep: Tensor) -> Tensor:
    """Logits [K, vocab] at the positions `keep` [K] of the packed row."""
    return model(
        input_ids=layout.tokens[None],
        position_ids=layout.positions[None],
        use_cache=False,
        logits_to_keep=keep,
        layout=layout,
    ).logits[0]
