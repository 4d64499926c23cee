"""A memory (and, where one hierarchy holds both, process) bound for each child, where this machine lets us set one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

_EVENTS_BYTES = 1 << 12
_FAST_S = 0.003
_MOUNT = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Cgroup:
    """One child's group. It is used again once its child has ended."""

    path: Path
    unified: bool
    memory_bytes: int = 0
    pids: int = 0
    kills: int = 0

    def bound(self, memory_bytes: int, pids: int) -> None:
        if memory_bytes != self.memory_bytes:
            name = "memory.max" if self.unified else "memory.limit_in_bytes"
            (self.path / name).write_text(str(memory_bytes))
            self.memory_bytes = memory_bytes
        if self.unified and pids != self.pids:
            with contextlib.suppress(OSError):  # the pids controller is a second line: RLIMIT_NPROC is the first
                (self.path / "pids.max").write_text(str(pids))
            self.pids = pids

    def add(self, pid: int) -> None:
        """Takes half a millisecond, or tens of them on kernels that wait for a grace period first."""
        with open(f"{self.path}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"%d" % pid)

    def count_kills(self) -> int:
        """Processes that the kernel ended for memory since the last time that this was asked."""
        name = "memory.events" if self.unified else "memory.oom_control"
        with open(f"{self.path}/{name}", "rb", buffering=0) as file:
            words = file.read(_EVENTS_BYTES).split()
        total = int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0
        new, self.kills = total - self.kills, total
        return new


@dataclass(slots=True)
class CgroupPool:
    """Makes groups below `root` and keeps the free ones."""

    root: Path
    unified: bool
    free: list[Cgroup] = field(default_factory=list)
    count: int = 0
    add_s: float = 1.0  # how long the last move of a process took

    async def add(self, group: Cgroup, pid: int) -> None:
        """Move a process into a group without holding up the event loop. Raises `OSError`."""
        started = time.monotonic()
        if self.add_s < _FAST_S:
            group.add(pid)
        else:
            await asyncio.to_thread(group.add, pid)
        self.add_s = time.monotonic() - started

    def take(self) -> Cgroup:
        """Raises `OSError`."""
        if self.free:
            group = self.free.pop()
            group.count_kills()  # those of what its last child left behind are not the next one's
            return group
        self.count += 1
        path = self.root / str(self.count)
        path.mkdir()
        group = Cgroup(path, self.unified)
        if self.unified:
            with contextlib.suppress(OSError):
                (path / "memory.swap.max").write_text("0")
                (path / "memory.oom.group").write_text("0")
        return group

    def give_back(self, group: Cgroup) -> None:
        """Keep an empty group for the next child."""
        if group.path.parent == self.root:
            self.free.append(group)

    def close(self) -> bool:
        """Remove every group; False where one still has a process, so that this must be asked again."""
        self.free.clear()
        for path in [*self.root.glob("*/"), self.root]:
            with contextlib.suppress(OSError):
                path.rmdir()
        return not self.root.exists()


def _own_groups() -> list[tuple[Path, bool]]:
    """Where this process is: (directory, unified), the unified hierarchy's parents included, nearest first."""
    found: list[tuple[Path, bool]] = []
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, name = line.rstrip("\n").split(":", 2)
            if "memory" in controllers.split(","):
                found.append((_MOUNT / "memory" / name.lstrip("/"), False))
            elif not controllers and (_MOUNT / "cgroup.controllers").exists():
                here = _MOUNT / name.lstrip("/")
                found += [(folder, True) for folder in (here, *here.parents) if folder.is_relative_to(_MOUNT)]
    return found


def create_pool(name: str) -> CgroupPool | None:
    """Groups below (or, in the unified hierarchy, beside) this process's own; None where that is not permitted."""
    for folder, unified in _own_groups():
        root = folder / name
        try:
            root.mkdir()
        except OSError:
            continue
        try:
            if unified:
                (root / "cgroup.subtree_control").write_text("+memory +pids")
            probe = root / "0"
            probe.mkdir()
            Cgroup(probe, unified).bound(64 << 20, 64)
            probe.rmdir()
            return CgroupPool(root, unified)
        except OSError:
            for path in (root / "0", root):
                with contextlib.suppress(OSError):
                    path.rmdir()
    return None


def available() -> bool:
    pool = create_pool(f"slipstream-probe-{os.getpid()}")
    if pool is not None:
        pool.close()
    return pool is not None
