"""A run's folder in shared memory: its socket and its weights. It goes when the run does, however that ends."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "slipstream-"


def make() -> Path:
    """A new folder that only this user can enter, named after this process; folders of dead processes are removed."""
    base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))


def sweep(base: Path) -> None:
    """Remove what runs that were killed left in `base`."""
    for folder in base.glob(f"{PREFIX}*-*"):
        match = re.fullmatch(rf"{PREFIX}(\d+)-.*", folder.name)
        if match and not _alive(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
