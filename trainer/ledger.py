"""The groups of a run as they were received: append-only, so that a resumed run can go through them again."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from rollout import wire

_HEAD = struct.Struct("!II")  # payload length, CRC-32


class Ledger:
    """One file of framed groups. A frame torn by a crash is cut off when the file is opened again.

    Safe against SIGKILL of the process: a group is with the kernel before `append` returns. It is not synced to disk,
    so a power failure can lose the newest groups, whose tasks are then played again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "groups.log"
        self.steps_path = folder / "steps.jsonl"
        self.offsets: dict[tuple[str, int, int], int] = {}
        end = 0
        for offset, size, group in _frames(self.path):
            self.offsets.setdefault(group.ticket.key, offset)
            end = offset + size
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._file, end)
        self._end = end

    def append(self, group: wire.Group) -> int:
        """Write `group` and return its offset, which orders the groups by arrival. Raises `OSError` (disk full)."""
        payload = wire.encode(group)
        frame = memoryview(_HEAD.pack(len(payload), zlib.crc32(payload)) + payload)
        offset, written = self._end, 0
        while written < len(frame):
            written += os.pwrite(self._file, frame[written:], offset + written)
        self._end += len(frame)
        self.offsets[group.ticket.key] = offset
        return offset

    def read(self, key: tuple[str, int, int]) -> wire.Group:
        offset = self.offsets[key]
        length, crc = _HEAD.unpack(os.pread(self._file, _HEAD.size, offset))
        group = _decode(os.pread(self._file, length, offset + _HEAD.size), crc)
        if group is None:
            raise ValueError(f"{self.path}: the group at byte {offset} is damaged")
        return group

    def mark(self, step: int, keys: list[tuple[str, int, int]]) -> None:
        """Note which tickets' groups step number `step` (from 1) is made of."""
        with self.steps_path.open("a") as file:
            file.write(_step_line(step, keys))

    def unmark(self, step: int) -> None:
        """Forget the steps after `step`: they are made again."""
        kept = {number: keys for number, keys in read_steps(self.path.parent).items() if number <= step}
        temporary = self.steps_path.with_suffix(".tmp")
        temporary.write_text("".join(_step_line(number, keys) for number, keys in kept.items()))
        temporary.rename(self.steps_path)

    def close(self) -> None:
        os.close(self._file)


def read_groups(folder: Path) -> Iterator[wire.Group]:
    """Every whole group in the ledger in `folder`, in the order of arrival."""
    for _, _, group in _frames(folder / "groups.log"):
        yield group


def read_steps(folder: Path) -> dict[int, list[tuple[str, int, int]]]:
    """The tickets of each step, by its number; a line torn by a crash is left out."""
    path = folder / "steps.jsonl"
    steps = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            steps[record["step"]] = [tuple(key) for key in record["tickets"]]
    return steps


def _step_line(step: int, keys: list[tuple[str, int, int]]) -> str:
    return json.dumps({"step": step, "tickets": [list(key) for key in keys]}) + "\n"


def _frames(path: Path) -> Iterator[tuple[int, int, wire.Group]]:
    """(offset, size, group) of each frame up to the first that is torn."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, crc = _HEAD.unpack(head)
            offset = file.tell() - _HEAD.size
            group = _decode(file.read(length), crc) if length <= wire.MAX_FRAME_BYTES else None
            if group is None:
                return
            yield offset, _HEAD.size + length, group


def _decode(payload: bytes, crc: int) -> wire.Group | None:
    if zlib.crc32(payload) != crc:
        return None
    frame = wire.decode_to_trainer(payload)
    return frame if isinstance(frame, wire.Group) else None
