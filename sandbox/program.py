"""The child that runs a program: it waits, armed, for a call; runs it as `__main__`; says how it went.

Everything here shares its process with the untrusted program, so nothing here is believed, and nothing here knows more
than the program may.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import errno
import linecache
import os
import resource
import signal
import socket
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from sandbox import frames

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN = "/tmp/main.py"
_SPARE_BYTES = 192 << 20  # address space that an interpreter with threads reserves but does not use
_OPEN_FILES = 256
_SHARED_PROCESSES = 4096
_CALLS_OF_A_BOX = 50  # whose CPU time each process of a box may use in all
_TRACED_CALLS = 20  # of a box, whose lines a traceback still shows


def apply_limits(call: frames.Call, *, counts_apart: bool = True) -> None:
    """Bound this process and its descendants. Soft and hard alike: a program cannot raise them again.

    `counts_apart`: the kernel counts this program's processes alone, and not with all others of the same uid.
    """

    def bound(what: int, value: int) -> None:
        resource.setrlimit(what, (value, value))

    bound(resource.RLIMIT_CORE, 0)
    bound(resource.RLIMIT_MEMLOCK, 0)
    bound(resource.RLIMIT_NOFILE, _OPEN_FILES)
    bound(resource.RLIMIT_NPROC, call.pids if counts_apart else _SHARED_PROCESSES)
    bound(resource.RLIMIT_FSIZE, call.file_bytes)
    bound(resource.RLIMIT_AS, call.memory_bytes + _SPARE_BYTES)
    # the host watches the clock, call by call; this is for what it does not see, such as a box's own children
    seconds = int(call.cpu_s * (1 if call.once else _CALLS_OF_A_BOX)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _attach(fds: list[int]) -> bytes:
    """Put the call's descriptors at 0 (stdin), 1, 2 and 3 (the result); return the source."""
    source_fd, *standard = fds
    for target, fd in enumerate(standard):
        os.dup2(fd, target, inheritable=True)
        os.close(fd)
    with open(source_fd, "rb") as file:
        return file.read()


def _open_stdin() -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # type: ignore[misc]  # noqa: SIM115


def _open_standard_streams() -> None:
    _open_stdin()
    out = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    err = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc]


def _flush() -> int:
    """Flush both streams; 120 as the interpreter itself exits with where that fails, else 0."""
    failed = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError, TypeError):
            failed = 120
    return failed


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return int(error.code) & 255
    print(error.code, file=sys.stderr)
    return 1


def _execute(source: bytes, name: str, namespace: dict[str, Any]) -> tuple[int, bool, bool]:
    """Run `source` with the interpreter's own meaning of an exit code: (exit code, out of memory, it asked to exit)."""
    try:
        exec(compile(source, name, "exec", dont_inherit=True), namespace)
    except SystemExit as error:
        return _exit_code(error), False, True
    except BaseException as error:  # whatever a program raises is its own result
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        return (130 if isinstance(error, KeyboardInterrupt) else 1), _is_out_of_memory(error), False
    return 0, False, False


def _is_out_of_memory(error: BaseException) -> bool:
    """What an exhausted address space raises: MemoryError from the allocator, ENOMEM from mmap."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def prepare() -> dict[str, Any]:
    """Make the process as a program expects it, before any fork: all that is done here costs a child nothing.

    Returns the namespace of the new `__main__`.
    """
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o077)
    _open_standard_streams()
    module = types.ModuleType("__main__")
    module.__file__ = MAIN
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [MAIN]
    return module.__dict__


def _run_once(source: bytes, channel: socket.socket, namespace: dict[str, Any]) -> None:
    main = sys.argv[0]
    with contextlib.suppress(OSError), open(main, "wb") as file:  # multiprocessing's spawn reads it again
        file.write(source)
    code, out_of_memory, _ = _execute(source, main, namespace)
    with contextlib.suppress(BaseException):  # a program's own threads and exit functions may raise anything
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    code = _flush() or code
    if out_of_memory:
        with contextlib.suppress(OSError):
            channel.send(frames.Done(frames.FINISHED, code, True).pack())
    os._exit(code)  # the interpreter's own shutdown would touch, and so copy, every page


def serve(channel: socket.socket, namespace: dict[str, Any], limit: Callable[[frames.Call], None]) -> None:
    """Run calls until the host closes the channel, then end the process."""
    calls = 0
    while True:
        data, fds = frames.receive(channel, frames.CALL_FDS)
        if len(fds) != frames.CALL_FDS:
            os._exit(0)
        call = frames.unpack_call(data)
        source = _attach(fds)
        if calls:
            _open_stdin()  # the last call may have left some of its own in the buffer
        else:
            limit(call)
        calls += 1
        if call.once:
            _run_once(source, channel, namespace)
        name = f"<call {calls}>"
        linecache.cache.pop(f"<call {calls - _TRACED_CALLS}>", None)
        lines = source.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        code, out_of_memory, exits = _execute(source, name, namespace)
        code = _flush() or code
        if exits:
            os._exit(code)
        channel.send(frames.Done(frames.FINISHED, code, out_of_memory).pack())
