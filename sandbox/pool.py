"""Who runs next: a bounded number of programs at once, and fair turns between episodes."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable

# Set it once an episode: everything that the episode's tasks run is then one party in the queue.
episode: contextvars.ContextVar[Hashable] = contextvars.ContextVar("sandbox_episode")


def _owner() -> Hashable:
    try:
        return episode.get()
    except LookupError:
        return id(asyncio.current_task())


class FairGate:
    """`slots` holders at a time. Waiting owners take turns, however many requests each has queued."""

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
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave()  # the slot was already ours
            else:
                queue = self._waiting.get(owner, deque())
                if future in queue:
                    queue.remove(future)
                if not queue:
                    self._waiting.pop(owner, None)
            raise

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
