"""Which tickets are out, who holds them, and whose turn it is. Book-keeping only: no sockets, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollout.wire import Key, Ticket


@dataclass
class _Open:
    ticket: Ticket
    order: int
    holders: set[str] = field(default_factory=set)


class TicketBook:
    """Tickets that were granted and are not finished.

    A ticket waits, in the order of the grants, until a worker takes it. When its last holder lets go it waits again,
    in its old place. It usually has one holder; it has two when a worker that was given up on comes back while
    another plays its ticket: the first group wins.
    """

    def __init__(self) -> None:
        self._open: dict[Key, _Open] = {}
        self._held: dict[str, set[Key]] = {}
        self._waiting: list[tuple[int, Key]] = []  # a heap; entries that are finished or held are skipped when popped
        self._granted = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        """How many tickets nobody holds."""
        return sum(not entry.holders for entry in self._open.values())

    def get(self, key: Key) -> Ticket | None:
        """The ticket of `key`, if it is out."""
        entry = self._open.get(key)
        return entry.ticket if entry else None

    def held(self, worker: str) -> int:
        """How many tickets `worker` holds."""
        return len(self._held.get(worker, ()))

    def holds(self, worker: str, key: Key) -> bool:
        return key in self._held.get(worker, ())

    def grant(self, ticket: Ticket) -> None:
        """A ticket that is out already is not granted twice."""
        if ticket.key not in self._open:
            self._granted += 1
            self._open[ticket.key] = _Open(ticket, self._granted)
            heapq.heappush(self._waiting, (self._granted, ticket.key))

    def take(self, worker: str) -> Ticket | None:
        """Give the first waiting ticket to `worker`; None if none waits."""
        while self._waiting:
            order, key = heapq.heappop(self._waiting)
            entry = self._open.get(key)
            if entry is not None and entry.order == order and not entry.holders:
                self._hold(worker, key)
                return entry.ticket
        return None

    def adopt(self, worker: str, holding: Iterable[Key]) -> list[Key]:
        """A worker says what it holds. Returns those of its tickets that are not out (any more)."""
        unwanted = []
        for key in holding:
            if key in self._open:
                self._hold(worker, key)
            else:
                unwanted.append(key)
        return unwanted

    def release(self, worker: str, keep: Iterable[Key] = ()) -> int:
        """Take from `worker` all that it holds, except `keep`. Returns how many tickets wait again because of it."""
        kept = self._held.pop(worker, set())
        lost = kept.difference(keep)
        kept -= lost
        if kept:
            self._held[worker] = kept
        waiting_again = 0
        for key in lost:
            entry = self._open[key]
            entry.holders.discard(worker)
            if not entry.holders:
                heapq.heappush(self._waiting, (entry.order, key))
                waiting_again += 1
        return waiting_again

    def finish(self, key: Key) -> set[str]:
        """The ticket is done with, or not wanted any more. Returns who held it; unknown keys are ignored."""
        entry = self._open.pop(key, None)
        if entry is None:
            return set()
        for worker in entry.holders:
            self._held[worker].discard(key)
        return entry.holders

    def _hold(self, worker: str, key: Key) -> None:
        self._open[key].holders.add(worker)
        self._held.setdefault(worker, set()).add(key)
