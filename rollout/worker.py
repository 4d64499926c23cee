"""The rollout worker: plays many tickets at once in one event loop, and returns their groups.

    python -m rollout.worker --connect ipc:///tmp/run/link --name w0

Everything else comes from the trainer. Exit status: 0 when the trainer said stop (or SIGTERM, SIGINT came), 3 when the
engine, the model or the sandbox cannot be used, 4 when the trainer is gone, 5 when the engine broke on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import sandbox
from rollout import wire
from rollout.engine import Engine, EngineError, WeightsError
from rollout.episode import Budget, CannotPlay, Stage, play_group
from rollout.keys import Keys
from rollout.link_client import LinkClient, TrainerLost
from rollout.wire import Group, Key, Revoke, Stop, Ticket, Weights

if TYPE_CHECKING:
    from envs import ToolSpec
    from rollout.chat import Chat

ENGINES = {
    "torch": "rollout.engines.torch_engine:TorchEngine",
    "vllm": "rollout.engines.vllm_engine:VllmEngine",
}
CANNOT_START, TRAINER_GONE, ENGINE_FAILED = 3, 4, 5
_PR_SET_PDEATHSIG = 1
_ORPHAN_S = 10.0  # what an orderly end may take after the parent's


class CannotStart(RuntimeError):
    """The engine, the model, the sandbox or the weights cannot be used."""


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the trainer tells every worker, as JSON in `Welcome.config`.

    `engine` is a name in `ENGINES`, or "module:Class" of another `Engine`; it is constructed with `model`, and `slots`
    to `dtype`, and `engine_options` as keywords. An empty `sandbox` starts none ahead of the first use.
    `max_episodes` play at once; tickets beyond that wait in the worker.
    """

    model: str
    engine: str = "torch"
    slots: int = 128
    context: int = 1024
    threads: int = 1
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    engine_options: dict[str, Any] = {}
    sandbox: str = "local"
    sandbox_slots: int = 2
    max_episodes: int = 128
    budget: Budget = Budget()

    def find_engine(self) -> Callable[[], Engine]:
        """What makes the engine (and may take long). Raises `ValueError` for a name that is no engine."""
        place, _, attribute = ENGINES.get(self.engine, self.engine).partition(":")
        try:
            engine = getattr(importlib.import_module(place), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            known = ", ".join(ENGINES)
            raise ValueError(f"engine {self.engine!r} cannot be used ({error}); there are: {known}") from error
        keywords = {name: getattr(self, name) for name in ("slots", "context", "threads", "seed", "device", "dtype")}
        return partial(engine, self.model, **keywords, **self.engine_options)

    def make_new_chat(self) -> Callable[[tuple[ToolSpec, ...]], Chat]:
        """What starts a conversation with the model. Raises `ValueError` for a model without a chat template."""
        from rollout.chat import Chat
        from rollout.template import ChatTemplate

        return partial(Chat, ChatTemplate.load(self.model))


class Worker:
    """Between a link and a stage: starts tickets in the order of their arrival, while there is room for their episodes.

    A ticket starts only after all weights that were announced before it are loaded.
    """

    def __init__(self, link: LinkClient, stage: Stage, max_episodes: int) -> None:
        self._link, self._stage, self._max_episodes = link, stage, max_episodes
        self._queue: deque[tuple[Ticket, int]] = deque()  # a ticket, and how many notices of weights came before it
        self._groups: dict[Key, asyncio.Task[None]] = {}
        self._episodes = 0  # in play
        self._announced = self._loaded = 0  # notices of weights
        self._newest: Weights | None = None
        self._to_load, self._to_start = asyncio.Event(), asyncio.Event()
        link.observe = self.observe

    def observe(self) -> wire.Beat:
        """What happened since the last heartbeat."""
        counters = {name: float(count) for name, count in self._stage.counters.items()}
        return wire.Beat(self._stage.timeline.drain(), counters | {"in_play": float(self._episodes)})

    async def run(self, first: Weights | None) -> str:
        """Load the `first` weights (None: the engine has its own), play until the trainer says stop; returns why.

        Raises `TrainerLost`, and `EngineError` or `OSError` for weights that cannot be loaded.
        """
        self._stage.timeline.begin("idle")
        if first is not None:
            self._announce(first)
        else:
            self._link.send_loaded(self._stage.engine.version)
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = tasks.create_task(self._load()), tasks.create_task(self._start(tasks))
                reason = await self._obey()
                for task in (*helpers, *self._groups.values()):
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        return reason

    async def _obey(self) -> str:
        while True:
            match await self._link.receive():
                case Stop(reason=reason):
                    return reason
                case Weights() as weights:
                    self._announce(weights)
                case Ticket() as ticket:
                    self._queue.append((ticket, self._announced))
                    self._to_start.set()
                case Revoke(purpose=purpose, id=id, attempt=attempt):
                    self._revoke((purpose, id, attempt))

    def _announce(self, weights: Weights) -> None:
        self._newest = weights
        self._announced += 1
        self._to_load.set()

    async def _load(self) -> None:
        """Load the newest announced weights whenever there are any."""
        while await self._to_load.wait():
            self._to_load.clear()
            weights, announced = self._newest, self._announced
            assert weights is not None
            try:
                with self._stage.timeline.busy("load"):
                    await self._stage.engine.load(weights.path, weights.version)
            except (OSError, WeightsError, EngineError):
                if self._announced == announced:
                    raise
                continue  # the file went because newer weights came
            self._loaded = announced
            self._link.send_loaded(weights.version)
            self._to_start.set()

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Start tickets whenever one came, weights were loaded, or a group ended."""
        while await self._to_start.wait():
            self._to_start.clear()
            while self._queue and self._may_start(*self._queue[0]):
                ticket, _ = self._queue.popleft()
                if self._episodes == 0:
                    self._stage.timeline.end("idle")
                self._episodes += ticket.group_size
                task = self._groups[ticket.key] = tasks.create_task(self._play(ticket))
                task.add_done_callback(partial(self._ended, ticket))

    def _may_start(self, ticket: Ticket, after: int) -> bool:
        crowded = self._episodes > 0 and self._episodes + ticket.group_size > self._max_episodes
        return after <= self._loaded and not crowded

    async def _play(self, ticket: Ticket) -> None:
        began = time.monotonic()
        try:
            episodes = await play_group(ticket, self._stage)
            self._stage.engine.check()  # what a broken engine made of the group is nobody's result
        except CannotPlay as error:
            self._link.send_refused(ticket, str(error))
        else:
            self._stage.counters["groups"] += 1
            self._link.send_group(Group(ticket, episodes, self._link.name, time.monotonic() - began))

    def _ended(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        del self._groups[ticket.key]
        self._episodes -= ticket.group_size
        if self._episodes == 0:
            self._stage.timeline.begin("idle")
        self._to_start.set()

    def _revoke(self, key: Key) -> None:
        self._stage.counters["revoked"] += 1
        self._queue = deque((ticket, after) for ticket, after in self._queue if ticket.key != key)
        if key in self._groups:
            self._groups[key].cancel()


async def work(options: argparse.Namespace) -> str:
    """Connect, get ready, play until told to stop; returns the reason. Raises `TrainerLost` and `CannotStart`."""
    keys = Keys.read(options.keys) if options.keys else None
    async with AsyncExitStack() as stack:
        link = LinkClient(
            options.connect,
            options.name,
            options.capacity,
            keys=keys,
            silence_s=options.silence_s,
            parent=options.parent,
        )
        stack.push_async_callback(link.aclose)
        welcome = await link.connect(options.hello_s)
        try:
            config = msgspec.json.decode(welcome.config, type=WorkerConfig)
            stage = await prepare(config, stack)
        except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise CannotStart(f"{type(error).__name__}: {error}") from error
        try:
            return await Worker(link, stage, config.max_episodes).run(welcome.weights)
        except (FileNotFoundError, WeightsError) as error:
            raise CannotStart(f"weights cannot be loaded: {error}") from error


async def prepare(config: WorkerConfig, stack: AsyncExitStack) -> Stage:
    """Start the sandbox and the engine, and have `stack` close them.

    What takes long runs in a thread, so that the link's heart goes on beating.
    """
    if config.sandbox:
        sandbox.configure(backend=config.sandbox, slots=config.sandbox_slots)
        await sandbox.shared()
    stack.push_async_callback(sandbox.close_shared)
    make_engine = await asyncio.to_thread(config.find_engine)
    new_chat = await asyncio.to_thread(config.make_new_chat)
    engine = await asyncio.to_thread(make_engine)
    stack.push_async_callback(engine.aclose)
    await engine.start()
    return Stage(engine, new_chat, config.budget)


def end_with(parent: int, scratch: str | None) -> None:
    """Make this process end when `parent` does, even if its event loop hangs by then, and clear up after it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(_ORPHAN_S)
        clear_up(parent, scratch)
        os._exit(TRAINER_GONE)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def clear_up(parent: int | None, scratch: str | None) -> None:
    """Remove the run's folder in shared memory if its owner was killed and so could not."""
    if parent is not None and scratch is not None and os.getppid() != parent:
        shutil.rmtree(scratch, ignore_errors=True)


async def until_signal(options: argparse.Namespace) -> str:
    """`work()`, ended in order by SIGTERM or SIGINT."""
    task = asyncio.create_task(work(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return "a signal"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rollout.worker", description="Plays episodes for a trainer.")
    parser.add_argument("--connect", required=True, help="the trainer's address: ipc://PATH or tcp://HOST:PORT")
    parser.add_argument("--name", required=True, help="unique among the workers of a run")
    parser.add_argument("--capacity", type=int, default=32, help="tickets held at once (%(default)s)")
    parser.add_argument("--keys", help="file with the keys for tcp between hosts")
    parser.add_argument("--parent", type=int, help="id of the process that this one must not outlive")
    parser.add_argument("--scratch", help="folder of that process, removed where it was killed")
    parser.add_argument("--hello-s", type=float, default=30.0, help="wait for the trainer's first answer (%(default)s)")
    parser.add_argument("--silence-s", type=float, default=60.0, help="wait for a silent trainer (%(default)s)")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with(options.parent, options.scratch)
    try:
        reason, status = asyncio.run(until_signal(options)), 0
    except CannotStart as error:
        reason, status = f"cannot start: {error}", CANNOT_START
    except EngineError as error:
        reason, status = f"the engine failed: {error}", ENGINE_FAILED
    except (TrainerLost, OSError, ValueError) as error:
        reason, status = str(error), TRAINER_GONE
    clear_up(options.parent, options.scratch)
    if status:
        print(f"worker {options.name}: {reason}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
