"""Weaker isolation, for machines without namespaces: only where it was asked for by name.

A program is a plain process of this machine with a folder of its own. A supervisor between it and the zygote ends
what it leaves behind. "landlock" keeps it from reading or writing other files; "none" does not. Seccomp and resource
limits apply to both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from sandbox import linux, program

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox import frames

_END_S = 3.0
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Bare:
    """An `Enclosure` without namespaces."""

    end_signal = signal.SIGTERM  # the supervisor's, which then ends the program and cleans up

    def __init__(self, readable: list[str], *, landlock: bool) -> None:
        self.readable = [path for path in (*readable, *_DEVICES) if os.path.exists(path)]
        self.landlock = landlock
        if landlock and not linux.landlock_version():
            raise OSError("this kernel has no Landlock")

    def fork(self) -> int:
        return os.fork()

    def enter(self, order: frames.Order) -> Callable[[frames.Call], None]:
        """Returns in the program's process; its parent, the supervisor, stays behind."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        linux.die_with_parent(signal.SIGTERM)
        linux.set_subreaper()
        folder = tempfile.mkdtemp(prefix="slipstream-")
        pid = os.fork()
        if pid:
            _supervise(pid, folder)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
        linux.die_with_parent()
        os.setsid()
        os.chdir(folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
        sys.argv[0] = sys.modules["__main__"].__file__ = f"{folder}/main.py"
        sys.path.insert(0, folder)
        if self.landlock:
            linux.no_new_privileges()
            linux.apply_landlock(self.readable, [folder, "/dev/null"])
        return partial(program.apply_limits, counts_apart=False)

    def close(self, children: list[int]) -> None:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, self.end_signal)
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            try:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.005)
            except ChildProcessError:
                return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def _supervise(program_pid: int, folder: str) -> None:
    """Wait for the program or for SIGTERM; end everything; then end as the program did."""
    linux.close_from(0)
    status = None
    while status is None:
        pid, found = os.waitpid(-1, os.WNOHANG)
        if pid == program_pid:
            status = found
        elif pid == 0 and signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
            status = signal.SIGKILL
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and (left := _children()):
        for pid in left:  # an ended one's own children become ours, until none is left
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(folder, ignore_errors=True)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 255)
