"""One process at a time writes to a folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(folder: Path) -> int:
    """Keep other processes out of `folder`, made if need be, for as long as the descriptor is open.

    Raises `ValueError` if one holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(f"{folder} is in use: another process is running it") from None
    return descriptor
