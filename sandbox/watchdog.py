"""Memory and process bounds where this machine lets us set no cgroup: look at the process tree, again and again."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from sandbox.protocol import LimitName, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_S = 0.03


def measure(root_pid: int, inherited_bytes: int = 0) -> tuple[int, int]:
    """(bytes of memory, processes) of a process and its descendants, as far as they can be read.

    `inherited_bytes` is what each of them shares with the zygote by copy-on-write, and so does not count.
    """
    total, count, todo = 0, 0, [root_pid]
    while todo:
        pid = todo.pop()
        try:
            with open(f"/proc/{pid}/statm") as file:
                _, resident, shared, *_ = file.read().split()
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                todo += [int(word) for word in file.read().split()]
        except (OSError, ValueError):
            continue  # it ended
        count += 1
        total += max(0, (int(resident) - int(shared)) * _PAGE_BYTES - inherited_bytes)
    return total, count


async def watch(root_pid: int, inherited_bytes: int, limits: Limits, exceed: Callable[[LimitName], None]) -> None:
    """Call `exceed` once when a bound is passed; cancel this when the program has ended."""
    while True:
        used_bytes, processes = measure(root_pid, inherited_bytes)
        if used_bytes > limits.memory_bytes:
            exceed("memory")
            return
        if processes > limits.pids:
            exceed("pids")
            return
        await asyncio.sleep(_INTERVAL_S)
