"""What the trainer's end of the link decides: who gets which ticket, who is alive, what is answered to whom.

Single-threaded, and without a socket or a clock of its own: `rollout.link` brings both.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rollout import wire
from rollout.tickets import TicketBook
from rollout.wire import BEAT_S, Group, Hello, Key, Span, Ticket, Weights

LOST_S = 3.0  # how long a worker whose connection broke may take to come back before others get its tickets
_CONNECTIONS = 1024  # of which malformed frames are remembered
_SPANS = 65536

Put = Callable[[bytes, bytes], Literal["sent", "full", "gone"]]  # (connection, frame)


class LinkError(RuntimeError):
    """The run cannot go on: a worker refused a ticket, a group could not be kept, or the link itself failed."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as the live view shows it; `loaded` is the version that it draws with, None before the first."""

    name: str
    pid: int
    capacity: int
    held: int
    loaded: int | None
    silent_s: float
    counters: dict[str, float]


@dataclass(frozen=True, slots=True)
class LinkState:
    """What the link knows. `out` counts granted, unfinished tickets; `waiting` those of them that nobody holds.
    `counts` has accepted, duplicates, malformed, regranted, dead (workers given up) and unknown (frames)."""

    workers: tuple[WorkerState, ...] = ()
    out: int = 0
    waiting: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class _Peer:
    """A worker that said Hello, on the connection that it said it on."""

    name: str
    connection: bytes
    pid: int
    capacity: int
    heard_at: float
    unreachable: bool = False
    loaded: int | None = None
    counters: dict[str, float] = field(default_factory=dict)
    outbox: deque[wire.ToWorker] = field(default_factory=deque)


class Dispatch:
    """Peers, their tickets and their outboxes. `put` sends one frame without ever waiting; `fail` takes what must end
    the run. The rest is documented at `rollout.link.LinkServer`."""

    def __init__(
        self,
        put: Put,
        welcome: bytes,
        on_group: Callable[[Group], None],
        fail: Callable[[LinkError], None],
        *,
        silence_s: float,
        strikes: int,
        outbox: int,
    ) -> None:
        self._put, self._welcome, self._on_group, self._fail = put, welcome, on_group, fail
        self._silence_s, self._strikes, self._outbox = silence_s, strikes, outbox
        self._book = TicketBook()
        self._peers: dict[str, _Peer] = {}
        self._connections: dict[bytes, _Peer] = {}
        self._malformed: OrderedDict[bytes, int] = OrderedDict()
        self._weights: Weights | None = None
        self._stopped: str | None = None
        self._failed = False
        self._counts: Counter[str] = Counter()
        self._next_beat = 0.0
        self._ticked_at: float | None = None
        self.spans: deque[tuple[str, Span]] = deque(maxlen=_SPANS)

    # What the trainer wants.

    def grant(self, ticket: Ticket) -> None:
        self._book.grant(ticket)

    def revoke(self, ticket: Ticket) -> None:
        self._finish(ticket.key)

    def publish(self, weights: Weights) -> None:
        self._weights = weights
        for peer in self._peers.values():
            # Of several notices that a slow worker has not read, only the newest matters.
            unread = next((i for i, frame in enumerate(peer.outbox) if isinstance(frame, Weights)), None)
            if unread is None:
                self._send(peer, weights)
            else:
                peer.outbox[unread] = weights

    def worker_gone(self, name: str) -> None:
        self._drop(self._peers.get(name))

    def stop(self, reason: str) -> None:
        self._stopped = reason
        for peer in self._peers.values():
            self._send(peer, wire.Stop(reason))

    # What the workers say.

    def receive(self, connection: bytes, parts: list[bytes], now: float) -> None:
        """One message. Never raises for what a peer sent."""
        if self._malformed.get(connection, 0) >= self._strikes:
            self._counts["malformed"] += 1
            return
        try:
            if len(parts) != 1:
                raise wire.WireError(f"a message of {len(parts)} parts")
            frame = wire.decode_to_trainer(parts[0])
            if isinstance(frame, Hello):
                self._on_hello(connection, frame, now)
            elif (peer := self._connections.get(connection)) is not None:
                peer.heard_at, peer.unreachable = now, False
                self._on_frame(peer, frame)
            else:
                self._counts["unknown"] += 1
                self._answer(connection, wire.Unknown() if self._stopped is None else wire.Stop(self._stopped))
        except wire.WireError as error:
            self._strike(connection, error)

    def _on_frame(self, peer: _Peer, frame: wire.ToTrainer) -> None:
        match frame:
            case Group():
                self._on_group_frame(peer, frame)
            case wire.Beat():
                peer.counters = frame.counters
                self.spans.extend((peer.name, span) for span in frame.spans)
            case wire.Loaded():
                peer.loaded = frame.version
            case wire.Refused() if self._book.holds(peer.name, frame.ticket.key):
                self._end(LinkError(f"worker {peer.name} cannot play {frame.ticket.env!r}: {frame.error}"))

    def _on_hello(self, connection: bytes, hello: Hello, now: float) -> None:
        if hello.protocol != wire.PROTOCOL:
            reason = f"this trainer speaks protocol {wire.PROTOCOL}, the worker {hello.protocol}"
            self._answer(connection, wire.Stop(reason))
            return
        if self._stopped is not None:
            self._answer(connection, wire.Stop(self._stopped))
            return
        peer = _Peer(hello.worker, connection, hello.pid, hello.capacity, now)
        before = self._connections.get(connection)
        if before is not None and before.name != peer.name:
            self._drop(before)
        known = self._peers.get(peer.name)
        if known is not None:
            self._replace(known, peer, hello.holding)
        self._peers[peer.name] = self._connections[connection] = peer
        self._send(peer, wire.Welcome(self._welcome, self._weights))
        for purpose, id, attempt in self._book.adopt(peer.name, hello.holding):
            self._send(peer, wire.Revoke(purpose, id, attempt))

    def _replace(self, known: _Peer, peer: _Peer, holding: list[Key]) -> None:
        """A worker says Hello again: over a new connection, as a new process, or twice because it was impatient."""
        if known.pid == peer.pid:
            peer.loaded, peer.counters = known.loaded, known.counters
        else:
            self._answer(known.connection, wire.Stop(f"another process has taken the name {known.name}"))
        if known.connection == peer.connection:
            peer.outbox = known.outbox  # tickets may be on their way, so nothing is taken from it
        else:
            del self._connections[known.connection]
            self._counts["regranted"] += self._book.release(known.name, keep=holding)

    def _on_group_frame(self, peer: _Peer, group: Group) -> None:
        ticket = self._book.get(group.ticket.key)
        if ticket is None:
            self._counts["duplicates"] += 1
        elif ticket != group.ticket or group.worker != peer.name:
            raise wire.WireError(f"a group of ticket {group.ticket.key} that is not what was granted")
        elif self._failed:
            return  # not acknowledged: whoever resumes the run gets it
        else:
            try:
                self._on_group(group)
            except Exception as error:  # the caller's boundary: a group that is not in the ledger ends the run
                failure = LinkError(f"a group could not be kept: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._end(failure)
                return
            self._counts["accepted"] += 1
            self._finish(ticket.key, but=peer.name)
        self._send(peer, wire.Ack(*group.ticket.key))

    def _strike(self, connection: bytes, error: wire.WireError) -> None:
        """Count a malformed frame; a connection that sent too many of them is not listened to any more."""
        self._counts["malformed"] += 1
        strikes = self._malformed[connection] = self._malformed.pop(connection, 0) + 1
        if len(self._malformed) > _CONNECTIONS:
            self._malformed.popitem(last=False)
        if strikes >= self._strikes:
            self._answer(connection, wire.Stop(f"{strikes} malformed frames, the last: {error}"[:500]))
            self._drop(self._connections.get(connection))

    # What follows from it.

    def hand_out(self) -> None:
        """Give waiting tickets to the workers with the most room, by share of their capacity."""
        if self._stopped is not None or self._failed:
            return
        ready = [peer for peer in self._peers.values() if peer.loaded is not None and not peer.unreachable]
        while ready:
            peer = min(ready, key=lambda p: self._book.held(p.name) / p.capacity)
            if self._book.held(peer.name) >= peer.capacity:
                return
            ticket = self._book.take(peer.name)
            if ticket is None:
                return
            self._send(peer, ticket)

    def tick(self, now: float) -> None:
        """Retry what was not sent, say that the trainer lives, give up on the silent. Call often."""
        stalled_s = now - self._ticked_at - BEAT_S if self._ticked_at is not None else 0.0
        self._ticked_at = now
        for peer in list(self._peers.values()):
            if stalled_s > 0:  # while this process itself stood still, nobody could be heard
                peer.heard_at += stalled_s
            self._flush(peer)
            patience_s = min(LOST_S, self._silence_s) if peer.unreachable else self._silence_s
            if now - peer.heard_at > patience_s or len(peer.outbox) > self._outbox:
                self._drop(peer)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for peer in self._peers.values():
                if not peer.outbox:
                    self._send(peer, wire.Beat())

    def behind(self) -> bool:
        """Whether a worker has frames that could not be sent yet."""
        return any(peer.outbox for peer in self._peers.values())

    def state(self, now: float) -> LinkState:
        held = self._book.held
        workers = tuple(
            WorkerState(p.name, p.pid, p.capacity, held(p.name), p.loaded, now - p.heard_at, p.counters)
            for p in self._peers.values()
        )
        return LinkState(workers, len(self._book), self._book.waiting, dict(self._counts))

    def _end(self, failure: LinkError) -> None:
        self._failed = True
        self._fail(failure)

    def _finish(self, key: Key, but: str = "") -> None:
        for name in self._book.finish(key) - {but}:
            if name in self._peers:
                self._send(self._peers[name], wire.Revoke(*key))

    def _drop(self, peer: _Peer | None) -> None:
        """Forget a worker; others get its tickets. If it still lives, it will be told to say Hello again."""
        if peer is not None:
            del self._peers[peer.name], self._connections[peer.connection]
            self._counts["dead"] += 1
            self._counts["regranted"] += self._book.release(peer.name)

    def _send(self, peer: _Peer, frame: wire.ToWorker) -> None:
        peer.outbox.append(frame)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        while peer.outbox:
            outcome = self._put(peer.connection, wire.encode(peer.outbox[0]))
            peer.unreachable = outcome == "gone"
            if outcome != "sent":
                return
            peer.outbox.popleft()

    def _answer(self, connection: bytes, frame: wire.ToWorker) -> None:
        """To a connection that is nobody's: one try, and nothing is kept for it."""
        self._put(connection, wire.encode(frame))
