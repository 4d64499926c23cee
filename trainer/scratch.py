"""A run's folder in shared memory: its socket and its weights. It goes when the run does, however that ends."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "slipstream-"
_held: list[int] = []  # descriptors of the folders of this process


def make() -> Path:
    """A new folder that only this user can enter, named after this process; folders of dead processes are removed."""
    base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
    _held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    fcntl.flock(_held[-1], fcntl.LOCK_EX)  # until this process ends
    return folder


def sweep(base: Path) -> None:
    """Remove what runs that were killed left in `base`."""
    for folder in base.glob(f"{PREFIX}*-*"):
        match = re.fullmatch(rf"{PREFIX}(\d+)-.*", folder.name)
        if match and not _alive(int(match[1])) and not _is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    """Whether a process has it that cannot be seen from here: another container with the same shared memory."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # another user's, or gone
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
