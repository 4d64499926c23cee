"""The zygote: the first process inside. It forks a fresh child for every program, and never reads a program's bytes.

Its arguments: the channel's descriptor, the seccomp filter in hexadecimal, and how to enclose children, as JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sandbox import frames, linux, program

if TYPE_CHECKING:
    from collections.abc import Callable

PRELOADED = (
    "base64", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "typing", "_sitebuiltins",
)  # fmt: skip
ENVIRONMENT = {
    "PATH": "/usr/local/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program does the same thing each time
    "PYTHONDONTWRITEBYTECODE": "1",
}
_INODES = 16384
CHANNEL_FD = 4  # a child's; 0 to 3 are the program's
_OWN_FDS = 16  # the zygote's own descriptors have this number or a higher one


def preload(names: tuple[str, ...]) -> None:
    """Import what most programs use, once, so that their own import of it costs nothing."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass(slots=True)
class _Child:
    number: int
    pidfd: int
    started: float


class Enclosure(Protocol):
    """How a fork becomes a place of its own."""

    end_signal: signal.Signals  # ends a child and everything that it started

    def fork(self) -> int: ...

    def enter(self, order: frames.Order) -> Callable[[frames.Call], None]:
        """In the fork: enclose it. Returns what applies a call's limits. Raises `OSError`."""
        ...

    def close(self, children: list[int]) -> None:
        """End these, where this process's own end does not."""
        ...


class Namespaces:
    """A pid namespace, a mount namespace with a /tmp of its own (/dev/shm leads there too), and a user namespace that
    counts its processes. The child is pid 1 there: when it ends, however it ends, the kernel ends all that it started.
    """

    end_signal = signal.SIGKILL

    def __init__(self, pid_namespace_fd: int) -> None:
        self.pid_namespace_fd = pid_namespace_fd

    def fork(self) -> int:
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            linux.setns(self.pid_namespace_fd, linux.CLONE_NEWPID)
        return pid

    def enter(self, order: frames.Order) -> Callable[[frames.Call], None]:
        linux.unshare(linux.CLONE_NEWNS)
        options = f"size={order.tmp_bytes},nr_inodes={_INODES},mode=0700"
        linux.mount("tmp", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        os.chdir("/tmp")
        try:
            linux.unshare(linux.CLONE_NEWUSER)
        except OSError:  # not one more may be made: then the host's watchdog counts
            return partial(program.apply_limits, counts_apart=False)
        return partial(program.apply_limits, counts_apart=linux.counts_processes_apart())

    def close(self, children: list[int]) -> None:
        pass  # the zygote is their namespace's pid 1


class Zygote:
    """Forks on order, kills on order, and reports how each child ended."""

    def __init__(self, channel: socket.socket, enclosure: Enclosure, filter_program: bytes) -> None:
        self.channel = channel
        self.enclosure = enclosure
        self.seccomp = linux.SeccompFilter(filter_program) if filter_program else None
        self.armed = frames.Done(frames.ARMED).pack()
        self.namespace = program.prepare()
        # each child's own channel takes this one's number before its fork
        self.child_channel, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        assert self.child_channel.fileno() == CHANNEL_FD
        self.poll = select.epoll()
        self.poll.register(channel, select.EPOLLIN)
        self.children: dict[int, _Child] = {}  # by pid
        self.pids: dict[int, int] = {}  # pidfd -> pid

    def serve(self) -> None:
        """Until the host's end of the channel closes, which is also how the host's death is noticed."""
        self.channel.send(frames.Report(frames.READY).pack())
        while True:
            for fd, _ in self.poll.poll():
                if fd != self.channel.fileno():
                    self._report(self.pids[fd])
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        data, fds = frames.receive(self.channel, 1)
        if not data:
            return False
        order = frames.unpack_order(data)
        if order.kind == frames.KILL:
            for pid, child in self.children.items():
                if child.number == order.child:
                    os.kill(pid, self.enclosure.end_signal)
        else:
            self._fork(order, fds[0])
        return True

    def _fork(self, order: frames.Order, channel_fd: int) -> None:
        os.dup2(channel_fd, CHANNEL_FD, inheritable=False)
        os.close(channel_fd)
        pid = self.enclosure.fork()
        if pid == 0:
            self._become_child(order)
        pidfd = os.pidfd_open(pid)
        self.children[pid] = _Child(order.child, pidfd, time.monotonic())
        self.pids[pidfd] = pid
        self.poll.register(pidfd, select.EPOLLIN)

    def _become_child(self, order: frames.Order) -> None:
        """Turn a fresh fork into an armed child and run what the host sends. Does not return."""
        try:
            linux.close_from(CHANNEL_FD + 1)  # above all the zygote's own channel
            os.setsid()  # a signal to "my process group" must not reach the zygote's other children
            limit = self.enclosure.enter(order)
            linux.drop_capabilities()
            linux.set_undumpable()
            linux.no_new_privileges()
            if self.seccomp is not None:
                self.seccomp.apply()
            self.child_channel.send(self.armed)
            program.serve(self.child_channel, self.namespace, limit)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.child_channel.send(f"{error}"[:200].encode())
        finally:
            os._exit(70)

    def _report(self, pid: int) -> None:
        child = self.children.pop(pid)
        _, status, usage = os.wait4(pid, 0)
        self.poll.unregister(child.pidfd)
        del self.pids[child.pidfd]
        os.close(child.pidfd)
        cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - child.started
        report = frames.Report(frames.EXITED, child.number, status, cpu_s, wall_s, usage.ru_maxrss << 10)
        self.channel.send(report.pack())


def _enclosure(options: dict) -> Enclosure:
    if options["isolation"] != "namespaces":
        from sandbox import bare

        return bare.Bare(options["readable"], landlock=options["isolation"] == "landlock")
    sys.path[:] = ["/tmp", *(path for path in sys.path if path.startswith("/usr/local/")), "/packages"]
    return Namespaces(fcntl.fcntl(options["pid_namespace_fd"], fcntl.F_DUPFD_CLOEXEC, _OWN_FDS))


def run() -> None:
    """Serve until the host is gone."""
    try:
        # out of the way of the numbers that a child uses
        channel = socket.socket(fileno=fcntl.fcntl(int(sys.argv[1]), fcntl.F_DUPFD_CLOEXEC, _OWN_FDS))
        enclosure = _enclosure(json.loads(sys.argv[3]))
        os.closerange(3, _OWN_FDS)
        os.open(os.devnull, os.O_RDONLY)  # keeps number 3 for the result
        preload(PRELOADED)
        linux.set_undumpable()
        zygote = Zygote(channel, enclosure, bytes.fromhex(sys.argv[2]))
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every object that was here before it
        zygote.serve()
        enclosure.close(list(zygote.children))
    finally:
        os._exit(0)
