"""The episodes of a run's ledger: which of them the page holds, and what it tells of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from envs.types import Message, Status
from rollout.wire import Episode, Group, Sequence
from trainer.describe import score
from trainer.evals import ROUND
from trainer.ledger import read_groups

MAX_TOKENS = 3_000_000  # on one page: some 40 MB
MAX_CHARS = 100_000  # of one message
GOLDEN = 0.6180339887498949


class Seen(NamedTuple):
    """What is kept in memory of every episode of a run."""

    group: int  # in the order of arrival
    member: int
    score: float | None  # None where the episode is errored
    reward: float | None
    odd: bool  # errored, truncated or labelled
    tokens: int


@dataclass
class Survey:
    """One pass over the ledger."""

    episodes: list[Seen] = field(default_factory=list)
    groups: int = 0
    attempts: dict[int, int] = field(default_factory=dict)  # the newest, by data position
    scores: dict[tuple[int, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))


def survey(folder: Path) -> Survey:
    """Go through a run's ledger."""
    found = Survey()
    for group in read_groups(folder / "ledger"):
        ticket = group.ticket
        if ticket.purpose == "train":
            found.attempts[ticket.id] = max(ticket.attempt, found.attempts.get(ticket.id, 0))
        for member, episode in enumerate(group.episodes):
            errored = episode.status is Status.ERRORED
            solved = None if errored else score(episode)
            odd = episode.status is not Status.TERMINATED or bool(episode.labels)
            tokens = sum(len(s.tokens) for s in episode.sequences)
            found.episodes.append(Seen(found.groups, member, solved, episode.reward, odd, tokens))
            if ticket.purpose == "eval" and solved is not None:
                version = ticket.id // ROUND
                found.scores[version, ticket.env, ""].append(solved)
                if episode.kind:
                    found.scores[version, ticket.env, episode.kind].append(solved)
        found.groups += 1
    return found


def choose(episodes: list[Seen], count: int, max_tokens: int = MAX_TOKENS) -> set[tuple[int, int]]:
    """(group, member) of up to `count` episodes with up to `max_tokens` tokens in all.

    In turn: the newest, the worst, the best, the newest of those that are errored, truncated or labelled, and one of
    an even spread over the run.
    """
    newest = episodes[::-1]
    rated = [e for e in newest if e.score is not None]
    best = sorted(rated, key=lambda e: (e.score, e.reward), reverse=True)
    worst = sorted(rated, key=lambda e: (e.score, e.reward))
    odd = [e for e in newest if e.odd]
    # Multiples of the golden ratio, modulo 1, cover the run evenly wherever they stop.
    spread = (episodes[int(i * GOLDEN % 1 * len(episodes))] for i in range(len(episodes)))
    turns: list[Iterator[Seen]] = [iter(newest), iter(worst), iter(best), iter(odd), spread]
    chosen: set[tuple[int, int]] = set()
    tokens = 0
    while turns and len(chosen) < count:
        for turn in list(turns):
            episode = next((e for e in turn if (e.group, e.member) not in chosen), None)
            if episode is None:
                turns.remove(turn)
            elif len(chosen) < count:
                tokens += episode.tokens
                if tokens > max_tokens and chosen:
                    return chosen
                chosen.add((episode.group, episode.member))
    return chosen


def read(
    folder: Path, chosen: set[tuple[int, int]], attempts: dict[int, int]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(its line in the list, everything else) of each chosen episode, oldest first."""
    wanted = {group for group, _ in chosen}
    last = max(wanted, default=-1)
    for number, group in enumerate(read_groups(folder / "ledger")):
        if number > last:
            return
        if number not in wanted:
            continue
        stale = group.ticket.purpose == "train" and group.ticket.attempt < attempts.get(group.ticket.id, 0)
        for member, episode in enumerate(group.episodes):
            if (number, member) in chosen:
                yield line(number, member, group, stale), body(episode, group)


def line(number: int, member: int, group: Group, stale: bool) -> dict[str, Any]:
    """What the list shows, sorts and filters by."""
    ticket, episode = group.ticket, group.episodes[member]
    versions = episode.versions()
    return {
        "id": f"{number}.{member}",
        "group": number,
        "member": member,
        "purpose": ticket.purpose,
        "position": ticket.id,
        "attempt": ticket.attempt,
        "stale": stale,
        "env": ticket.env,
        "index": ticket.index,
        "split": ticket.split,
        "kind": "/".join(filter(None, (episode.kind, episode.seat))),
        "status": str(episode.status),
        "reward": episode.reward,
        "labels": list(episode.labels),
        "turns": episode.turns,
        "oldest": min(versions, default=None),
        "newest": max(versions, default=None),
        "sampled": len(versions),
        "wall_s": round(episode.wall_s, 3),
        "worker": group.worker,
        "rewards": [e.reward for e in group.episodes],
    }


def body(episode: Episode, group: Group) -> dict[str, Any]:
    """What the reader shows of one episode, its messages and tokens among them."""
    return {
        "components": episode.components,
        "counts": episode.counts,
        "error": clip(episode.error),
        "retries": episode.retries,
        "isolation": episode.isolation,
        "group_wall_s": round(group.wall_s, 3),
        "sampling": {"temperature": group.ticket.sampling.temperature, "max_tokens": group.ticket.sampling.max_tokens},
        "messages": [_message(m) for m in episode.messages],
        "sequences": [_sequence(s) for s in episode.sequences],
    }


def _message(message: Message) -> dict[str, Any]:
    calls = [
        {"name": c.name, "arguments": clip(json.dumps(c.arguments, ensure_ascii=False)), "id": c.id, "error": c.error}
        for c in message.tool_calls
    ]
    return {"role": message.role, "name": message.name, "content": clip(message.content), "calls": calls}


def _sequence(sequence: Sequence) -> dict[str, Any]:
    """Token ids; then of the sampled ones only, log-probabilities in thousandths, and [version, how many] in order.

    `runs` are the lengths of alternating stretches of unsampled and sampled tokens, unsampled first.
    """
    runs = [0] if sequence.sampled and sequence.sampled[0] else []
    runs += [len(list(same)) for _, same in groupby(sequence.sampled)]
    drawn = [i for i, sampled in enumerate(sequence.sampled) if sampled]
    return {
        "tokens": sequence.tokens,
        "runs": runs,
        "logprobs": [round(sequence.logprobs[i] * 1000) for i in drawn],
        "versions": [[version, len(list(same))] for version, same in groupby(sequence.versions[i] for i in drawn)],
    }


def clip(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS} more characters are in the ledger]"


def texts(ids: set[int], decode: Callable[[int], str] | None) -> dict[int, str]:
    """The text of each token id that occurs; empty where no tokenizer could be loaded."""
    return {} if decode is None else {i: decode(i) for i in sorted(ids)}
