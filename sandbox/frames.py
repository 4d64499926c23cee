"""What host, zygote and programs say to each other: fixed-size frames over sequenced-packet sockets, with descriptors.

A frame has one layout and no nesting, so a hostile one can only be of a wrong length or hold wrong numbers. Program
bytes are never in a frame: they travel as descriptors, past the zygote.

    host -> zygote   Order: fork a child (with the child's socket), kill one
    zygote -> host   Report: ready, or how a child ended
    host -> child    Call: run a program (with source, stdin, stdout, stderr and result descriptors)
    child -> host    Done: the program's own word on how it went, or "armed"
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass

FORK, KILL = 1, 2
READY, EXITED, BROKEN = 1, 2, 3
ARMED, FINISHED = 1, 2
CALL_FDS = 5  # source, stdin, stdout, stderr, result
MAX_FRAME_BYTES = 512

_ORDER = struct.Struct("!BIQ")
_REPORT = struct.Struct("!BIiddQ128s")
_CALL = struct.Struct("!?dQQQ")
_DONE = struct.Struct("!BB?")


class FrameError(ValueError):
    """Bytes that are not a frame."""


@dataclass(frozen=True, slots=True)
class Order:
    """To the zygote. `kind` is FORK or KILL; `child` is a number that the host chose."""

    kind: int
    child: int
    tmp_bytes: int = 0

    def pack(self) -> bytes:
        return _ORDER.pack(self.kind, self.child, self.tmp_bytes)


@dataclass(frozen=True, slots=True)
class Report:
    """From the zygote. EXITED carries the wait status and what the child and its reaped descendants used."""

    kind: int
    child: int = 0
    status: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    max_rss_bytes: int = 0
    text: str = ""

    def pack(self) -> bytes:
        text = self.text.encode(errors="replace")[:128]
        return _REPORT.pack(self.kind, self.child, self.status, self.cpu_s, self.wall_s, self.max_rss_bytes, text)


@dataclass(frozen=True, slots=True)
class Call:
    """To a child: run one program. `once` ends the child afterwards; otherwise its state stays."""

    once: bool
    cpu_s: float
    memory_bytes: int
    pids: int
    file_bytes: int

    def pack(self) -> bytes:
        return _CALL.pack(self.once, self.cpu_s, self.memory_bytes, self.pids, self.file_bytes)


@dataclass(frozen=True, slots=True)
class Done:
    """From a child. `out_of_memory`: a MemoryError ended the program."""

    kind: int
    exit_code: int = 0
    out_of_memory: bool = False

    def pack(self) -> bytes:
        return _DONE.pack(self.kind, self.exit_code & 255, self.out_of_memory)


def _unpack(layout: struct.Struct, data: bytes) -> tuple:
    if len(data) != layout.size:
        raise FrameError(f"a frame of {len(data)} bytes where {layout.size} were due")
    return layout.unpack(data)


def unpack_order(data: bytes) -> Order:
    return Order(*_unpack(_ORDER, data))


def unpack_report(data: bytes) -> Report:
    kind, child, status, cpu_s, wall_s, max_rss_bytes, text = _unpack(_REPORT, data)
    return Report(kind, child, status, cpu_s, wall_s, max_rss_bytes, text.rstrip(b"\0").decode(errors="replace"))


def unpack_call(data: bytes) -> Call:
    return Call(*_unpack(_CALL, data))


def unpack_done(data: bytes) -> Done:
    return Done(*_unpack(_DONE, data))


def receive(channel: socket.socket, max_fds: int) -> tuple[bytes, list[int]]:
    """One frame and its descriptors; `b""` at the end of the stream. Raises `FrameError` for too much of either."""
    space = socket.CMSG_SPACE(max_fds * array.array("i").itemsize)
    data, ancillary, flags, _ = channel.recvmsg(MAX_FRAME_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise FrameError("a frame that was cut off")
    return data, list(fds)
