"""The zygote: the first process inside. It forks a fresh child for every program, and never reads a program's bytes.

Each child gets a pid namespace, a mount namespace with a /tmp of its own (/dev/shm leads there too), and a user
namespace that counts its processes. It is pid 1 there: when it ends, however it ends, the kernel ends everything that
it started.
Its arguments: the channel's descriptor, its pid namespace's descriptor, the seccomp filter in hexadecimal.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from sandbox import frames, linux, program

PRELOADED = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
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
LAST_FD = 1 << 16


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


class Zygote:
    """Forks on order, kills on order, and reports how each child ended."""

    def __init__(self, channel: socket.socket, pid_namespace_fd: int, filter_program: bytes) -> None:
        self.channel = channel
        self.pid_namespace_fd = pid_namespace_fd
        self.seccomp = linux.SeccompFilter(filter_program)
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
                    os.kill(pid, signal.SIGKILL)
        else:
            self._fork(order, fds[0])
        return True

    def _fork(self, order: frames.Order, channel_fd: int) -> None:
        os.dup2(channel_fd, CHANNEL_FD, inheritable=False)
        os.close(channel_fd)
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            self._become_child(order.tmp_bytes)
        linux.setns(self.pid_namespace_fd, linux.CLONE_NEWPID)
        pidfd = os.pidfd_open(pid)
        self.children[pid] = _Child(order.child, pidfd, time.monotonic())
        self.pids[pidfd] = pid
        self.poll.register(pidfd, select.EPOLLIN)

    def _become_child(self, tmp_bytes: int) -> None:
        """Turn a fresh fork into an armed child and run what the host sends. Does not return."""
        try:
            os.closerange(CHANNEL_FD + 1, LAST_FD)  # above all the zygote's own channel
            os.setsid()  # a signal to "my process group" must not reach the zygote's other children
            linux.unshare(linux.CLONE_NEWNS)
            options = f"size={tmp_bytes},nr_inodes={_INODES},mode=0700"
            linux.mount("tmp", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
            os.chdir("/tmp")
            with contextlib.suppress(OSError):  # where it is refused, the host's watchdog counts processes
                linux.unshare(linux.CLONE_NEWUSER)
            linux.drop_capabilities()
            linux.set_undumpable()
            linux.no_new_privileges()
            self.seccomp.apply()
            self.child_channel.send(self.armed)
            program.serve(self.child_channel, self.namespace, program.apply_limits)
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


def run() -> None:
    """Serve until the host is gone."""
    try:
        # out of the way of the numbers that a child uses
        channel_fd, pid_namespace_fd = (fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 16) for fd in sys.argv[1:3])
        os.closerange(3, 16)
        os.open(os.devnull, os.O_RDONLY)  # keeps number 3 for the result
        preload(PRELOADED)
        sys.path[:] = ["/tmp", *(path for path in sys.path if path.startswith("/usr/local/")), "/packages"]
        linux.set_undumpable()
        zygote = Zygote(socket.socket(fileno=channel_fd), pid_namespace_fd, bytes.fromhex(sys.argv[3]))
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every object that was here before it
        zygote.serve()
    finally:
        os._exit(0)
