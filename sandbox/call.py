"""One call of one child: hand over the program, collect what it writes, and end it when it exceeds a limit."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox import frames, linux
from sandbox.protocol import ExecResult, LimitName, Limits, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.zygote import Child

_CHUNK_BYTES = 1 << 16
_LEAST_CHECK_S = 0.02
_END_S = 5.0
_UNWATCHED_S = 0.01  # most programs end sooner, and then their output is read once, at the end
_CORES = os.cpu_count() or 1


class UnreachedError(SandboxError):
    """The child was gone before it could take the program: another one may."""


def memory_file(data: bytes) -> int:
    """A descriptor to read `data` from. The caller closes it."""
    fd = os.memfd_create("call", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class _Stream:
    """The read end of a pipe, drained into memory up to a bound."""

    def __init__(self, name: LimitName, bound: int, on_full: Callable[[LimitName], None]) -> None:
        self.name, self.bound, self.on_full = name, bound, on_full
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.data = bytearray()
        self.full = self.open = self.watched = False

    def hand_over(self) -> None:
        """The program has the write end now."""
        os.close(self.write_fd)
        self.write_fd = -1
        self.open = True

    def watch(self) -> None:
        if self.open:
            self.watched = True
            asyncio.get_running_loop().add_reader(self.read_fd, self.drain)

    def drain(self) -> None:
        """Take what is there now; notice the end."""
        while self.open:
            try:
                chunk = os.read(self.read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._end()
                return
            room = self.bound - len(self.data)
            self.data += chunk[:room]
            if len(chunk) > room:
                self.full = True
                self.on_full(self.name)
                self._end()

    def _end(self) -> None:
        self.open = False
        if self.watched:
            asyncio.get_running_loop().remove_reader(self.read_fd)
            self.watched = False

    def close(self) -> None:
        self._end()
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1


@dataclass(slots=True)
class Outcome:
    """How a call ended, before anybody else's findings (memory, queueing) are added."""

    done: frames.Done | None  # None: the child ended
    report: frames.Report | None  # None: the child goes on
    limits_hit: list[LimitName]
    stdout: bytes
    stderr: bytes
    result: bytes
    truncated: bool
    wall_s: float
    cpu_s: float

    def to_result(self, *, queue_s: float, backend: str, isolation: str) -> ExecResult:
        if self.report is None:
            assert self.done is not None
            code = self.done.exit_code
        else:
            code = os.waitstatus_to_exitcode(self.report.status)
        return ExecResult(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            limits_hit=tuple(dict.fromkeys(self.limits_hit)),
            stdout=self.stdout,
            stderr=self.stderr,
            truncated=self.truncated,
            result=self.result,
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            max_rss_bytes=self.report.max_rss_bytes if self.report else 0,
            queue_s=queue_s,
            backend=backend,
            isolation=isolation,
        )


class RunningCall:
    """A program at work in a child. `kill` must end the child and everything in it."""

    def __init__(self, child: Child, limits: Limits, kill: Callable[[], None], *, once: bool) -> None:
        self.child, self.limits, self.kill, self.once = child, limits, kill, once
        self.hits: list[LimitName] = []
        self.streams = (
            _Stream("stdout", limits.stdout_bytes, self.exceed),
            _Stream("stderr", limits.stderr_bytes, self.exceed),
            _Stream("result", limits.result_bytes, self.exceed),
        )
        self._cpu_start = linux.cpu_s(self.child.pid)

    def exceed(self, limit: LimitName) -> None:
        """A limit was hit: note which, and end the program."""
        self.hits.append(limit)
        self.kill()

    def _send(self, source: bytes, stdin: bytes) -> None:
        limits = self.limits
        call = frames.Call(self.once, limits.cpu_s, limits.memory_bytes, limits.pids, limits.file_bytes)
        inputs = [memory_file(source), memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY)]
        try:
            fds = array.array("i", [*inputs, *(stream.write_fd for stream in self.streams)])
            self.child.channel.sendmsg([call.pack()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError as error:
            raise UnreachedError(f"the child cannot be reached: {error}") from error
        finally:
            for fd in inputs:
                os.close(fd)

    async def run(self, source: bytes, stdin: bytes) -> Outcome:
        """Until the program has ended, with everything that it started where `once` or a limit ended it."""
        child, loop = self.child, asyncio.get_running_loop()
        child.on_done = loop.create_future()
        try:
            self._send(source, stdin)
            started = time.monotonic()
            for stream in self.streams:
                stream.hand_over()
            watching = loop.call_later(_UNWATCHED_S, self._watch)
            try:
                await self._wait_for_end(started)
            finally:
                watching.cancel()
            wall_s = time.monotonic() - started
            for stream in self.streams:
                stream.drain()
            if self.hits:
                await self._wait_for_end(started)  # too much output, seen only now, ends it too
            report = child.exited.result() if child.exited.done() else None
            return self._outcome(report, wall_s)
        except BaseException:
            self.kill()
            raise
        finally:
            for stream in self.streams:
                stream.close()

    def _watch(self) -> None:
        for stream in self.streams:
            stream.watch()

    async def _wait_for_end(self, started: float) -> None:
        child = self.child
        assert child.on_done is not None
        ends: set[asyncio.Future] = {child.exited} if self.once else {child.exited, child.on_done}
        deadline, check_s = started + self.limits.wall_s, self.limits.cpu_s
        while True:
            left = deadline - time.monotonic()
            wait_s = _END_S if self.hits else max(0.0, min(left, check_s))
            done, _ = await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if self.hits:  # something ended it: only its actual end counts now
                if child.exited.done():
                    return
                if not done - {child.on_done}:
                    ends = {child.exited}
                if wait_s == _END_S and not done:
                    raise SandboxError(f"a killed program did not end within {_END_S:.0f} s")
            elif done:
                return
            elif time.monotonic() >= deadline:
                self.exceed("wall")
            else:
                remaining = self.limits.cpu_s - (linux.cpu_s(self.child.pid) - self._cpu_start)
                if remaining <= 0:
                    self.exceed("cpu")
                check_s = max(_LEAST_CHECK_S, remaining / _CORES)

    def _outcome(self, report: frames.Report | None, wall_s: float) -> Outcome:
        stdout, stderr, result = self.streams
        done = self.child.on_done
        word = done.result() if done is not None and done.done() else None
        if word is not None and word.out_of_memory:
            self.hits.append("memory")
        cpu_s = report.cpu_s if report and self.once else linux.cpu_s(self.child.pid) - self._cpu_start
        if report and not self.hits and report.cpu_s >= self.limits.cpu_s and self.once:
            self.hits.append("cpu")
        return Outcome(
            done=word,
            report=report,
            limits_hit=self.hits,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            result=bytes(result.data),
            truncated=stdout.full or stderr.full or result.full,
            wall_s=wall_s,
            cpu_s=max(0.0, cpu_s),
        )


async def settle(future: asyncio.Future, seconds: float) -> bool:
    """Wait for a future without caring how it ends; False where it did not."""
    with contextlib.suppress(SandboxError, TimeoutError):
        await asyncio.wait_for(asyncio.shield(future), seconds)
    return future.done()
