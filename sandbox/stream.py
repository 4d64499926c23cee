"""Requests and replies over a byte stream, for a sandbox that descriptors cannot be passed to (a container's stdin).

    request = header, source, stdin        reply = header, stdout, stderr, result

Before its first request, and again whenever a child has ended, the far side says READY: it is clean.

Headers have one layout and no nesting. The side that receives one checks every length before it reads on.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import ClassVar

RUN, RESET = 1, 2
READY, RAN = 1, 2
MAX_REQUEST_BYTES = 64 << 20
LIMIT_NAMES = ("wall", "cpu", "memory", "pids", "tmp", "file", "stdout", "stderr", "result")


class StreamError(ValueError):
    """Bytes that are not a header, or lengths beyond what was agreed."""


@dataclass(frozen=True, slots=True)
class Request:
    """Run a program (`once`: in a child that ends with it), or RESET: end the child that holds a state."""

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!B?dd8Q")

    kind: int
    once: bool = True
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    pids: int = 0
    file_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    result_bytes: int = 0
    source_bytes: int = 0
    stdin_bytes: int = 0

    def pack(self) -> bytes:
        return self.LAYOUT.pack(*astuple(self))

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        request = cls(*cls.LAYOUT.unpack(data))
        if request.source_bytes + request.stdin_bytes > MAX_REQUEST_BYTES:
            raise StreamError("a request that is too large")
        return request


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call went. `ended`: the child is gone, with wait status `status`; else `status` is its exit code's word.

    `hits` has bit i set where `LIMIT_NAMES[i]` was hit.
    """

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!B?iHddQ3I")

    kind: int
    ended: bool = True
    status: int = 0
    hits: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    result_bytes: int = 0

    def pack(self) -> bytes:
        return self.LAYOUT.pack(*astuple(self))

    @classmethod
    def unpack(cls, data: bytes) -> Reply:
        return cls(*cls.LAYOUT.unpack(data))

    def limits_hit(self) -> list[str]:
        return [name for index, name in enumerate(LIMIT_NAMES) if self.hits >> index & 1]


def hit_bits(names: list[str]) -> int:
    return sum(1 << LIMIT_NAMES.index(name) for name in set(names))
