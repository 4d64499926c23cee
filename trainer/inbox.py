"""Grants tickets, takes groups, and keeps what is too old out of a step.

A data position is one integer, the ticket's id. Everything that was received is in the ledger, so the inbox of a
resumed run goes through the same groups in the same order, and grants only what never arrived.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec

from envs.types import Status
from rollout import wire
from trainer.ledger import Ledger

ATTEMPTS = 3  # to play a task of which nothing comes
MOST_FLAT = 4  # steps' worth of groups that dynamic sampling may replace in one step; a solved task set has no others


class StalledError(RuntimeError):
    """Nothing arrived within the deadline."""


class Grants(Protocol):
    """The part of the link that the inbox uses."""

    def grant(self, ticket: wire.Ticket) -> None: ...


class InboxState(msgspec.Struct):
    """What a checkpoint keeps. `steps` counts the takes, `replaced` the groups that said nothing; below `trained_below`
    every id is trained (or replaced), and `trained` holds those above it."""

    steps: int = 0
    granted: int = 0
    replaced: int = 0
    trained_below: int = 0
    trained: list[int] = []
    attempts: dict[int, int] = {}  # of ids whose group was dropped, until they are trained


class Inbox:
    """`receive` is called by the link's thread, everything else by the trainer's.

    `ticket_for(id, attempt)` makes the ticket of a data position; `total` ids exist in the run, and one more for each
    group that is not `informative` and so replaced. `check` is called before every step and while waiting, and may
    raise to end the run.
    """

    def __init__(
        self,
        ticket_for: Callable[[int, int], wire.Ticket],
        total: int,
        ledger: Ledger,
        link: Grants,
        *,
        state: InboxState | None = None,
        stall_s: float = 300.0,
        check: Callable[[], None] = lambda: None,
        informative: Callable[[wire.Group], bool] = lambda group: True,
    ) -> None:
        self.ticket_for = ticket_for
        self.total = total
        self.ledger = ledger
        self.link = link
        self.state = state or InboxState()
        self.stall_s = stall_s
        self.check = check
        self.informative = informative
        self._upto = 0
        self.dropped: Counter[str] = Counter()
        self._trained = set(self.state.trained)
        self._ready: list[tuple[int, tuple[str, int, int]]] = []  # heap of (ledger offset, ticket key)
        self._arrived: dict[tuple[str, int, int], wire.Group] = {}
        self._wanted: set[tuple[str, int, int]] = set()
        self._on_eval: Callable[[wire.Group], None] | None = None
        self._broken: list[wire.Ticket] = []  # whose group came without a sound episode
        self._failures = 0  # of such groups in a row
        self._last_failure = ""
        self._lock = threading.Condition()
        self.ledger.unmark(self.state.steps)
        for id_ in range(self.state.trained_below, self.state.granted):
            if id_ not in self._trained:
                self._ask(self.ticket_for(id_, self.state.attempts.get(id_, 0)))

    def grant(self, upto: int) -> None:
        """Grant every data position below `upto` that was not granted yet, and those that replace others."""
        self._upto = upto
        end = min(upto, self.total) + self.state.replaced
        for id_ in range(self.state.granted, end):
            self._ask(self.ticket_for(id_, 0))
        self.state.granted = max(self.state.granted, end)

    def evaluate(self, tickets: Collection[wire.Ticket], on_group: Callable[[wire.Group], None]) -> None:
        """Have evaluation `tickets` played; `on_group` gets each group at the next `take` or `serve_evaluations`."""
        self._on_eval = on_group
        for ticket in tickets:
            self._ask(ticket)

    def has(self, ticket: wire.Ticket) -> bool:
        """Whether the ticket's group is in the ledger."""
        return ticket.key in self.ledger.offsets

    def receive(self, group: wire.Group) -> None:
        """Write `group` to the ledger, then hold it ready. What is there already is left as it is.

        A training group of which no episode is sound says nothing but that something is broken: it is not kept, and
        its task comes again; a task that fails while others succeed does so `ATTEMPTS` times.
        """
        key = group.ticket.key
        with self._lock:
            if key in self.ledger.offsets:
                return
            broken = [e.error for e in group.episodes if e.status is Status.ERRORED]
            if group.ticket.purpose == "train" and len(broken) == len(group.episodes):
                self._failures, self._last_failure = self._failures + 1, broken[0]
                if self._failures > ATTEMPTS or group.ticket.attempt < ATTEMPTS:
                    if key in self._wanted:
                        self._wanted.discard(key)
                        self._broken.append(group.ticket)
                        self._lock.notify_all()
                    return
            else:
                self._failures = 0
            offset = self.ledger.append(group)
            if key in self._wanted:
                self._arrived[key] = group
                heapq.heappush(self._ready, (offset, key))
                self._lock.notify_all()

    def take(self, count: int, oldest: int) -> list[wire.Group]:
        """The `count` groups that arrived first and hold no token older than version `oldest`.

        Older groups are dropped whole and counted, and their tasks granted again; those that say nothing are replaced
        by other tasks'. Raises `StalledError` when nothing arrives for `stall_s` seconds.
        """
        taken: list[wire.Group] = []
        replaced = 0
        self.check()
        while len(taken) < count:
            group = self._next(f"{count - len(taken)} more groups of {count} for the next step")
            if group.ticket.purpose == "eval":
                self._serve(group)
            elif (version := group.oldest()) is not None and version < oldest:
                self._drop(group)
            elif replaced < MOST_FLAT * count and not self.informative(group):
                replaced += 1
                self._replace(group)
            else:
                taken.append(group)
        self._mark_trained([g.ticket.id for g in taken])
        self.state.steps += 1
        self.ledger.mark(self.state.steps, [g.ticket.key for g in taken])
        return taken

    def serve_evaluations(self, pending: Callable[[], int]) -> None:
        """Wait until `pending()` evaluation groups are 0, leaving training groups where they are."""
        held: list[wire.Group] = []
        while left := pending():
            group = self._next(f"{left} evaluation groups")
            if group.ticket.purpose == "eval":
                self._serve(group)
            else:
                held.append(group)
        with self._lock:
            for group in held:
                self._arrived[group.ticket.key] = group
                heapq.heappush(self._ready, (self.ledger.offsets[group.ticket.key], group.ticket.key))

    def _ask(self, ticket: wire.Ticket) -> None:
        """Hold the ticket's group ready if the ledger has it, and have it played otherwise."""
        with self._lock:
            self._wanted.add(ticket.key)
            offset = self.ledger.offsets.get(ticket.key)
            if offset is not None:
                heapq.heappush(self._ready, (offset, ticket.key))
                return
        self.link.grant(ticket)

    def _next(self, what: str) -> wire.Group:
        deadline = time.monotonic() + self.stall_s
        while True:
            with self._lock:
                broken, self._broken = self._broken, []
            for ticket in broken:
                self._ask_again(ticket, "groups/errored")
            with self._lock:
                if not self._ready:
                    self._lock.wait(0.1)
                if self._ready:
                    _, key = heapq.heappop(self._ready)
                    self._wanted.discard(key)
                    group = self._arrived.pop(key, None)
                    return group if group is not None else self.ledger.read(key)
            self.check()
            if time.monotonic() > deadline:
                failed = f"; {self._failures} groups failed, the last with: {self._last_failure}"
                told = failed if self._failures else ""
                raise StalledError(f"nothing arrived for {self.stall_s:.0f} s; waiting for {what}{told}")

    def _serve(self, group: wire.Group) -> None:
        assert self._on_eval is not None, "an evaluation group arrived that nobody asked for"
        self._on_eval(group)

    def _drop(self, group: wire.Group) -> None:
        """Count the drop by environment and length, since dropping stragglers biases training to short episodes."""
        ticket = group.ticket
        longest = max((len(s.tokens) for e in group.episodes for s in e.sequences), default=0)
        self.dropped[f"groups/dropped_stale/{ticket.env}"] += 1
        self.dropped[f"groups/dropped_stale/to_{1 << max(6, (longest - 1).bit_length())}_tokens"] += 1
        self._ask_again(ticket, "groups/dropped_stale")

    def _replace(self, group: wire.Group) -> None:
        self.dropped["groups/replaced"] += 1
        self._mark_trained([group.ticket.id])
        self.state.replaced += 1
        self.grant(self._upto)

    def _ask_again(self, ticket: wire.Ticket, why: str) -> None:
        self.dropped[why] += 1
        self.state.attempts[ticket.id] = ticket.attempt + 1
        self._ask(self.ticket_for(ticket.id, ticket.attempt + 1))

    def _mark_trained(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self._trained.add(id_)
            self.state.attempts.pop(id_, None)
        while self.state.trained_below in self._trained:
            self._trained.discard(self.state.trained_below)
            self.state.trained_below += 1
        self.state.trained = sorted(self._trained)
