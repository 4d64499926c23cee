"""The host's side of a zygote process: start it, order children from it, hear how they ended."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from pathlib import Path

from sandbox import frames
from sandbox.protocol import SandboxError

START_S = 20.0
ARM_S = 10.0
_CREDENTIALS = struct.Struct("3i")
_RECEIVE_BUFFER = 4096
_MAX_NOISE = 32
_BOOT = "import sys; sys.path.insert(0, {path!r}); from sandbox import launcher; launcher.main()"


class Child:
    """A forked, armed process that waits for its first call. `pid` is this machine's number for it."""

    def __init__(self, number: int, channel: socket.socket, tmp_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.channel = channel
        self.tmp_bytes = tmp_bytes
        self.pid = 0
        self.armed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[frames.Report] = loop.create_future()
        self.on_done: asyncio.Future[frames.Done] | None = None
        self._noise = 0

    def close(self) -> None:
        """Let go of the socket, which ends a child that waits for a call."""
        if self.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.channel.fileno())
            self.channel.close()

    def receive(self) -> None:
        """Take what the child said. A frame that makes no sense is no word at all: the child's end will tell."""
        try:
            data, ancillary, _, _ = self.channel.recvmsg(frames.MAX_FRAME_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        try:
            done = frames.unpack_done(data)
        except frames.FrameError:
            asyncio.get_running_loop().remove_reader(self.channel.fileno())
            if not self.armed.done():
                text = data.decode(errors="replace")
                self.armed.set_exception(SandboxError(f"a child could not be armed: {text or 'it ended'}"))
            return
        if not self.armed.done():
            for _, kind, payload in ancillary:
                if kind == socket.SCM_CREDENTIALS:
                    self.pid = _CREDENTIALS.unpack(payload)[0]
            self.armed.set_result(None)
        elif done.kind == frames.FINISHED and self.on_done is not None and not self.on_done.done():
            self.on_done.set_result(done)
        else:
            self._noise += 1
            if self._noise > _MAX_NOISE:  # it talks without being asked: listen no more
                asyncio.get_running_loop().remove_reader(self.channel.fileno())


class ZygoteProcess:
    """One launcher with its zygote. When it ends, everything that it forked has ended."""

    def __init__(self, isolation: str, packages: tuple[str, ...], cgroups: list[str]) -> None:
        self._options = {
            "host_pid": os.getpid(),
            "isolation": isolation,
            "packages": packages,
            "cgroups": cgroups,
            "path": sys.path,
        }
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._orders: deque[tuple[frames.Order, socket.socket | None]] = deque()  # not sent yet, with what goes along
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._errors = os.memfd_create("stderr", os.MFD_CLOEXEC)  # what a launcher that fails says last
        self.ended: asyncio.Future[str] | None = None

    @property
    def alive(self) -> bool:
        return self.ended is not None and not self.ended.done()

    async def start(self) -> None:
        """Raises `SandboxError` with what the launcher said, or the signal or exit code that it ended with."""
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        with theirs:
            self._process = await asyncio.to_thread(self._spawn, theirs)
        self._ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(ours.fileno(), self._receive)
        try:
            async with asyncio.timeout(START_S):
                await self._ready
        except TimeoutError:
            await self.aclose()
            raise SandboxError(f"the zygote did not start within {START_S:.0f} s") from None
        except SandboxError:
            await self.aclose()
            raise

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        code = _BOOT.format(path=str(Path(__file__).resolve().parent.parent))
        command = [python, "-s", "-P", "-B", "-c", code, str(theirs.fileno()), json.dumps(self._options)]
        return subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env={"LANG": "C.UTF-8"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C at the terminal is for the host to handle
        )

    def _receive(self) -> None:
        assert self._channel is not None
        while True:
            try:
                data = self._channel.recv(_RECEIVE_BUFFER)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            try:
                report = frames.unpack_report(data)
            except frames.FrameError:
                self._lost(self._last_words() if not data else "the zygote sent a frame that makes no sense")
                return
            self._take(report)

    def _last_words(self) -> str:
        lines = os.pread(self._errors, _RECEIVE_BUFFER, 0).decode(errors="replace").strip().splitlines()
        return f"the zygote ended: {lines[-1]}" if lines else "the zygote ended"

    def _take(self, report: frames.Report) -> None:
        if report.kind == frames.BROKEN:
            self._lost(report.text)
        elif report.kind == frames.READY and not self._ready.done():
            self._ready.set_result(None)
        elif report.kind == frames.EXITED and (child := self._children.pop(report.child, None)):
            if not child.armed.done():
                child.armed.set_exception(SandboxError(f"a child ended early, with status {report.status}"))
            if not child.exited.done():
                child.exited.set_result(report)

    def _lost(self, why: str) -> None:
        assert self._channel is not None
        assert self.ended is not None
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            asyncio.get_running_loop().remove_writer(self._channel.fileno())
            self._channel.close()
        self._drop_orders()
        if not self.ended.done():
            self.ended.set_result(why)
        error = SandboxError(why)
        futures = [self._ready, *(future for c in self._children.values() for future in (c.armed, c.exited))]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # it may be that nobody waits for this one
        self._children.clear()

    def fork(self, tmp_bytes: int) -> Child:
        """Order a child: it is usable once `armed` is done. Raises `SandboxError`."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SandboxError(f"no child can be ordered: {error}") from error
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        child = Child(next(self._numbers), ours, tmp_bytes)
        self._children[child.number] = child
        asyncio.get_running_loop().add_reader(ours.fileno(), child.receive)
        try:
            self._order(frames.Order(frames.FORK, child.number, tmp_bytes), theirs)
        except SandboxError:
            self._children.pop(child.number, None)
            child.close()
            raise
        return child

    def kill(self, child: Child) -> None:
        """End the child and everything in its namespaces. `child.exited` tells when that is done."""
        if self._children.get(child.number) is child:  # another zygote's child may have the same number
            with contextlib.suppress(SandboxError):
                self._order(frames.Order(frames.KILL, child.number))

    def _order(self, order: frames.Order, along: socket.socket | None = None) -> None:
        """Send an order, now or as soon as the zygote has taken enough of those before it. Closes `along`."""
        self._orders.append((order, along))
        if self._channel is None or self._channel.fileno() < 0:
            self._drop_orders()
            raise SandboxError("the zygote is not running")
        self._send_orders()

    def _send_orders(self) -> None:
        assert self._channel is not None
        loop, number = asyncio.get_running_loop(), self._channel.fileno()
        while self._orders:
            order, along = self._orders[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [along.fileno()]))] if along else []
            try:
                self._channel.sendmsg([order.pack()], rights)
            except BlockingIOError:
                loop.add_writer(number, self._send_orders)
                return
            except OSError as error:
                self._lost(f"the zygote cannot be reached: {error}")  # which tells everybody who waits for a child
                return
            self._orders.popleft()
            if along is not None:
                along.close()
        loop.remove_writer(number)

    def _drop_orders(self) -> None:
        while self._orders:
            _, along = self._orders.popleft()
            if along is not None:
                along.close()

    async def aclose(self) -> None:
        if self._channel is not None:
            self._lost("the sandbox was closed")
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)
            self._process = None
            os.close(self._errors)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the launcher, which ends by itself once its channel is closed; insist where it does not."""
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(3)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    process.wait(3)
