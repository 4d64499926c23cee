"""The trainer's end of the link: grants tickets to workers, takes their groups, tells them of new weights.

One thread owns a ROUTER socket; every public method may be called from any thread. Delivery is at least once: a group
is acknowledged after the caller has it safely, a worker resends what was not acknowledged, and a group whose ticket is
not out (any more) is acknowledged and dropped. Workers that fall silent lose their tickets to others. Nothing here
waits for a worker: what a slow one does not read is queued, up to a bound, and then it is given up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Literal

import zmq

from rollout import wire
from rollout.dispatch import Dispatch, LinkError, LinkState, WorkerState
from rollout.keys import Keys, check_address
from rollout.wire import BEAT_S, Group, Span, Ticket, Weights

__all__ = ["LinkError", "LinkServer", "LinkState", "WorkerState"]

_BEHIND_S = 0.02  # between two tries to send what a worker was too slow to take
_LINGER_MS = 500
_BATCH = 256  # frames read before the other duties get their turn
_STATE_S = 0.1


class LinkServer:
    """Binds on construction, serves from `start()` until `close()`.

    `welcome` is the worker configuration (JSON) that every worker is sent. `on_group` is called in the link's thread
    for each group whose ticket is out, once a ticket, before the group is acknowledged; what it raises ends the run.
    `on_error` is called in the link's thread when the run cannot go on; `check()` raises from then on. `silence_s` is
    how long a worker may say nothing, `strikes` how many malformed frames it may send, `outbox` how many frames are
    kept for one that does not read.

    Tickets that are granted before `start()` are there when the workers of an earlier trainer come back with them.
    Raises `ValueError` for an address that cannot be bound, or is open to other hosts without `keys`.
    """

    def __init__(
        self,
        address: str,
        welcome: bytes,
        on_group: Callable[[Group], None],
        *,
        on_error: Callable[[LinkError], None] | None = None,
        keys: Keys | None = None,
        silence_s: float = 20.0,
        strikes: int = 16,
        outbox: int = 4096,
    ) -> None:
        check_address(address, keys)
        self._on_error = on_error
        self._context = zmq.Context()
        self._authenticator = keys.guard(self._context) if keys else None
        try:
            self._router = self._bind(address, keys)
        except zmq.ZMQError as error:
            self._end_sockets()
            raise ValueError(f"cannot listen at {address}: {error.strerror}") from error
        self.address: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._file = self.address.removeprefix("ipc://") if self.address.startswith("ipc://") else None
        if self._file:
            os.chmod(self._file, 0o600)
        self._dispatch = Dispatch(
            self._put, welcome, on_group, self._fail, silence_s=silence_s, strikes=strikes, outbox=outbox
        )
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waker, self._sleeper = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)
        self._closing = False
        self._error: LinkError | None = None
        self._state = LinkState()
        self._state_due = 0.0

    def start(self) -> None:
        self._thread.start()

    def grant(self, ticket: Ticket) -> None:
        """Hand the ticket to a worker with room, now or later, until its group arrives."""
        self._command(lambda: self._dispatch.grant(ticket))

    def revoke(self, ticket: Ticket) -> None:
        """The ticket is not wanted any more: whoever plays it stops, and a group that comes for it is dropped."""
        self._command(lambda: self._dispatch.revoke(ticket))

    def publish(self, weights: Weights) -> None:
        """Tell every worker of new weights. Tickets granted after this are played with them, or with newer ones."""
        self._command(lambda: self._dispatch.publish(weights))

    def worker_gone(self, name: str) -> None:
        """The process of this worker has ended: its tickets go to others at once."""
        self._command(lambda: self._dispatch.worker_gone(name))

    def stop(self, reason: str) -> None:
        """Tell every worker, and all that come later, that the run is over."""
        self._command(lambda: self._dispatch.stop(reason))

    def check(self) -> None:
        """Raise the `LinkError` that ended the run, if one did."""
        if self._error is not None:
            raise self._error

    def state(self) -> LinkState:
        """What the link knew at most 0.3 s ago."""
        return self._state

    def take_spans(self) -> list[tuple[str, Span]]:
        """What the workers did since the last call: (worker, span). The newest 65,536 are kept."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._dispatch.spans.popleft())
        return taken

    def close(self) -> None:
        """End the thread and the socket, within about a second. May be called twice."""
        self._closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._end_sockets()
        self._waker.close()
        self._sleeper.close()
        if self._file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file)

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # woken already (the buffer is full), or closed
            self._waker.send(b"\0")

    def _bind(self, address: str, keys: Keys | None) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.linger = _LINGER_MS
        router.router_mandatory = True  # an unreachable worker is an error, not silence
        router.maxmsgsize = wire.MAX_FRAME_BYTES
        if keys:
            keys.secure_trainer(router)
        router.bind(address)
        return router

    def _end_sockets(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._context.destroy(linger=_LINGER_MS)

    # All that follows runs in the link's thread.

    def _serve(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._router, zmq.POLLIN)
            poller.register(self._sleeper, zmq.POLLIN)
            while not self._closing:
                pause_s = _BEHIND_S if self._dispatch.behind() else BEAT_S / 4
                self._turn(dict(poller.poll(int(pause_s * 1000))))
            self._obey()  # a stop() just before close() still goes out
        except Exception as error:  # the thread's boundary: the main thread learns of it from check() and on_error
            failure = LinkError(f"the link failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _turn(self, ready: dict[Any, int]) -> None:
        if self._sleeper.fileno() in ready:
            self._sleeper.recv(4096)
        self._obey()
        if self._router in ready:
            self._receive()
        self._dispatch.hand_out()
        now = time.monotonic()
        self._dispatch.tick(now)
        if now >= self._state_due:
            self._state_due = now + _STATE_S
            self._state = self._dispatch.state(now)

    def _obey(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _receive(self) -> None:
        now = time.monotonic()
        for _ in range(_BATCH):
            try:
                connection, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._dispatch.receive(connection, parts, now)

    def _put(self, connection: bytes, frame: bytes) -> Literal["sent", "full", "gone"]:
        try:
            self._router.send_multipart((connection, frame), zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return "gone"
            raise
        return "sent"

    def _fail(self, failure: LinkError) -> None:
        """Only the first failure counts. The thread goes on where it can, so that workers can still be stopped."""
        if self._error is None:
            self._error = failure
            if self._on_error is not None:
                self._on_error(failure)
