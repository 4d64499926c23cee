"""SIGINT and SIGTERM end a run in order.

Either raises `KeyboardInterrupt` wherever the program is. Libraries have places that swallow it (a lazy import's bare
`except`, a finalizer), so it is also remembered, and raised again by `check`, which the loop comes to at every step.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_asked: list[int] = []  # signals that came


@contextlib.contextmanager
def obeyed() -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM interrupt."""

    def interrupt(number: int, frame: Any) -> None:
        _asked.append(number)
        raise KeyboardInterrupt

    _asked.clear()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise `KeyboardInterrupt` if one was asked for and has not ended the run."""
    if _asked:
        raise KeyboardInterrupt
