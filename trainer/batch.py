"""From groups of episodes to rows to train on, and from rows to packed tensors."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.types import Status
from rollout import wire
from trainer.algorithms import Algorithm, Outcomes
from trainer.attention import Layout


@dataclass(frozen=True)
class Row:
    """One sequence to train on, cut after its last sampled token."""

    tokens: list[int]
    sampled: list[bool]
    logprobs: list[float]  # behaviour policy, nats; 0 where not sampled
    versions: list[int]  # -1 where not sampled
    advantage: float
    group: int  # position of its group in the batch
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

    Errored episodes have no reward: they are left out of the baseline and of the loss. A group with fewer scored
    episodes than the algorithm compares is left out whole.
    """
    used: dict[str, list[tuple[int, list[wire.Episode], Tensor]]] = {}  # by seat: position, episodes, their returns
    zero_variance = baselines = 0
    ordered = sorted(groups, key=lambda g: g.ticket.key)
    for position, part in ((i, part) for i, group in enumerate(ordered) for part in _by_seat(group)):
        baselines += 1
        scored = _scored(part)
        if len(scored) < algorithm.least_group:
            continue
        returns = algorithm.returns(_outcomes(scored))
        flat = has_zero_variance(returns)
        zero_variance += flat
        if not flat or algorithm.keep_zero_variance:
            used.setdefault(part[0].seat, []).append((position, scored, returns))
    rows: list[Row] = []
    episodes = 0
    for of_seat in used.values():
        advantages = algorithm.advantages([returns for _, _, returns in of_seat])
        for (position, scored, _), of_group in zip(of_seat, advantages, strict=True):
            for episode, advantage in zip(scored, of_group.tolist(), strict=True):
                rows += [row_of(s, advantage, position, episodes) for s in episode.sequences if any(s.sampled)]
                episodes += 1
    return Batch(rows, baselines, zero_variance)


def _by_seat(group: wire.Group) -> list[list[wire.Episode]]:
    parts: dict[str, list[wire.Episode]] = {}
    for episode in group.episodes:
        parts.setdefault(episode.seat, []).append(episode)
    return list(parts.values())


def is_informative(group: wire.Group, algorithm: Algorithm) -> bool:
    """Whether the group's episodes came to different returns; of several seats, those of one."""
    parts = [_scored(part) for part in _by_seat(group)]
    return any(
        len(scored) >= algorithm.least_group and not has_zero_variance(algorithm.returns(_outcomes(scored)))
        for scored in parts
    )


def has_zero_variance(returns: Tensor) -> bool:
    return bool((returns - returns[0]).abs().max() < 1e-9)


def _scored(episodes: list[wire.Episode]) -> list[wire.Episode]:
    return [e for e in episodes if e.status is not Status.ERRORED and e.reward is not None]


def _outcomes(episodes: list[wire.Episode]) -> Outcomes:
    rewards = torch.tensor([e.reward for e in episodes], dtype=torch.float64)
    return Outcomes(rewards, torch.tensor([sum(sum(s.sampled) for s in e.sequences) for e in episodes]))


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
    """S rows laid into one, M of whose tokens were sampled, after U different beginnings."""

    layout: Layout
    keep: Tensor  # [U] int64: index of each token whose logits predict a sampled one
    predict: Tensor  # [M] int64 in [0, U): which of those predicts the token
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
    layout = Layout.of([r.tokens for r in rows], device)
    row, place = (torch.tensor(x) for x in zip(*((i, p) for i, r in enumerate(rows) for p in _sampled(r)), strict=True))
    row, place = row.to(device), place.to(device)
    keep, predict = layout.grid[row, place - 1].unique(return_inverse=True)
    logprobs = torch.tensor([r.logprobs[p] for r in rows for p in _sampled(r)], dtype=torch.float32, device=device)
    advantage = torch.tensor([r.advantage for r in rows], dtype=torch.float32, device=device)
    scale = torch.tensor(scales, dtype=torch.float32, device=device)
    targets = layout.tokens[layout.grid[row, place]]
    return Packed(layout, keep, predict, targets, row, logprobs, advantage[row], scale[row])


def _sampled(row: Row) -> list[int]:
    """Places of the sampled tokens."""
    return [place for place, flag in enumerate(row.sampled) if flag]
