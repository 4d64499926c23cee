"""New rewards over saved episodes, without generating anything.

Rewards look at the state that an episode left in its environment, so each episode is played again with what the model
said: the new environment gets the task of the old one and the saved replies, and must answer as it did then. An episode
whose replay differs from what was saved says nothing about the new rewards: it is counted apart, and not scored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

import envs
import sandbox
from envs import InfrastructureError, Score, Status, ToolEnv
from envs.types import Message
from rollout.episode import Budget, within
from rollout.wire import Episode, portable
from trainer.evaluation.config import PlayConfig
from trainer.evaluation.store import Record
from trainer.evaluation.summary import Key

ENV_S = Budget().env_s
CUT = ("tokens", "context", "time")  # budgets that the environment does not know of


class Diverged(RuntimeError):
    """The environment did not answer as it did when the episode was played."""


class Rescored(NamedTuple):
    records: dict[Key, Record]
    diverged: int


def rescore(records: Mapping[Key, Record], text: str, play: PlayConfig) -> Rescored:
    """The `records` with what the environment `text` makes of them; it takes the arguments of the one that each was
    played in, unless it has its own. Those of environments that it derives from; if it derives from none, all.
    Errored episodes are left out.

    Raises `ValueError` for an environment that cannot be made.
    """
    new = envs.load(text)
    parents = {name for name in {r.ticket.env for r in records.values()} if issubclass(new, envs.load(name))}
    by_task: dict[int, list[Record]] = {}
    for record in records.values():
        if record.score is not None and (not parents or record.ticket.env in parents):
            by_task.setdefault(record.task, []).append(record)
    for name in {_named(text, record.ticket.env) for of in by_task.values() for record in of}:
        envs.make(name)
    return asyncio.run(_all(list(by_task.values()), text, play))


async def _all(tasks: Sequence[list[Record]], text: str, play: PlayConfig) -> Rescored:
    sandbox.configure(backend=play.sandbox, slots=play.sandbox_slots)
    found: dict[Key, Record] = {}
    waiting = iter(tasks)

    async def replayer() -> None:
        for of in waiting:
            for record in await _task(of, text):
                found[record.task, record.attempt] = record

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(tasks), play.slots)):
                group.create_task(replayer())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several
    finally:
        await sandbox.close_shared()
    diverged = sum(record.episode.error.startswith(Diverged.__name__) for record in found.values())
    return Rescored(dict(sorted(found.items())), diverged)


async def _task(records: list[Record], text: str) -> list[Record]:
    """The attempts at one task, scored together as they were."""
    players = [envs.make(_named(text, record.ticket.env)) for record in records]
    errors = ["" for _ in records]
    try:
        for i, (env, record) in enumerate(zip(players, records, strict=True)):
            try:
                async with within(ENV_S * (1 + record.episode.turns), "replaying an episode"):
                    await _replay(env, record)
            except Exception as fault:  # the boundary to the author's code; kept as the episode's cause
                errors[i] = f"{type(fault).__name__}: {fault}"[:1000]
        sound = [env for env, error in zip(players, errors, strict=True) if not error]
        scores: Iterator[Score | Exception]
        try:
            async with within(ENV_S, "scoring a group"):
                scores = iter(await envs.score_group(sound))
        except InfrastructureError as fault:  # kept as the cause of every episode that it left without a score
            scores = iter([fault] * len(sound))
        results = []
        for env, record, error in zip(players, records, errors, strict=True):
            results.append(_record(env, record, error or next(scores)))
        return results
    finally:
        for env in players:
            with contextlib.suppress(Exception):  # the boundary to the author's code: what was scored stays so
                async with within(ENV_S, "closing an environment"):
                    await env.aclose()


async def _replay(env: ToolEnv, record: Record) -> None:
    """Give `env` the saved replies. Raises `Diverged`, and whatever the environment does."""
    ticket, episode = record.ticket, record.episode
    task = envs.make(ticket.env).make_task(ticket.split, ticket.index)
    env.make_task = lambda split, index: task  # type: ignore[method-assign]
    cut = next((reason for reason in CUT if episode.counts.get(f"truncated_{reason}")), "")
    saved = list(episode.messages)
    _expect(saved, await env.begin(ticket.split, ticket.index), "its first messages are others")
    while saved:
        message = saved.pop(0)
        if message.role != "assistant" or env.status is not Status.RUNNING:
            raise Diverged(f"it ended where the saved episode goes on with a message of the {message.role}")
        if cut and not saved:
            break  # the reply was cut off: what it asked for was never done
        replies = await env.act(message)
        _expect(saved, replies or env.closing, f"it answers turn {env.num_turns} otherwise")
    if cut:
        env.truncate(cut)
    if env.status is Status.RUNNING:
        raise Diverged("it goes on where the saved episode ended")


def _expect(saved: list[Message], said: list[Message], otherwise: str) -> None:
    """Take `said` off the beginning of `saved`. Raises `Diverged`."""
    for message in portable(said):
        if not saved or (saved[0].role, saved[0].content) != (message.role, message.content):
            there = f"{saved[0].content!r:.120}" if saved else "nothing"
            raise Diverged(f"{otherwise}: {message.content!r:.120}, saved is {there}")
        saved.pop(0)


def _record(env: ToolEnv, record: Record, score: Score | Exception | str) -> Record:
    if not isinstance(score, Score):
        error = score if isinstance(score, str) else f"{type(score).__name__}: {score}"
        episode: Episode = msgspec.structs.replace(
            record.episode, status=Status.ERRORED, reward=None, components={}, error=error
        )
    else:
        episode = msgspec.structs.replace(
            record.episode, status=env.status, reward=score.reward, components=score.components, labels=env.labels
        )
    return Record.of(record.task, record.attempt, record.ticket, episode)


def _named(text: str, played: str) -> str:
    """The environment `text` with the arguments of the environment that was played."""
    arguments = played.partition("?")[2]
    return f"{text}?{arguments}" if arguments and "?" not in text else text
