"""Attention over slots: a KV cache in which every conversation has its own row, for any transformers causal LM.

A forward pass takes one flat row of N tokens, of any number of conversations and any number of tokens of each. So the
linear layers do no work for padding, and prefill and decoding share a pass. Only attention knows the conversations:
it runs over groups of rows that have a similar number of new tokens.

Models reach it through transformers' attention interface, under the name `ATTENTION`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, Cache

ATTENTION = "slipstream_slots"
# Arguments of the attention interface that change the result and are not computed here.
_UNSUPPORTED = ("s_aux", "position_bias", "sliding_mask", "attention_sinks")


@dataclass
class Group:
    """R conversations with up to n new tokens each, attended to together.

    tokens: [R, n] int64, indices into the flat row of the pass; a shorter conversation repeats its last token.
    positions: [R, n] int64, the place of each of those tokens in its conversation.
    slots: [R] int64; None where the group is exactly the slots 0 to R-1, whose keys are then read in place.
    length: how many cache entries the longest of the conversations has, the new ones included.
    rows: [R'] int64, the rows whose results count; None for all (the others fill the gaps between slots in use).
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor | None
    length: int
    rows: torch.Tensor | None = None
    _masks: dict[tuple[int | None, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[R, 1, n, length], 0 where a token may look (itself and what is before it, `window` back), else -inf."""
        if (window, dtype) not in self._masks:
            entry = torch.arange(self.length, device=self.positions.device)
            position = self.positions[:, None, :, None]
            hidden = entry > position
            if window is not None:
                hidden |= entry <= position - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._masks[window, dtype] = mask.masked_fill_(hidden, -torch.inf)
        return self._masks[window, dtype]


class Pass:
    """The N tokens of one forward pass: which slot and position each has, and the groups that cover them.

    slots, positions: [N] int64 on the model's device.
    """

    def __init__(self, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray, device: torch.device) -> None:
        """`slots[i]` has `counts[i]` new tokens from position `starts[i]` on; rows of one token come first.

        The flat row holds the conversations' new tokens one after the other, in that order.
        """
        self.device = device
        first = np.cumsum(counts) - counts
        flat_slots = np.repeat(slots, counts)
        flat_positions = np.arange(len(flat_slots)) + np.repeat(starts - first, counts)
        self.slots, self.positions = self._tensor(flat_slots), self._tensor(flat_positions)
        single = int((counts == 1).sum())
        self.groups = [self._singles(slots[:single], starts[:single])] if single else []
        order = single + np.argsort(-counts[single:], kind="stable")
        while len(order):
            # Padding to the longest: half of it at worst, a quarter as a rule.
            size = int((counts[order] * 2 >= counts[order[0]]).sum())
            self.groups.append(self._several(slots, starts, counts, first, order[:size]))
            order = order[size:]
        self._cells: dict[tuple[int, int], torch.Tensor] = {}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(self.device)

    def _singles(self, slots: np.ndarray, starts: np.ndarray) -> Group:
        length, span = int(starts.max()) + 1, int(slots.max()) + 1
        if span > 2 * len(slots):  # reading every slot in between would cost more than copying the keys in use
            tokens = np.arange(len(slots))
            return Group(self._tensor(tokens)[:, None], self._tensor(starts)[:, None], self._tensor(slots), length)
        tokens, positions = np.zeros(span, np.int64), np.zeros(span, np.int64)
        tokens[slots], positions[slots] = np.arange(len(slots)), starts
        rows = self._tensor(slots)
        return Group(self._tensor(tokens)[:, None], self._tensor(positions)[:, None], None, length, rows)

    def _several(
        self, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray, first: np.ndarray, rows: np.ndarray
    ) -> Group:
        column = np.minimum(np.arange(counts[rows].max()), counts[rows, None] - 1)
        length = int((starts[rows] + counts[rows]).max())
        return Group(
            self._tensor(first[rows, None] + column),
            self._tensor(starts[rows, None] + column),
            self._tensor(slots[rows]),
            length,
        )

    def cells(self, heads: int, capacity: int) -> torch.Tensor:
        """[N * heads] int64: where the new keys go in a cache that is seen as [slots * heads * capacity, dim]."""
        if (heads, capacity) not in self._cells:
            head = torch.arange(heads, device=self.device)
            cells = (self.slots[:, None] * heads + head) * capacity + self.positions[:, None]
            self._cells[heads, capacity] = cells.flatten()
        return self._cells[heads, capacity]


class SlotCache(Cache):
    """Keys and values of every slot, [slots, heads, capacity, dim] a layer, allocated when a layer is first seen.

    On a CPU the memory is committed page by page, as conversations grow into it.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.slots, self.capacity = slots, capacity
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self.step: Pass | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values ([1, heads, N, dim]) of the current pass; returns the whole layer."""
        assert self.step is not None
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            if layer_idx not in store:
                store[layer_idx] = _lazy_zeros((self.slots, new.shape[1], self.capacity, new.shape[3]), new)
            whole = store[layer_idx]
            cells = self.step.cells(new.shape[1], self.capacity)
            whole.view(-1, new.shape[3]).index_copy_(0, cells, new[0].transpose(0, 1).flatten(0, 1))
        return self.keys[layer_idx], self.values[layer_idx]

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        """Give `targets` the first `length` entries of `source`."""
        index = torch.tensor(targets)
        for store in (*self.keys.values(), *self.values.values()):
            store[:, :, :length][index.to(store.device)] = store[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are given to the model, not counted

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.capacity


def _lazy_zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Zeros (masked entries are multiplied by 0, so they must be finite), without touching the memory on a CPU."""
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.zeros(int(np.prod(shape)) * like.element_size(), np.uint8)).view(like.dtype).view(shape)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    slot_pass: Pass | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention. query: [1, heads, N, dim]; key, value: a `SlotCache`'s. Returns [1, N, heads, dim]."""
    if slot_pass is None or any(kwargs.get(name) is not None for name in _UNSUPPORTED):
        raise ValueError(f"{type(module).__name__} is not supported by the embedded engine's attention")
    flat = query[0].transpose(0, 1)  # [N, heads, dim]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = flat.new_empty(*flat.shape[:2], value.shape[-1])
    for group in slot_pass.groups:
        result = _attend_group(group, flat, key, value, scale, sliding_window, softcap)
        if group.rows is None:
            out[group.tokens.flatten()] = result.flatten(0, 1)
        else:
            out[group.tokens[group.rows, 0]] = result[group.rows, 0]
    return out[None], None


def _attend_group(
    group: Group,
    flat: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """[R, n, heads, dim]. Each key head serves its query heads in one product, without repeating keys."""
    (size, count), (_, heads, dim), kv_heads = group.tokens.shape, flat.shape, key.shape[1]
    shared = heads // kv_heads
    if group.slots is None:
        keys, values = key[:size, :, : group.length], value[:size, :, : group.length]
    else:
        keys, values = key[:, :, : group.length][group.slots], value[:, :, : group.length][group.slots]
    q = (flat[group.tokens] * scale).view(size, count, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    scores = q.reshape(size * kv_heads, shared * count, dim) @ keys.flatten(0, 1).transpose(1, 2)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(size, heads, count, group.length).add_(group.mask(window, scores.dtype))
    weights = scores.softmax(-1, dtype=torch.float32).to(flat.dtype)
    result = weights.view(size * kv_heads, shared * count, group.length) @ values.flatten(0, 1)
    return result.view(size, heads, count, -1).transpose(1, 2)


AttentionInterface.register(ATTENTION, attend)
