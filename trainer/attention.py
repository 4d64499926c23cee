"""Attention over packed rows for any transformers model, and the forward that uses it.

Sequences are laid end to end in one row of N tokens, so that no linear layer sees padding. Each sequence attends to
itself alone: its keys are gathered into a padded [S, L] grid, which is thrown away after every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

NAME = "slipstream_packed"


@dataclass(frozen=True)
class Layout:
    """Where S sequences of at most L tokens lie in a packed row of N tokens."""

    positions: Tensor  # [N] int64, 0 at each sequence's first token
    grid: Tensor  # [S, L] int64: index into the row; padding repeats the sequence's first token
    cells: Tensor  # [N] int64: index into the flattened grid

    @classmethod
    def of(cls, lengths: list[int], device: torch.device | str = "cpu") -> Layout:
        sizes = torch.tensor(lengths, device=device)
        starts = sizes.cumsum(0) - sizes
        columns = torch.arange(int(sizes.max()), device=device)
        inside = columns < sizes[:, None]
        grid = torch.where(inside, starts[:, None] + columns, starts[:, None])
        return cls(columns.expand_as(grid)[inside], grid, inside.flatten().nonzero()[:, 0])


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
    q, k, v = (x[0][:, layout.grid].transpose(0, 1) for x in (query, key, value))  # [S, heads, L, D]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)[layout.cells][None], None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def packed_logits(model: PreTrainedModel, tokens: Tensor, layout: Layout, keep: Tensor) -> Tensor:
    """Logits [M, vocab] at the row positions `keep` [M] of a packed row `tokens` [N]."""
    return model(
        input_ids=tokens[None],
        position_ids=layout.positions[None],
        use_cache=False,
        logits_to_keep=keep,
        layout=layout,
    ).logits[0]
