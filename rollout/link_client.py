"""A worker's end of the link: takes tickets and weights, returns groups until they are acknowledged.

The client knows what its worker holds: tickets in play, and groups that are sent but not acknowledged. It says so when
it connects again, and resends. One task does all the reading; sending never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

import zmq
import zmq.asyncio

from rollout import wire
from rollout.keys import Keys, check_address
from rollout.wire import BEAT_S, Group, Key, Revoke, Stop, Ticket, Weights, Welcome

_HELLO_AGAIN_S = 0.5  # a burst of frames that were queued for an earlier trainer needs one Hello
_LINGER_MS = 1000

Work = Ticket | Weights | Revoke | Stop


class TrainerLost(ConnectionError):
    """The trainer did not answer in time, fell silent, sent rubbish, or the process that started this one is gone."""


class LinkClient:
    """Connects on `connect()`; then `receive()` yields work and `send_*` returns it. Close with `aclose()`.

    `observe` is asked once a second for the spans and counters to report. `silence_s` is how long the trainer may say
    nothing before `receive()` raises `TrainerLost` (a trainer that restarts is silent for a while); `resend_s` is how
    long a living trainer may leave a group unacknowledged. With `parent`, the process id of who started this process,
    the link also ends when that process does.
    """

    def __init__(
        self,
        address: str,
        name: str,
        capacity: int,
        *,
        keys: Keys | None = None,
        observe: Callable[[], wire.Beat] = wire.Beat,
        silence_s: float = 60.0,
        resend_s: float = 30.0,
        parent: int | None = None,
    ) -> None:
        check_address(address, keys)
        self.address, self.name, self.capacity = address, name, capacity
        self.observe = observe
        self._parent = parent
        self._silence_s, self._resend_s = silence_s, resend_s
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = _LINGER_MS
        self._socket.maxmsgsize = wire.MAX_FRAME_BYTES
        self._socket.reconnect_ivl = 100
        self._socket.reconnect_ivl_max = 2000
        if keys:
            keys.secure_worker(self._socket)
        self._pump: asyncio.Task[None] | None = None
        self._work: asyncio.Queue[Work | BaseException] = asyncio.Queue()
        self._welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._config: bytes | None = None
        self._version: int | None = None  # of the weights that were last announced
        self._loaded: int | None = None
        self._playing: set[Key] = set()
        self._unacked: dict[Key, tuple[bytes, float]] = {}  # the frame, and when it was sent
        self._heard_at = time.monotonic()
        self._hello_at = -_HELLO_AGAIN_S

    @property
    def holding(self) -> list[Key]:
        """The tickets that this worker owes the trainer."""
        return [*self._playing, *self._unacked]

    async def connect(self, timeout_s: float = 30.0) -> Welcome:
        """Say Hello and wait for the answer. Raises `TrainerLost` with the trainer's reason, or after `timeout_s`."""
        self._socket.connect(self.address)
        self._hello()
        self._pump = asyncio.create_task(self._run(), name="link")
        self._pump.add_done_callback(self._on_pump_end)
        done, _ = await asyncio.wait((self._welcomed, self._pump), timeout=timeout_s, return_when="FIRST_COMPLETED")
        if not done:
            raise TrainerLost(f"no trainer answered at {self.address} within {timeout_s:g} s")
        if self._pump in done:
            self._pump.result()  # raises what ended it
        return self._welcomed.result()

    async def receive(self) -> Work:
        """The next thing to do. Raises `TrainerLost`."""
        work = await self._work.get()
        if isinstance(work, BaseException):
            raise work
        return work

    def send_group(self, group: Group) -> None:
        """Return a ticket's group. It is kept, and sent again where needed, until it is acknowledged."""
        key = group.ticket.key
        if key not in self._playing:
            return  # revoked while its last episode ended
        frame = wire.encode(group)
        if len(frame) > wire.MAX_FRAME_BYTES:
            self.send_refused(group.ticket, f"its group has {len(frame)} bytes, over {wire.MAX_FRAME_BYTES}")
            return
        self._playing.discard(key)
        self._send_group(key, frame)

    def send_loaded(self, version: int) -> None:
        """The engine draws with `version` from now on. Only after the first of these does the trainer send tickets."""
        self._loaded = version
        self._send(wire.encode(wire.Loaded(version)))

    def send_refused(self, ticket: Ticket, error: str) -> None:
        self._send(wire.encode(wire.Refused(ticket, error)))

    async def aclose(self) -> None:
        """Never raises for what the network does; frames on their way get a second to leave."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait((self._pump,))
        self._context.destroy(linger=_LINGER_MS)

    async def _run(self) -> None:
        """Read, beat once a second, resend; until cancelled or the trainer is lost."""
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                if (stalled_s := now - next_beat) > BEAT_S:
                    self._heard_at += stalled_s  # while this process itself stood still, nobody could be heard
                next_beat = now + BEAT_S
                self._beat(now)
            if await self._socket.poll(int(1000 * (next_beat - now)) + 1):
                self._on_frame(await self._socket.recv())

    def _on_pump_end(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled() and (error := pump.exception()) is not None:
            self._work.put_nowait(error)

    def _beat(self, now: float) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            raise TrainerLost("the process that started this worker is gone")
        if not self._welcomed.done():
            self._hello()
            return
        silent_s = now - self._heard_at
        if silent_s > self._silence_s:
            raise TrainerLost(f"the trainer at {self.address} has been silent for {silent_s:.0f} s")
        if silent_s > 3 * BEAT_S:
            self._send(wire.encode(wire.Beat()))  # a trainer that came back answers with Unknown
            return
        self._send(wire.encode(self.observe()))
        for key, (frame, sent_at) in self._unacked.items():
            if now - sent_at > self._resend_s:
                self._send_group(key, frame)

    def _on_frame(self, data: bytes) -> None:
        try:
            frame = wire.decode_to_worker(data)
        except wire.WireError as error:
            raise TrainerLost(f"the trainer at {self.address} sent {error}") from error
        self._heard_at = time.monotonic()
        match frame:
            case Welcome():
                self._on_welcome(frame)
            case wire.Unknown():
                self._hello()
            case wire.Ack():
                self._unacked.pop((frame.purpose, frame.id, frame.attempt), None)
            case Stop():
                if not self._welcomed.done():
                    raise TrainerLost(f"the trainer refused this worker: {frame.reason}")
                self._work.put_nowait(frame)
            case Weights():
                self._announce(frame)
            case Ticket():
                if frame.key not in self._playing and frame.key not in self._unacked:
                    self._playing.add(frame.key)
                    self._work.put_nowait(frame)
            case Revoke():
                key = (frame.purpose, frame.id, frame.attempt)
                self._unacked.pop(key, None)
                if key in self._playing:
                    self._playing.discard(key)
                    self._work.put_nowait(frame)

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._config is not None and welcome.config != self._config:
            raise TrainerLost("the trainer came back with another configuration")
        self._config = welcome.config
        if not self._welcomed.done():
            self._version = welcome.weights.version if welcome.weights else None
            self._welcomed.set_result(welcome)
            return
        if self._loaded is not None:
            self._send(wire.encode(wire.Loaded(self._loaded)))
        if welcome.weights is not None:
            self._announce(welcome.weights)
        for key, (frame, _) in self._unacked.items():
            self._send_group(key, frame)

    def _announce(self, weights: Weights) -> None:
        if weights.version != self._version:
            self._version = weights.version
            self._work.put_nowait(weights)

    def _hello(self) -> None:
        now = time.monotonic()
        if now - self._hello_at >= _HELLO_AGAIN_S:
            self._hello_at = now
            hello = wire.Hello(self.name, wire.PROTOCOL, self.capacity, os.getpid(), self.holding)
            self._send(wire.encode(hello))

    def _send_group(self, key: Key, frame: bytes) -> None:
        self._unacked[key] = (frame, time.monotonic())
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        """Hand a frame to the socket, or drop it where the socket is full: beats are repeated, groups resent."""
        with contextlib.suppress(zmq.Again):
            asyncio.ensure_future(self._socket.send(frame, zmq.NOBLOCK)).result()
