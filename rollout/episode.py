"""Plays episodes: environment, conversation and engine in turn, for all episodes of a ticket at once.

How an episode ends: by itself (terminated); by a budget of turns, tokens, context or time (truncated, then scored like
any other); or by a fault of the infrastructure. After a fault it is played again from the start with a fresh
environment, with the same seeds, and after `Budget.retries` of those it is returned errored, with the cause and
without a reward. What the model does is never a fault.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

import envs
from envs import InfrastructureError, RewardError, Score, Status, ToolEnv, ToolSpec
from rollout.engine import Completion, Engine, NoRoom
from rollout.timeline import Timeline
from rollout.wire import Episode, Ticket, portable

if TYPE_CHECKING:
    from rollout.chat import Chat  # imports the tokenizer's library, which takes seconds
    from rollout.endpoint import Answer, Endpoint, MessageChat

_BACKOFF_S = 0.1  # before the first retry; four times as long before each further one
_CLOSE_S = 30.0


class CannotPlay(RuntimeError):
    """The ticket's environment does not exist or cannot be made: no retry will help."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one episode may take. Turns are the environment's budget, tokens a reply the ticket's.

    `wall_s` ends an episode before its next reply: truncated. The other times are for the infrastructure, and
    exceeding one is a fault: `generate_s` for one reply of the engine, `env_s` for one call of the environment or the
    scoring of a group.
    """

    wall_s: float = 600.0
    generate_s: float = 600.0
    env_s: float = 300.0
    retries: int = 2


@dataclass
class Stage:
    """What every episode of a worker is played with. `new_chat` starts a conversation in which the model has `tools`.

    An engine is asked in tokens, a server's endpoint in messages; chats of either kind make the prompts that it takes.

    `counters` (cumulative): episodes, errored, retries, replies, sampled_tokens, and fault/<error> by its type.
    """

    engine: Engine | Endpoint
    new_chat: Callable[[tuple[ToolSpec, ...]], Chat | MessageChat]
    budget: Budget = field(default_factory=Budget)
    timeline: Timeline = field(default_factory=Timeline)
    counters: Counter[str] = field(default_factory=Counter)


def turn_seed(ticket: Ticket, episode: int, turn: int) -> int:
    """The seed of one reply, of 63 bits: it depends on what is played, never on where, when or beside what."""
    text = f"{ticket.sampling.seed}/{ticket.purpose}/{ticket.id}/{ticket.attempt}/{episode}/{turn}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


async def play_group(ticket: Ticket, stage: Stage) -> list[Episode]:
    """Play the ticket's episodes side by side. Raises `CannotPlay`; every other fault is in the episodes."""
    players = [_Player(ticket, index, stage) for index in range(ticket.group_size)]
    try:
        # All begin before the first reply, so that the engine sees their common prompt at once.
        await _together(player.begin() for player in players)
        await _together(player.play() for player in players)
        await _score(players, stage)
        return [episode for player in players for episode in player.episodes()]
    finally:
        for player in players:
            await player.close()


async def _score(players: list[_Player], stage: Stage) -> None:
    """Score the group as a whole; episodes whose reward failed are played again while they have retries."""
    while True:
        sound = [player for player in players if not player.error]
        for player in sound:
            player.scores = {}
        try:
            async with within(stage.budget.env_s, "scoring a group"):
                for seat in players[0].env.seats:
                    scores = await envs.score_group([player.env for player in sound], seat)
                    for player, score in zip(sound, scores, strict=True):
                        player.judge(seat, score)
        except Exception as error:  # the boundary to the author's code; counted by `fail`
            for player in sound:
                player.fail(error)
        again = [player for player in sound if player.error and player.retries < stage.budget.retries]
        if not again:
            return
        await _together(player.play() for player in again)


class _Player:
    """One episode through all its attempts. Raises `CannotPlay` where the environment cannot be made."""

    def __init__(self, ticket: Ticket, index: int, stage: Stage) -> None:
        self._ticket, self._index, self._stage = ticket, index, stage
        self._started = time.monotonic()
        self._wall_s = 0.0
        self._chats: dict[str, Chat | MessageChat] = {}  # by seat
        self._turns: Counter[str] = Counter()  # replies, by seat
        self._read: Counter[str] = Counter()  # tokens, by seat
        self._written: Counter[str] = Counter()
        self.env = self._make()
        self.error = ""
        self.retries = 0
        self.scores: dict[str, Score] = {}  # by seat

    async def begin(self) -> None:
        """Begin the episode; a fault is kept in `error`."""
        await self._guarded(self._begin())

    async def play(self) -> None:
        """Play until the episode is over, or until a fault was retried often enough."""
        budget = self._stage.budget
        while True:
            if not self.error and await self._guarded(self._converse()):
                break
            if self.retries >= budget.retries:
                break
            await asyncio.sleep(_BACKOFF_S * 4**self.retries)
            self.retries += 1
            self._stage.counters["retries"] += 1
            await self._again()
        self._wall_s = time.monotonic() - self._started

    def judge(self, seat: str, score: Score | RewardError) -> None:
        """Keep what a seat earned; without a score of every seat the episode has none."""
        if isinstance(score, Score):
            self.scores[seat] = score
        elif not self.error:
            self.fail(score)

    def fail(self, error: Exception) -> None:
        """Keep the cause of a fault, and count it."""
        self.error = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()[:1000]
        self._stage.counters[f"fault/{type(error).__name__}"] += 1

    def episodes(self) -> list[Episode]:
        """The result of each seat, for sending. An errored episode has no tokens to train on."""
        return [self._episode(seat) for seat in self.env.seats]

    def _episode(self, seat: str) -> Episode:
        env, chat, score = self.env, self._chats.get(seat), None if self.error else self.scores[seat]
        self._stage.counters["episodes"] += 1
        self._stage.counters["errored"] += score is None
        begun = bool(self._chats)
        return Episode(
            status=env.status if score else Status.ERRORED,
            sequences=chat.sequences() if chat is not None and score else [],
            messages=portable([*chat.messages, *env.unread[seat]]) if chat is not None else [],
            reward=score.reward if score else None,
            components=score.components if score else {},
            kind=env.kind if begun else "",
            error=self.error,
            turns=self._turns[seat],
            retries=self.retries,
            wall_s=self._wall_s,
            labels=env.labels if begun else (),
            isolation=env.isolation,
            counts=dict(env.counts) if begun else {},
            prompt_tokens=self._read[seat],
            sampled_tokens=self._written[seat],
            seat=seat,
        )

    async def close(self) -> None:
        """Release what the environment holds. A fault of that is counted, and changes nothing about the episode."""
        try:
            async with within(_CLOSE_S, "closing an environment"):
                await self.env.aclose()
        except Exception as error:  # the boundary to the author's code
            self._stage.counters[f"fault/{type(error).__name__}"] += 1

    def _make(self) -> ToolEnv:
        try:
            return envs.make(self._ticket.env)
        except Exception as error:  # the boundary to the author's constructor; the run is told, and stops
            raise CannotPlay(f"{type(error).__name__}: {error}") from error

    async def _guarded(self, step: Coroutine[None, None, None]) -> bool:
        try:
            await step
        except Exception as error:  # the boundary between one episode and the worker; counted by `fail`
            self.fail(error)
            return False
        return True

    async def _again(self) -> None:
        await self.close()
        try:
            self.env = self._make()
        except CannotPlay as error:
            self.fail(error)
        else:
            self.error = ""
            await self.begin()

    async def _begin(self) -> None:
        self._chats, self._turns = {}, Counter()
        with self._stage.timeline.busy("tool"):
            async with within(self._stage.budget.env_s, "beginning an episode"):
                messages = await self.env.begin(self._ticket.split, self._ticket.index)
        self._chats = {seat: self._stage.new_chat(self.env.tools) for seat in self.env.seats}
        self._chats[self.env.seat].add(*messages)

    async def _converse(self) -> None:
        stage, env, ticket = self._stage, self.env, self._ticket
        assert self._chats, "begin() comes first"
        name = f"{ticket.purpose}-{ticket.id}-{ticket.attempt}-{self._index}-{self.retries}"
        sessions = {seat: f"{name}-{seat}" if seat else name for seat in env.seats}  # one conversation, one session
        deadline = time.monotonic() + stage.budget.wall_s
        try:
            while env.status is Status.RUNNING:
                if time.monotonic() > deadline:
                    env.truncate("time")
                    return
                seat = env.seat
                chat = self._chats[seat]
                prompt, stop_ids = chat.prompt(), ticket.sampling.stop_ids or chat.template.stop_ids
                try:
                    completion = await self._generate(prompt, stop_ids, seat, sessions[seat])
                except NoRoom:
                    env.truncate("context")
                    return
                message = chat.reply(completion)
                self._turns[seat] += 1
                if completion.finish == "length":  # the reply is a part of one: nothing that it asks for is done
                    whole = completion.size >= ticket.sampling.max_tokens
                    env.truncate("tokens" if whole else "context")
                    return
                with stage.timeline.busy("tool"):
                    async with within(stage.budget.env_s, "a turn of the environment"):
                        read = await env.act(message)
                        self._chats[env.seat].add(*read)
        finally:
            for session in sessions.values():
                stage.engine.end_session(session)

    async def _generate(self, prompt: Any, stop_ids: tuple[int, ...], seat: str, session: str) -> Any:
        """One reply, checked. Raises `EngineError`, `InfrastructureError`, `NoRoom`."""
        stage = self._stage
        completion: Completion | Answer
        seed = turn_seed(self._ticket, self._index, self._turns.total())
        sampling = msgspec.structs.replace(self._ticket.sampling, seed=seed, stop_ids=stop_ids)
        with stage.timeline.busy("generate"):
            async with within(stage.budget.generate_s, "a reply of the engine"):
                completion = await stage.engine.generate(prompt, sampling, session=session)
        completion.check()
        stage.counters["replies"] += 1
        stage.counters["sampled_tokens"] += completion.size
        self._read[seat] += len(prompt) if isinstance(completion, Completion) else completion.prompt_tokens
        self._written[seat] += completion.size
        return completion


async def _together(steps: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all; if one raises (a bug, not a fault) or this is cancelled, none is left running."""
    async with asyncio.TaskGroup() as tasks:
        for step in steps:
            tasks.create_task(step)


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises `InfrastructureError`, naming `what`, after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfrastructureError(f"{what} took longer than {seconds:g} s") from error
