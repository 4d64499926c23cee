"""The first process of a container: it forks a supervisor for each program, and cleans up before the next one.

Requests come on stdin and replies go to stdout (`sandbox.stream`); the supervisor, never the warden, reads them.
Arguments: the program's uid, the seccomp filter in hexadecimal.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import time

from sandbox import agent, linux, program, stream
from sandbox.supervisor import Supervisor, count_kills, kill_everything, write_all

_CLEAN_S = 3.0
_SCRATCH = ("/tmp", "/dev/shm")


def _supervise(uid: int, seccomp: linux.SeccompFilter, namespace: dict) -> None:
    """In a fork: serve one program, or one box. Does not return."""
    status = 1
    try:
        Supervisor(uid, seccomp, namespace).serve()
        status = 0
    except EOFError:
        pass  # the host is gone
    finally:
        os._exit(status)


def _reap() -> None:
    """Until no child is left. Raises `TimeoutError`: a process that cannot be killed makes the container unusable."""
    deadline = time.monotonic() + _CLEAN_S
    while time.monotonic() < deadline:
        kill_everything()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
    raise TimeoutError("processes that cannot be killed")


def _remove_files() -> None:
    for folder in _SCRATCH:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                shutil.rmtree(entry.path, ignore_errors=True)  # what stays is seen by the caller
            else:
                os.unlink(entry.path)


def _wipe(uid: int) -> None:
    """Remove a program's files, as the program's own uid. Raises `OSError` where something stays."""
    if not any(os.listdir(folder) for folder in _SCRATCH):
        return
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(_CLEAN_S))
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            _remove_files()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if any(os.listdir(folder) for folder in _SCRATCH):
        raise OSError("files that cannot be removed")


def _wait_for(supervisor: int) -> int:
    """The supervisor's wait status. Orphans of programs are reaped on the way."""
    while True:
        pid, status = os.wait()
        if pid == supervisor:
            return status


def run() -> None:
    """Serve until stdin ends, or until the container cannot be cleaned: then it ends, and the host starts another."""
    uid, seccomp = int(sys.argv[1]), linux.SeccompFilter(bytes.fromhex(sys.argv[2]))
    agent.preload(agent.PRELOADED)
    sys.path[:] = ["/tmp", *(path for path in sys.path if path.startswith("/usr/local/")), "/packages"]
    for name in set(os.environ) - set(agent.ENVIRONMENT):
        del os.environ[name]
    os.environ.update(agent.ENVIRONMENT)
    namespace = program.prepare()
    gc.collect()
    gc.freeze()
    while True:
        write_all(1, stream.Reply(stream.READY).pack())
        kills_before = count_kills()
        supervisor = os.fork()
        if supervisor == 0:
            _supervise(uid, seccomp, namespace)
        status = _wait_for(supervisor)
        _reap()
        if os.WIFSIGNALED(status) and count_kills() > kills_before:  # memory ran out, and it was the one to go
            hits = stream.hit_bits(["memory"])
            write_all(1, stream.Reply(stream.RAN, True, signal.SIGKILL, hits).pack())
        elif status:
            return
        _wipe(uid)
