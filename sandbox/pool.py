"""Who runs next: a bounded number of programs at once, and fair turns between episodes."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sandbox.protocol import SandboxError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable

# Set it once an episode: everything that the episode's tasks run is then one party in the queue.
episode: contextvars.ContextVar[Hashable] = contextvars.ContextVar("sandbox_episode")


def _owner() -> Hashable:
    try:
        return episode.get()
    except LookupError:
        return id(asyncio.current_task())


WAIT_S = 600.0


class FairGate:
    """`slots` holders at a time. Waiting owners take turns, however many requests each has queued.

    A wait of more than `WAIT_S` raises `SandboxError`: every holder has a deadline of its own, so something is wrong.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self._free = slots
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # in order of whose turn it is

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold a slot. A cancelled wait gives up its place."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        owner = _owner()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(future)
        try:
            async with asyncio.timeout(WAIT_S):
                await future
        except TimeoutError:
            self._withdraw(owner, future)
            raise SandboxError(f"no slot became free within {WAIT_S:.0f} s") from None
        except asyncio.CancelledError:
            self._withdraw(owner, future)
            raise

    def _withdraw(self, owner: Hashable, future: asyncio.Future[None]) -> None:
        if future.done() and not future.cancelled():
            self._leave()  # the slot was already ours
            return
        queue = self._waiting.get(owner, deque())
        if future in queue:
            queue.remove(future)
        if not queue:
            self._waiting.pop(owner, None)

    def _leave(self) -> None:
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            future = queue.popleft()
            del self._waiting[owner]
            if queue:
                self._waiting[owner] = queue  # behind everybody else
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
