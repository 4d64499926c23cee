"""Plays a suite's tasks with the code that training plays with, many at once, in this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import envs
import sandbox
from envs.suite import Part, Suite
from rollout import worker
from rollout.endpoint import Endpoint, MessageChat
from rollout.engine import EngineError, Sampling
from rollout.episode import Budget, Stage, play_group
from rollout.wire import Episode, Ticket
from trainer.evaluation.config import EvalConfig
from trainer.evaluation.models import Model, longest_context

MOST_ATTEMPTS = 4096  # a ticket's id is task * MOST_ATTEMPTS + its first attempt
GIVE_UP_AFTER = 16  # tickets without one sound episode, in a row and from the start: something is broken

OnPlayed = Callable[["Unit", Sequence[Episode], dict[str, int]], None]


class Unit(NamedTuple):
    """What is played, kept and played again as one: attempts `first` and on at one task of the suite."""

    task: int
    first: int
    ticket: Ticket


def units(suite: Suite) -> list[Unit]:
    """All that the suite asks for, going through its parts in turn, so that all of them fill evenly.

    Attempts are apart from each other, unless the environment rewards them as a group.
    """
    if suite.attempts > MOST_ATTEMPTS:
        raise ValueError(f"attempts must be at most {MOST_ATTEMPTS}, got {suite.attempts}")
    sampling = Sampling(
        suite.limits.max_reply_tokens,
        suite.sampling.temperature,
        suite.sampling.top_p,
        suite.sampling.top_k,
        suite.sampling.seed,
    )
    found: list[tuple[int, Unit]] = []
    task = 0
    for part in suite.parts():
        together = any(c.scope == "group" for c in envs.make(part.env).components)
        size = suite.attempts if together else 1
        for offset in range(part.tasks):
            for first in range(0, suite.attempts, size):
                found.append((offset, Unit(task, first, _ticket(part, offset, task, first, size, sampling))))
            task += 1
    return [unit for _, unit in sorted(found, key=lambda pair: pair[0])]


def _ticket(part: Part, offset: int, task: int, first: int, size: int, sampling: Sampling) -> Ticket:
    return Ticket(
        id=task * MOST_ATTEMPTS + first,
        attempt=0,
        purpose="eval",
        env=part.env,
        split=part.split,
        index=part.first + offset,
        group_size=size,
        sampling=sampling,
    )


def play(config: EvalConfig, suite: Suite, model: Model, missing: Sequence[Unit], on_played: OnPlayed) -> None:
    """Play what is `missing`; `on_played` gets each unit's episodes and the faults since it was last called.

    Raises `KeyboardInterrupt` when a signal came, `ValueError` for a model that cannot be used, `EngineError` for an
    engine or an endpoint that broke, and `rollout.episode.CannotPlay`.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        interrupted = asyncio.run(_until_signal(_play(config, suite, model, missing, on_played)))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if interrupted:
        raise KeyboardInterrupt


async def _until_signal(playing: Coroutine[None, None, None]) -> bool:
    """Whether a signal ended it, in order."""
    task = asyncio.create_task(playing)
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not came:
            raise
    return bool(came)


async def _play(config: EvalConfig, suite: Suite, model: Model, missing: Sequence[Unit], on_played: OnPlayed) -> None:
    async with AsyncExitStack() as stack:
        stage = await _stage(config, suite, model, stack)
        told: Counter[str] = Counter()
        waiting = iter(missing)
        fruitless = 0

        async def player() -> None:
            nonlocal fruitless
            for unit in waiting:
                episodes = await play_group(unit.ticket, stage)
                stage.engine.check()  # what a broken engine made of it is nobody's result
                faults = _faults(stage)
                on_played(unit, episodes, dict(faults - told))
                told.update(faults - told)
                errors = [episode.error for episode in episodes if episode.error]
                fruitless = fruitless + 1 if len(errors) == len(episodes) else -len(missing)
                if fruitless >= GIVE_UP_AFTER:
                    raise EngineError(f"the first {fruitless} tasks all failed; the last with: {errors[-1]}")

        size = max((unit.ticket.group_size for unit in missing), default=1)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(len(missing), max(1, config.play.slots // size))):
                    tasks.create_task(player())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group


async def _stage(config: EvalConfig, suite: Suite, model: Model, stack: AsyncExitStack) -> Stage:
    """What to play with, closed by `stack`. Raises `ValueError`, one line, for a model that cannot be used."""
    play, limits = config.play, suite.limits
    if model.remote:
        told = config.endpoint
        sandbox.configure(backend=play.sandbox, slots=play.sandbox_slots)
        stack.push_async_callback(sandbox.close_shared)
        engine = Endpoint(
            told.base_url,
            model.path,
            os.environ.get(told.key_variable, "").strip(),
            timeout_s=told.request_timeout_s,
            retries=told.request_retries,
            connections=play.slots,
        )
        stack.push_async_callback(engine.aclose)
        await engine.start()
        # A server that is slow or down is not the model's fault: requests have deadlines, episodes have none.
        return Stage(engine, MessageChat, Budget(wall_s=float("inf"), generate_s=engine.longest_s))
    from trainer.learner import pick_device

    context = min(limits.context, longest_context(model.path))
    wanted = worker.WorkerConfig(
        model=model.path,
        engine=config.engine.engine,
        slots=play.slots,
        context=context,
        threads=play.threads or len(os.sched_getaffinity(0)),
        seed=suite.sampling.seed,
        device=pick_device(config.engine.device),
        dtype=config.engine.dtype,
        sandbox=play.sandbox,
        sandbox_slots=play.sandbox_slots,
        max_episodes=play.slots,
        budget=Budget(wall_s=float("inf"), generate_s=limits.reply_timeout_s),
    )
    try:
        stage = await worker.prepare(wanted, stack)
    except sandbox.SandboxError:
        raise
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"--model {model.path}: {lines[0]}") from error
    stage.engine.version = model.version
    return stage


def _faults(stage: Stage) -> Counter[str]:
    """What went wrong so far without being the model's doing, by kind."""
    found = Counter({name: n for name, n in stage.counters.items() if name.startswith(("fault/", "retries"))})
    if isinstance(stage.engine, Endpoint):
        found.update({f"request/{name}": n for name, n in stage.engine.counters.items() if name != "requests"})
    return found
