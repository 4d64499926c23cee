"""From groups of episodes to rows to train on, and from rows to packed tensors."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.types import Status
from rollout import wire
from trainer.algorithms import Algorithm
from trainer.attention import Layout


@dataclass(frozen=True)
class Row:
    """One sequence to train on, cut after its last sampled token."""

    tokens: list[int]
    sampled: list[bool]
    logprobs: list[float]  # behaviour policy, nats; 0 where not sampled
    versions: list[int]  # -1 where not sampled
    advantage: float
    group: int  # position of its group's seat in the batch
    episode: int  # position of its episode in the batch

    @property
    def size(self) -> int:
        return sum(self.sampled)


@dataclass(frozen=True)
class Batch:
    """One step's rows. `groups` counts baselines: one a group, or one for each of its seats; `zero_variance` those of
    them whose episodes all earned the same."""

    rows: list[Row]
    groups: int
    zero_variance: int


def pack(groups: Seq[wire.Group], algorithm: Algorithm) -> Batch:
    """Rows with advantages, in the order of the groups' tickets. Seats are compared with the same seat only.

    Errored episodes have no reward: they are left out of the baseline and of the loss. A group with fewer than two
    scored episodes has no baseline and is left out whole.
    """
    rows: list[Row] = []
    zero_variance = episodes = 0
    compared = [part for group in sorted(groups, key=lambda g: g.ticket.key) for part in _by_seat(group)]
    for position, part in enumerate(compared):
        scored = [e for e in part if e.status is not Status.ERRORED and e.reward is not None]
        if len(scored) < 2:
            continue
        rewards = torch.tensor([e.reward for e in scored], dtype=torch.float64)
        flat = bool((rewards - rewards[0]).abs().max() < 1e-9)
        zero_variance += flat
        if flat and not algorithm.keep_zero_variance:
            continue
        for episode, advantage in zip(scored, algorithm.advantages(rewards).tolist(), strict=True):
            rows += [row_of(s, advantage, position, episodes) for s in episode.sequences if any(s.sampled)]
            episodes += 1
    return Batch(rows, len(compared), zero_variance)


def _by_seat(group: wire.Group) -> list[list[wire.Episode]]:
    parts: dict[str, list[wire.Episode]] = {}
    for episode in group.episodes:
        parts.setdefault(episode.seat, []).append(episode)
    return list(parts.values())


def row_of(sequence: wire.Sequence, advantage: float, group: int, episode: int) -> Row:
    """`sequence`, which holds at least one sampled token, cut after its last one."""
    end = len(sequence.sampled) - sequence.sampled[::-1].index(True)
    if sequence.sampled[0]:
        raise ValueError("a sequence's first token cannot be sampled: nothing predicts it")
    return Row(
        sequence.tokens[:end],
        sequence.sampled[:end],
        sequence.logprobs[:end],
        sequence.versions[:end],
        advantage,
        group,
        episode,
    )


@dataclass(frozen=True)
class Packed:
    """Rows laid end to end: N tokens in S rows, M of them sampled."""

    tokens: Tensor  # [N] int64
    layout: Layout
    predict: Tensor  # [M] int64: index of the token *before* each sampled one, whose logits predict it
    targets: Tensor  # [M] int64: the sampled ids
    row: Tensor  # [M] int64 in [0, S)
    behaviour: Tensor  # [M] float32: log mu, nats
    advantage: Tensor  # [M] float32
    scale: Tensor  # [M] float32: each token's weight in the loss


def microbatches(rows: Seq[Row], micro_tokens: int) -> list[list[int]]:
    """Indices of `rows` in bins of at most `micro_tokens` tokens, counted as the padded attention grid holds them.

    Rows are sorted by length first, so that the grid is nearly full. A row longer than the bound has a bin of its own.
    """
    bins: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(rows)), key=lambda i: (-len(rows[i].tokens), i)):
        if bins and (len(bins[-1]) + 1) * longest <= micro_tokens:
            bins[-1].append(index)
        else:
            longest = len(rows[index].tokens)
            bins.append([index])
    return bins


def collate(rows: Seq[Row], scales: Seq[float], device: torch.device | str = "cpu") -> Packed:
    """Pack `rows`; `scales[i]` is the weight of each sampled token of row i."""
    lengths = [len(r.tokens) for r in rows]
    sampled = torch.tensor([flag for r in rows for flag in r.sampled])
    at = sampled.nonzero()[:, 0]
    tokens = torch.tensor([t for r in rows for t in r.tokens])
    row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))[at]
    logprobs = torch.tensor([lp for r in rows for lp in r.logprobs], dtype=torch.float32)
    advantage = torch.tensor([r.advantage for r in rows], dtype=torch.float32)
    scale = torch.tensor(scales, dtype=torch.float32)
    return Packed(
        tokens.to(device),
        Layout.of(lengths, device),
        (at - 1).to(device),
        tokens[at].to(device),
        row.to(device),
        logprobs[at].to(device),
        advantage[row].to(device),
        scale[row].to(device),
    )
