"""Real processes that the chaos tests kill: rollout workers and a trainer's end of the link with a ledger."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from rollout import worker
from rollout.link import LinkServer
from rollout.wire import Group, Weights
from tests.fakes import FakeChat, make_ticket

# A fork server that has imported everything: a process starts in milliseconds instead of a second.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.chaos.processes"])


def config(pace_s: float) -> bytes:
    return msgspec.json.encode(
        worker.WorkerConfig("", engine="tests.fakes:FakeEngine", sandbox="", engine_options={"pace_s": pace_s})
    )


def start_worker(address: str, name: str, *options: str) -> BaseProcess:
    arguments = ["--connect", address, "--name", name, *options]
    process = _processes.Process(target=_work, args=(arguments,), name=name, daemon=True)
    process.start()
    return process


def start_trainer(folder: Path, tickets: int, pace_s: float) -> BaseProcess:
    """Serves at `folder`/link the tickets that are not in `folder`/ledger; exits 0 when all of them are."""
    process = _processes.Process(target=_train, args=(str(folder), tickets, pace_s), daemon=True)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert process.exitcode is not None


def ledger(folder: Path) -> list[int]:
    """The ticket ids that were written, in order; a line that a kill cut off is not counted."""
    text = (folder / "ledger").read_text() if (folder / "ledger").exists() else ""
    return [json.loads(line)["id"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _work(arguments: list[str]) -> None:
    worker.WorkerConfig.make_new_chat = lambda config: FakeChat  # type: ignore[method-assign]
    sys.exit(worker.main(arguments))


def _train(folder: str, tickets: int, pace_s: float) -> None:
    done = set(ledger(Path(folder)))
    with open(Path(folder, "ledger"), "r+" if done else "w") as file:
        file.truncate(sum(len(json.dumps({"id": id})) + 1 for id in done))
        file.seek(0, os.SEEK_END)

        def keep(group: Group) -> None:
            file.write(json.dumps({"id": group.ticket.id}) + "\n")
            file.flush()
            done.add(group.ticket.id)

        server = LinkServer(f"ipc://{folder}/link", config(pace_s), keep)
        Path(folder, "weights").write_text("1")
        server.publish(Weights(1, f"{folder}/weights"))
        for id in range(tickets):
            if id not in done:
                server.grant(make_ticket(id))
        server.start()
        while len(done) < tickets:
            server.check()
            time.sleep(0.01)
        server.stop("all are played")
        server.close()
