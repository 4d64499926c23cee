"""Runs calls in one child of a container: what `sandbox.call` does on the host, where descriptors cannot be passed out.

A container may not make namespaces, so here a program is an unprivileged uid of its own, and "everything that it
started" is every process but the warden and this supervisor.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field

from sandbox import agent, frames, linux, program, stream

_CHUNK_BYTES = 1 << 16
_LEAST_CHECK_S = 0.02
_CORES = os.cpu_count() or 1
_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def read_exactly(fd: int, count: int) -> bytes:
    """Raises `EOFError`."""
    data = bytearray()
    while len(data) < count:
        chunk = os.read(fd, min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def count_kills() -> int:
    """Processes of this container that the kernel has ended for memory."""
    for path in _EVENTS:
        with contextlib.suppress(OSError), open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


def kill_everything() -> None:
    """All but pid 1 and the caller."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("call", os.MFD_CLOEXEC)
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@dataclass(slots=True)
class _Output:
    """One pipe from the program, drained up to a bound."""

    name: str
    bound: int
    read_fd: int = -1
    write_fd: int = -1
    data: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)

    def drain(self) -> bool:
        """Take what is there, up to one byte beyond the bound; False at the end of the pipe."""
        while len(self.data) <= self.bound:
            try:
                chunk = os.read(self.read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self.data += chunk[: self.bound + 1 - len(self.data)]
        return True

    @property
    def full(self) -> bool:
        return len(self.data) > self.bound

    def close(self) -> bytes:
        os.close(self.read_fd)
        return bytes(self.data[: self.bound])


class Supervisor:
    """Forks one child, and runs calls in it until it ends or is not wanted any more."""

    def __init__(self, uid: int, seccomp: linux.SeccompFilter, namespace: dict) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _become_child(theirs.fileno(), uid, seccomp, namespace)
        theirs.close()
        self.channel = ours
        self.pidfd = os.pidfd_open(self.pid)
        self.cpu_before_s = 0.0

    def serve(self) -> None:
        """Answer requests on stdin. Raises `EOFError` when the host is gone."""
        while True:
            request = stream.Request.unpack(read_exactly(0, stream.Request.LAYOUT.size))
            if request.kind == stream.RESET:
                kill_everything()
                return
            source = read_exactly(0, request.source_bytes)
            stdin = read_exactly(0, request.stdin_bytes)
            if self._run(request, source, stdin):
                return

    def _send(self, request: stream.Request, source: bytes, stdin: bytes, outputs: list[_Output]) -> None:
        call = frames.Call(request.once, request.cpu_s, request.memory_bytes, request.pids, request.file_bytes)
        fds = array.array("i", [_memory_file(source), _memory_file(stdin), *(output.write_fd for output in outputs)])
        with contextlib.suppress(OSError):  # a child that is gone already is a call that ends at once
            self.channel.sendmsg([call.pack()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        for fd in fds:
            os.close(fd)

    def _run(self, request: stream.Request, source: bytes, stdin: bytes) -> bool:
        """Run one program and reply; whether the child is gone."""
        kills_before, started = count_kills(), time.monotonic()
        outputs = [
            _Output("stdout", request.stdout_bytes),
            _Output("stderr", request.stderr_bytes),
            _Output("result", request.result_bytes),
        ]
        self._send(request, source, stdin, outputs)
        hits, done = self._watch(request, outputs, started)
        ended = bool(hits) or done is None or request.once or self._has_ended()
        status, cpu_s, max_rss_bytes = done.exit_code if done else 0, linux.cpu_s(self.pid), 0
        if ended:
            kill_everything()
            _, status, usage = os.wait4(self.pid, 0)
            cpu_s, max_rss_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
        for output in outputs:
            output.drain()
        hits += [output.name for output in outputs if output.full]
        if count_kills() > kills_before or (done is not None and done.out_of_memory):
            hits.append("memory")
        blobs = [output.close() for output in outputs]
        reply = stream.Reply(
            stream.RAN, ended, status, stream.hit_bits(hits), time.monotonic() - started,
            cpu_s - self.cpu_before_s, max_rss_bytes, *(len(blob) for blob in blobs),
        )  # fmt: skip
        self.cpu_before_s = cpu_s
        write_all(1, reply.pack() + b"".join(blobs))
        return ended

    def _has_ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def _watch(
        self, request: stream.Request, outputs: list[_Output], started: float
    ) -> tuple[list[str], frames.Done | None]:
        """Collect output until the child is done, has ended or exceeds a limit: (the limit, its last word)."""
        open_outputs = {output.read_fd: output for output in outputs}
        poll, channel_fd = select.poll(), self.channel.fileno()
        for fd in (*open_outputs, self.pidfd, channel_fd):
            poll.register(fd, select.POLLIN)
        deadline, check_s = started + request.wall_s, request.cpu_s
        done: frames.Done | None = None
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return ["wall"], done
            ready = {fd for fd, _ in poll.poll(1 + int(min(left_s, check_s) * 1000))}
            for fd in ready & open_outputs.keys():
                if not open_outputs[fd].drain():
                    poll.unregister(fd)
                    del open_outputs[fd]
                elif open_outputs[fd].full:
                    return [], None  # it is ended for this, and `full` says so
            if channel_fd in ready:
                poll.unregister(channel_fd)
                done = self._last_word()
            if self.pidfd in ready or (done is not None and not request.once):
                return [], done
            if not ready:
                left_cpu_s = request.cpu_s - (linux.cpu_s(self.pid) - self.cpu_before_s)
                if left_cpu_s <= 0:
                    return ["cpu"], done
                check_s = max(_LEAST_CHECK_S, left_cpu_s / _CORES)

    def _last_word(self) -> frames.Done | None:
        try:
            return frames.unpack_done(self.channel.recv(frames.MAX_FRAME_BYTES))
        except (OSError, frames.FrameError):
            return None  # the child's end will tell


def _become_child(channel_fd: int, uid: int, seccomp: linux.SeccompFilter, namespace: dict) -> None:
    """Turn a fresh fork into an armed child. Does not return."""
    try:
        if channel_fd != agent.CHANNEL_FD:
            os.dup2(channel_fd, agent.CHANNEL_FD, inheritable=False)
        linux.close_from(agent.CHANNEL_FD + 1)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 3):
            os.dup2(null, fd)
        os.close(null)
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, the program goes first
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.chdir("/tmp")
        linux.drop_capabilities()
        linux.set_undumpable()
        linux.no_new_privileges()
        seccomp.apply()
        program.serve(socket.socket(fileno=agent.CHANNEL_FD), namespace, program.apply_limits)
    except OSError as error:
        print(f"a child could not be armed: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(70)
