"""The Docker Engine backend: warm, hardened containers with a warden in each, through the `docker` package.

Podman's API socket works too. Containers carry a label with the process that owns them: each start removes those
whose owner is gone, so that even a SIGKILL of the owner leaves nothing for longer than that.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sandbox.canary import check_canary
from sandbox.container import Container
from sandbox.engine import Engine
from sandbox.pool import FairGate
from sandbox.protocol import ExecResult, Limits, SandboxError

_WAIT_S = 120.0


def _encoded(source: bytes | str) -> bytes:
    return source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source


class DockerSandbox:
    """Runs programs in containers, at most `slots` at a time.

    `host`: the engine's URL (default: DOCKER_HOST, or the usual socket). `image`: use this one, which must hold a
    Python of this version, instead of one built from local files. `runtime`: e.g. "runsc" for gVisor. `warm=False`
    gives every program a container of its own. `boxes` bounds the containers that open boxes hold. The memory, process
    and /tmp bounds of `limits` are those of every container: a call may ask for less, not for more.
    """

    backend = "docker"

    def __init__(
        self,
        slots: int = 2,
        *,
        limits: Limits | None = None,
        packages: tuple[str, ...] = (),
        host: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        warm: bool = True,
        boxes: int = 16,
    ) -> None:
        self.isolation = f"container:{runtime or 'default'}"
        self.limits = limits or Limits()
        self.slots = slots
        self._gate = FairGate(slots)
        self._box_gate = FairGate(boxes)
        self._engine = Engine(host, image, packages, runtime, self.limits)
        self._warm = warm
        self._idle: list[Container] = []
        self._all: set[Container] = set()
        self._closed = False

    async def start(self) -> None:
        """Find the engine, load the image, start the slots and run the canary. Raises `SandboxError`."""
        try:
            self.isolation = f"container:{await asyncio.to_thread(self._engine.connect)}"
            if self._warm:
                self._idle = list(await asyncio.gather(*(self._new() for _ in range(self.slots))))
            await check_canary(self)
        except SandboxError:
            await self.aclose()
            raise

    async def _new(self) -> Container:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        container = Container(self._engine)
        self._all.add(container)
        try:
            await container.start()
        except BaseException:
            await self._remove(container)
            raise
        return container

    async def _remove(self, container: Container) -> None:
        self._all.discard(container)
        await container.aclose()

    async def take(self) -> Container:
        """A clean container that nobody uses."""
        while self._idle:
            container = self._idle.pop(0)
            if await container.clean():
                return container
            await self._remove(container)
        return await self._new()

    async def give_back(self, container: Container) -> None:
        """Keep a container that is as good as new; replace any other."""
        if container.usable and self._warm and len(self._idle) < self.slots and not self._closed:
            self._idle.append(container)
        else:
            await self._remove(container)

    def _check(self, limits: Limits) -> Limits:
        for name in ("memory_bytes", "pids", "tmp_bytes"):
            if getattr(limits, name) > getattr(self.limits, name):
                raise ValueError(
                    f"Limits.{name} is above that of this sandbox's containers: create it with higher ones"
                )
        return limits

    async def call(
        self, container: Container, source: bytes, stdin: bytes, limits: Limits, *, once: bool, queue_s: float
    ) -> ExecResult:
        outcome = await container.run(source, stdin, self._check(limits), once=once)
        return outcome.to_result(queue_s=queue_s, backend=self.backend, isolation=self.isolation)

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        queued = time.monotonic()
        async with self._gate.turn():
            container = await self.take()
            try:
                queue_s = time.monotonic() - queued
                return await self.call(
                    container, _encoded(source), stdin, limits or self.limits, once=True, queue_s=queue_s
                )
            finally:
                await self.give_back(container)

    async def open(self, *, limits: Limits | None = None) -> DockerBox:
        return DockerBox(self, self._check(limits or self.limits))

    async def aclose(self) -> None:
        self._closed = True
        self._idle.clear()
        await asyncio.gather(*(self._remove(container) for container in list(self._all)), return_exceptions=True)
        await asyncio.to_thread(self._engine.close)


class DockerBox:
    """A container that stays with one episode from its first call on."""

    def __init__(self, sandbox: DockerSandbox, limits: Limits) -> None:
        self.restarted = False
        self._sandbox = sandbox
        self._limits = limits
        self._container: Container | None = None
        self._turn: Any = None
        self._lost = False
        self._closed = False
        self._busy = asyncio.Lock()

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        sandbox = self._sandbox
        async with self._busy:
            if self._closed:
                raise SandboxError("the box is closed")
            queued = time.monotonic()
            await self._enter()
            async with sandbox._gate.turn():
                self.restarted = self._lost
                if self._container is None:
                    self._container = await sandbox.take()
                self._lost = True  # unless the call leaves the child as it should be
                try:
                    queue_s = time.monotonic() - queued
                    result = await sandbox.call(
                        self._container, _encoded(source), stdin, limits or self._limits, once=False, queue_s=queue_s
                    )
                    self._lost = not self._container.holds_state
                    return result
                finally:
                    if self._lost:
                        container, self._container = self._container, None
                        await container.reset()
                        await sandbox.give_back(container)

    async def _enter(self) -> None:
        """Take one of the places for boxes, for as long as the box is open."""
        if self._turn is None:
            turn = self._sandbox._box_gate.turn()
            try:
                async with asyncio.timeout(_WAIT_S):
                    await turn.__aenter__()
            except TimeoutError:
                raise SandboxError(f"no place for another box within {_WAIT_S:.0f} s: raise `boxes`") from None
            self._turn = turn

    async def aclose(self) -> None:
        self._closed = True
        async with self._busy:
            container, self._container = self._container, None
            if container is not None:
                await container.reset()
                await self._sandbox.give_back(container)
            turn, self._turn = self._turn, None
            if turn is not None:
                await turn.__aexit__(None, None, None)
