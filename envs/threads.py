"""Blocking code beside an event loop: one call in a thread, and one event loop behind synchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], /, **arguments: Any) -> T:
    """Run blocking `function` in a daemon thread of its own and wait for it.

    A thread cannot be stopped: after a timeout of the caller it goes on, its result is dropped, and it holds up
    neither other calls (there is no pool to exhaust) nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():  # cancelled
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]
        else:
            result.set_exception(error)

    def work() -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = context.run(function, **arguments)
        except StopIteration as error:  # which a future refuses to carry
            failure = RuntimeError(f"raised StopIteration: {error}")
        except BaseException as error:  # carried over to the caller, whatever it is
            failure = error
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=work, daemon=True, name=f"tool {getattr(function, '__name__', '')}").start()
    return await result


class Portal:
    """An event loop in a daemon thread, shared by all synchronous faces of a process."""

    _shared: Portal | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="environment loop").start()

    @classmethod
    def shared(cls) -> Portal:
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `coroutine` to its end. Raises `TimeoutError` saying so after `timeout_s`, and what it raises itself."""
        what = getattr(coroutine, "__qualname__", "a coroutine")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise TimeoutError(f"{what} took longer than {timeout_s:g} s") from None
