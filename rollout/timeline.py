"""What this process did when, coarsely enough to be cheap: the bars of the overlap timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollout.wire import Span

MERGE_S = 0.1  # bars of one kind that are closer than this become one: at most 10 a second of each kind
_KEPT = 4096  # the most that one heartbeat carries


class Timeline:
    """Bars by kind ("generate", "tool", "load", "idle"). A kind is busy while at least one of its activities runs."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._bars: dict[str, list[float]] = {}  # the newest bar of each kind: start, end
        self._done: list[Span] = []

    def begin(self, what: str) -> None:
        running = self._running.get(what, 0)
        self._running[what] = running + 1
        if running == 0:
            now = time.time()
            bar = self._bars.get(what)
            if bar is None or now - bar[1] > MERGE_S:
                self._close(what)
                self._bars[what] = [now, now]

    def end(self, what: str) -> None:
        self._running[what] -= 1
        if self._running[what] == 0:
            self._bars[what][1] = time.time()

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        self.begin(what)
        try:
            yield
        finally:
            self.end(what)

    def drain(self) -> list[Span]:
        """What happened since the last call. A bar that still grows is cut here and goes on in the next answer."""
        now = time.time()
        for what in list(self._bars):
            if self._running[what]:
                self._bars[what][1] = now
                self._close(what)
                self._bars[what] = [now, now]
            else:
                self._close(what)
        done, self._done = self._done[-_KEPT:], []
        return done

    def _close(self, what: str) -> None:
        bar = self._bars.pop(what, None)
        if bar is not None and bar[1] > bar[0]:
            self._done.append(Span(what, *bar))
