"""An evaluation's folder: what is evaluated, and every episode as it was played.

config.toml       the options that make it what it is
suite.toml        the suite as played, the environments' versions, and which weights
episodes.jsonl    one `Record` a line, append-only; of two with the same task and attempt the later one counts
result.json       the figures; written whole, again after every start
report.html       the same to look at, with the episodes
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from envs.suite import Suite, label
from rollout.wire import Episode, Group, Ticket
from trainer import lock
from trainer.config import differences, dump_toml, read_config
from trainer.describe import score
from trainer.evaluation.config import CONFIG, EvalConfig

EPISODES, RESULT, SUITE, REPORT, TOKENIZER = "episodes.jsonl", "result.json", "suite.toml", "report.html", "tokenizer"
SYNC_S = 1.0  # between two syncs to disk: what a power failure may cost; a killed process loses nothing
Faults = dict[str, int]


class Played(msgspec.Struct, frozen=True):
    """What was played, resolved: `suite.toml`."""

    suite: Suite
    suite_hash: str
    environments: list[str]  # ids with versions
    weights: str  # the model's fingerprint; empty where it is not known
    weight_version: int = 0


class Record(msgspec.Struct, frozen=True):
    """One episode: attempt `attempt` at task `task` of the suite. `score` is how far it was solved, None if errored.

    `faults` are those of the infrastructure since the record before, whosever they were.
    """

    task: int
    attempt: int
    ticket: Ticket
    score: float | None
    episode: Episode
    faults: Faults = {}

    @property
    def part(self) -> str:
        """The part of the suite that it belongs to: its tasks are one stratum."""
        return label(self.ticket.env, self.ticket.split)

    @classmethod
    def of(cls, task: int, attempt: int, ticket: Ticket, episode: Episode) -> Record:
        return cls(task, attempt, ticket, None if episode.reward is None else score(episode), episode)


class Store:
    """A folder that this process alone writes to. Raises `ValueError` where it holds another evaluation."""

    def __init__(self, folder: Path, config: EvalConfig, played: Played) -> None:
        self.folder = folder
        self.played = played
        self.records: dict[tuple[int, int], Record] = {}
        self.faults: Faults = {}
        with contextlib.ExitStack() as undo:
            try:
                self._lock = lock.hold(folder)
                undo.callback(os.close, self._lock)
                self._agree(config, played)
                self._file = os.open(folder / EPISODES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                undo.callback(os.close, self._file)
                self._recover()
            except OSError as error:
                raise ValueError(f"cannot write the folder {folder} ({error}): choose another --out") from error
            undo.pop_all()
        self._synced = time.monotonic()

    def append(self, records: Iterable[Record], faults: Mapping[str, int]) -> None:
        """Keep the records of one ticket: written at once, so that a killed process leaves all of them or a torn line.

        Raises `OSError` (disk full).
        """
        first, *others = records
        written = [msgspec.structs.replace(first, faults=dict(faults)), *others]
        data = memoryview(b"".join(msgspec.json.encode(record) + b"\n" for record in written))
        while data:
            data = data[os.write(self._file, data) :]
        self._remember(written)
        if time.monotonic() - self._synced > SYNC_S:
            self._sync()

    def close(self) -> None:
        self._sync()
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None and issubclass(kind, ValueError) and not self.records:
            self._discard()

    def _discard(self) -> None:
        """Remove the folder of an evaluation that bad input kept from beginning, unless there is more in it."""
        for name in (EPISODES, SUITE, CONFIG):
            (self.folder / name).unlink()
        shutil.rmtree(self.folder / TOKENIZER, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def _remember(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records[record.task, record.attempt] = record
            for name, count in record.faults.items():
                self.faults[name] = self.faults.get(name, 0) + count

    def _agree(self, config: EvalConfig, played: Played) -> None:
        """Refuse a folder of another evaluation, and make a fresh one this one's."""
        if (self.folder / CONFIG).exists():
            changed = config.changed_since(read_config(self.folder / CONFIG, EvalConfig))
            if not changed and (self.folder / SUITE).exists():
                changed = differences(read_played(self.folder), played)
            if changed:
                raise ValueError(f"{self.folder} holds another evaluation: {'; '.join(changed)}; give another --out")
        write_played(self.folder, played)
        write_file(self.folder / CONFIG, dump_toml(config.kept()).encode())

    def _recover(self) -> None:
        """Read what is there, and cut off a line that a crash tore."""
        end = 0
        for size, record in _lines(self.folder / EPISODES):
            end += size
            self._remember([record])
        os.ftruncate(self._file, end)


def write_file(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def write_played(folder: Path, played: Played) -> None:
    write_file(folder / SUITE, tomli_w.dumps(msgspec.to_builtins(played)).encode())


def write_records(folder: Path, records: Iterable[Record]) -> None:
    """All of an evaluation's episodes at once."""
    write_file(folder / EPISODES, b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read_model_name(folder: Path) -> str:
    """The model that the evaluation in `folder` is of."""
    return read_config(folder / CONFIG, EvalConfig).model


def read_played(folder: Path) -> Played:
    """Raises `ValueError` for a folder that is not an evaluation's."""
    try:
        return msgspec.toml.decode((folder / SUITE).read_bytes(), type=Played)
    except OSError as error:
        raise ValueError(f"{folder} is not an evaluation's folder ({SUITE}: {error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / SUITE} is damaged: {error}") from error


def read_records(folder: Path) -> dict[tuple[int, int], Record]:
    """By task and attempt, in their order. Raises `ValueError` for a damaged file."""
    found = {(record.task, record.attempt): record for _, record in _lines(folder / EPISODES)}
    return dict(sorted(found.items()))


def groups_of(records: Mapping[Any, Record]) -> list[Group]:
    """The attempts at each task as one group, in the suite's order."""
    tasks: dict[int, list[Record]] = {}
    for record in sorted(records.values(), key=lambda r: (r.task, r.attempt)):
        tasks.setdefault(record.task, []).append(record)
    return [
        Group(
            msgspec.structs.replace(of[0].ticket, id=task, group_size=len(of)),
            [record.episode for record in of],
            "",
            sum(record.episode.wall_s for record in of),
        )
        for task, of in tasks.items()
    ]


def _lines(path: Path) -> Iterator[tuple[int, Record]]:
    """(size in bytes, record) of each whole line; a torn last one is left out."""
    decoder = msgspec.json.Decoder(Record)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            return
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}:{number} is damaged: {error}") from error
            yield len(line), record
