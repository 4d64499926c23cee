"""The embedded backend: Linux namespaces and a zygote, with nothing to install."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections import deque
from dataclasses import dataclass

from sandbox import watchdog
from sandbox.advice import namespace_fix
from sandbox.call import RunningCall, UnreachedError, settle
from sandbox.canary import check_canary
from sandbox.cgroup import Cgroup, CgroupPool, create_pool
from sandbox.pool import FairGate
from sandbox.protocol import ExecResult, Limits, SandboxError
from sandbox.zygote import ARM_S, Child, ZygoteProcess

ISOLATIONS = ("namespaces", "landlock", "none")
_END_S = 5.0
_ATTEMPTS = 3
_names = itertools.count(1)  # of this process's cgroups
_OR = 'or use backend="docker", or accept weaker isolation with isolation="landlock" or "none"'


@dataclass(slots=True)
class _Place:
    """An armed child, and the group that bounds its memory."""

    child: Child
    group: Cgroup | None


def _encoded(source: bytes | str) -> bytes:
    return source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source


class LocalSandbox:
    """Runs programs in fresh children of one zygote, at most `slots` at a time.

    `packages` names installed import packages (such as "numpy") that programs may import besides the standard library.
    `isolation` is "namespaces", or, where a machine has none and it is accepted, "landlock" or "none" (`sandbox.bare`).
    """

    backend = "local"

    def __init__(
        self,
        slots: int = 2,
        *,
        limits: Limits | None = None,
        packages: tuple[str, ...] = (),
        isolation: str = "namespaces",
    ) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(f"unknown isolation {isolation!r}; known: {', '.join(ISOLATIONS)}")
        self.isolation = isolation
        self.limits = limits or Limits()
        self.slots = slots
        self._packages = packages
        self._gate = FairGate(slots)
        self._spares: deque[asyncio.Task[_Place]] = deque()
        self._tasks: set[asyncio.Task] = set()
        self._groups: CgroupPool | None = None
        self._old_groups: list[CgroupPool] = []  # of zygotes that ended
        self._zygote: ZygoteProcess | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def bounds(self) -> str:
        """What bounds a program's memory: "cgroup" or "watchdog"."""
        return "cgroup" if self._groups else "watchdog"

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the zygote and run the canary. Raises `SandboxError` with what to set or use instead."""
        if sys.platform != "linux":
            raise SandboxError('the embedded sandbox needs Linux: use backend="docker"')
        try:
            await self._live_zygote()
            await check_canary(self)
        except SandboxError:
            await self.aclose()
            raise

    async def _live_zygote(self) -> ZygoteProcess:
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._zygote is not None and self._zygote.alive:
                return self._zygote
            if self._zygote is not None:
                await self._zygote.aclose()
            self._drop_spares()
            if self._groups is not None:
                self._old_groups.append(self._groups)
            self._groups = create_pool(f"slipstream-{os.getpid()}-{next(_names)}")
            zygote = ZygoteProcess(self.isolation, self._packages, [str(self._groups.root)] if self._groups else [])
            try:
                await zygote.start()
            except SandboxError as error:
                fix = f". To allow namespaces: {namespace_fix()}; {_OR}" if self.isolation == "namespaces" else ""
                raise SandboxError(f"the embedded sandbox cannot start: {error}{fix}") from error
            self._zygote = zygote
            for _ in range(self.slots):
                self._order_spare()
            return zygote

    async def aclose(self) -> None:
        self._closed = True
        self._drop_spares()
        if self._zygote is not None:
            await self._zygote.aclose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for groups in (*self._old_groups, *([self._groups] if self._groups else [])):
            deadline = time.monotonic() + _END_S
            while not await asyncio.to_thread(groups.close) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        self._old_groups.clear()
        self._groups = None

    # -- children -----------------------------------------------------------------------------------------------------

    def _drop_spares(self) -> None:
        while self._spares:
            task = self._spares.popleft()
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().child.close()
            task.cancel()

    def _spawn(self, coroutine) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _order_spare(self) -> None:
        assert self._zygote is not None
        self._spares.append(self._spawn(self._arm(self._zygote, self.limits.tmp_bytes)))

    async def _arm(self, zygote: ZygoteProcess, tmp_bytes: int) -> _Place:
        child = zygote.fork(tmp_bytes)
        try:
            async with asyncio.timeout(ARM_S):
                await child.armed
            group = None
            if self._groups is not None:
                group = self._groups.take()
                await self._groups.add(group, child.pid)
            return _Place(child, group)
        except BaseException as error:
            child.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"a child was not armed within {ARM_S:.0f} s") from error
            if isinstance(error, OSError):
                raise SandboxError(f"a child could not be put into its cgroup: {error}") from error
            raise

    async def take(self, limits: Limits) -> _Place:
        """A child that nobody has used. Raises `SandboxError`."""
        for attempt in range(_ATTEMPTS):
            zygote = await self._live_zygote()
            try:
                if limits.tmp_bytes != self.limits.tmp_bytes or not self._spares:
                    return await self._arm(zygote, limits.tmp_bytes)
                task = self._spares.popleft()
                self._order_spare()
                return await task
            except SandboxError:  # with its zygote, perhaps: a new one is started then
                if self._closed or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def release(self, place: _Place) -> None:
        """Let go of a child: it ends, and its group is free once it has."""
        place.child.close()
        if self._zygote is not None:
            self._zygote.kill(place.child)
        if place.group is not None and self._groups is not None:
            if place.child.exited.done():
                self._groups.give_back(place.group)
            else:
                self._spawn(self._give_back_later(place))

    async def _give_back_later(self, place: _Place) -> None:
        if await settle(place.child.exited, _END_S) and self._groups is not None and place.group is not None:
            self._groups.give_back(place.group)

    async def call(self, place: _Place, source: bytes, stdin: bytes, limits: Limits, *, once: bool) -> ExecResult:
        """Run one program in a taken child, in turn with everybody else's."""
        queued = time.monotonic()
        async with self._gate.turn():
            queue_s = time.monotonic() - queued
            return await self._call(place, source, stdin, limits, once, queue_s)

    async def _call(
        self, place: _Place, source: bytes, stdin: bytes, limits: Limits, once: bool, queue_s: float
    ) -> ExecResult:
        zygote = self._zygote
        if zygote is None:
            raise SandboxError("the sandbox is closed")
        try:
            return await self._attend(place, zygote, source, stdin, limits, once, queue_s)
        except OSError as error:  # no descriptor or memory left, a cgroup that is gone: never the program's doing
            raise SandboxError(f"a program could not be run: {error}") from error

    async def _attend(
        self,
        place: _Place,
        zygote: ZygoteProcess,
        source: bytes,
        stdin: bytes,
        limits: Limits,
        once: bool,
        queue_s: float,
    ) -> ExecResult:
        call = RunningCall(place.child, limits, lambda: zygote.kill(place.child), once=once)
        watching: asyncio.Task | None = None
        if place.group is not None:
            place.group.bound(limits.memory_bytes, limits.pids)
        else:
            inherited_bytes, _ = watchdog.measure(place.child.pid)
            watching = self._spawn(watchdog.watch(place.child.pid, inherited_bytes, limits, call.exceed))
        try:
            outcome = await call.run(source, stdin)
        finally:
            if watching is not None:
                watching.cancel()
        if place.group is not None and place.group.count_kills():
            outcome.limits_hit.append("memory")
        return outcome.to_result(queue_s=queue_s, backend=self.backend, isolation=self.isolation)

    # -- the Protocol -------------------------------------------------------------------------------------------------

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        limits = limits or self.limits
        queued = time.monotonic()
        async with self._gate.turn():
            for attempt in range(_ATTEMPTS):
                place = await self.take(limits)
                try:
                    queue_s = time.monotonic() - queued
                    return await self._call(place, _encoded(source), stdin, limits, True, queue_s)
                except UnreachedError:
                    if attempt == _ATTEMPTS - 1:
                        raise
                finally:
                    self.release(place)
        raise AssertionError("unreachable")

    async def open(self, *, limits: Limits | None = None) -> LocalBox:
        return LocalBox(self, limits or self.limits)


class LocalBox:
    """A child that stays: made on the first call, made again after one that ended it."""

    def __init__(self, sandbox: LocalSandbox, limits: Limits) -> None:
        self.restarted = False
        self._sandbox = sandbox
        self._limits = limits
        self._place: _Place | None = None
        self._lost = False
        self._closed = False
        self._busy = asyncio.Lock()

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        async with self._busy:
            if self._closed:
                raise SandboxError("the box is closed")
            if self._place is not None and self._place.child.exited.done():
                self._drop()  # it ended between two calls
            self.restarted = self._lost
            if self._place is None:
                self._place = await self._sandbox.take(self._limits)
            self._lost = True  # unless the call leaves the child as it should be
            try:
                result = await self._sandbox.call(
                    self._place, _encoded(source), stdin, limits or self._limits, once=False
                )
                self._lost = self._place.child.exited.done()
                return result
            finally:
                if self._lost:
                    self._drop()

    def _drop(self) -> None:
        if self._place is not None:
            self._sandbox.release(self._place)
            self._place = None
        self._lost = True

    async def aclose(self) -> None:
        self._closed = True
        if self._place is not None:
            place, self._place = self._place, None
            self._sandbox.release(place)
            with contextlib.suppress(SandboxError):
                await settle(place.child.exited, _END_S)
