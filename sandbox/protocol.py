"""What a sandbox promises, whichever backend runs the program.

Error model, stated once: whatever the *program* does (crash, loop, exhaust a limit, print rubbish) is an ordinary
`ExecResult`. A fault of the *sandbox* itself (it cannot start, its slot died for a reason of its own, the engine is
gone) raises `SandboxError`, which is never scored against the program.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Protocol

LimitName = Literal["wall", "cpu", "memory", "pids", "tmp", "file", "stdout", "stderr", "result"]


class SandboxError(RuntimeError):
    """A fault of the sandbox, not of the program that it was running."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. Every value must be above 0; `ValueError` names the one that is not."""

    wall_s: float = 5.0
    cpu_s: float = 4.0
    memory_bytes: int = 384 << 20
    pids: int = 64
    tmp_bytes: int = 64 << 20
    file_bytes: int = 16 << 20
    stdout_bytes: int = 64 << 10
    stderr_bytes: int = 64 << 10
    result_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"Limits.{field.name} must be above 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one program ended.

    `exit_code` is None when a signal ended it, `signal` is None when it exited. `result` holds the bytes that the
    program wrote to file descriptor 3: the program's own claim, never proof of anything.
    """

    exit_code: int | None
    signal: int | None
    limits_hit: tuple[LimitName, ...]
    stdout: bytes
    stderr: bytes
    truncated: bool
    result: bytes
    wall_s: float
    cpu_s: float
    max_rss_bytes: int
    queue_s: float
    backend: str
    isolation: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.limits_hit


class Box(Protocol):
    """A stateful interpreter for one episode: files and variables survive from call to call.

    A program that exceeds a limit or ends the interpreter takes the state with it; the next call starts afresh, and
    its result says so in `restarted`.
    """

    restarted: bool

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        """Run `source` in the box's `__main__` namespace. Raises `SandboxError`."""
        ...

    async def aclose(self) -> None:
        """End every process of the box and drop its files. Never raises; may be called twice."""
        ...


class Sandbox(Protocol):
    """A pool of isolated places to run Python programs in."""

    backend: str
    isolation: str

    async def start(self) -> None:
        """Start the slots and run a known-good canary program. Raises `SandboxError` saying what to set or install."""
        ...

    async def run(self, source: bytes | str, *, stdin: bytes = b"", limits: Limits | None = None) -> ExecResult:
        """Run one program in a fresh, disposable child: nothing survives it. Raises `SandboxError`."""
        ...

    async def open(self, *, limits: Limits | None = None) -> Box:
        """A stateful box. `limits` bound each call (wall, cpu) and the whole box (memory, pids, tmp)."""
        ...

    async def aclose(self) -> None:
        """End everything that was started. Never raises; may be called twice."""
        ...
