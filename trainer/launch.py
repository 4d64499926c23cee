"""Starts the rollout workers, notices their deaths, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESTART_DELAY_S = 0.5
MOST_DEATHS = 5  # of a worker, while no group arrives from anybody
STOP_S = 8.0  # for workers to end by themselves, before SIGKILL
REFUSED = 3  # a worker's exit status where starting it again cannot help


class WorkerError(RuntimeError):
    """Workers cannot be kept running."""


@dataclass
class _Worker:
    name: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    restart_at: float = 0.0


class Supervisor:
    """Runs `count` workers that connect to `address`, for at most `tickets` each at a time; `on_death(name)` hears of
    each that ended.

    `scratch` is this run's folder in shared memory, which a worker removes if this process is killed. `arrived` counts
    the groups that came from all workers: while it grows, workers may die as often as they like.

    A thread looks after them. What ends the run is kept and raised by `check`.
    """

    def __init__(
        self,
        address: str,
        count: int,
        logs: Path,
        scratch: Path,
        *,
        tickets: int,
        on_death: Callable[[str], None],
        arrived: Callable[[], int],
    ) -> None:
        self.address = address
        self.scratch = scratch
        self.tickets = tickets
        self.on_death = on_death
        self.arrived = arrived
        self._arrived_before = 0
        self.restarts = 0
        logs.mkdir(parents=True, exist_ok=True)
        self._workers = [_Worker(f"worker-{i}", logs / f"worker-{i}.log") for i in range(count)]
        self._failure: WorkerError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        for worker in self._workers:
            self._spawn(worker)
        self._thread.start()

    def check(self) -> None:
        """Raise the `WorkerError` that ended the run, if one did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End every worker: they were told over the link, then comes SIGTERM, then SIGKILL of their process group."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        running = [w.process for w in self._workers if w.process is not None]
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = _still_running(running, STOP_S / 2)
            for process in running:
                _signal_group(process, number)
        _still_running(running, 1.0)

    def _watch(self) -> None:
        while not self._stopping.wait(0.1):
            for worker in self._workers:
                self._tend(worker)

    def _tend(self, worker: _Worker) -> None:
        now = time.monotonic()
        if worker.process is None:
            if now >= worker.restart_at and self._failure is None:
                self.restarts += 1
                self._spawn(worker)
            return
        status = worker.process.poll()
        if status is None:
            return
        _signal_group(worker.process, signal.SIGKILL)  # sandboxes that a killed worker left
        worker.process = None
        worker.restart_at = now + RESTART_DELAY_S
        if (arrived := self.arrived()) > self._arrived_before:
            self._arrived_before = arrived
            for each in self._workers:
                each.deaths = 0
        worker.deaths += 1
        self.on_death(worker.name)
        if status == REFUSED or worker.deaths > MOST_DEATHS:
            cause = "cannot start" if status == REFUSED else f"died {worker.deaths} times while no group arrived"
            self._failure = WorkerError(f"{worker.name} {cause} (exit status {status}); {_last_words(worker.log)}")

    def _spawn(self, worker: _Worker) -> None:
        command = [sys.executable, "-m", "rollout.worker", "--connect", self.address, "--name", worker.name]
        command += ["--parent", str(os.getpid()), "--scratch", str(self.scratch), "--capacity", str(self.tickets)]
        worker.process = spawn(command, worker.log)


def spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that adds what it says to `log`.

    It has a session of its own: Ctrl-C reaches the trainer alone, which then ends its processes in order.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=_environment(),
        )


def _environment() -> dict[str, str]:
    """Packages found from where this process found them, no thread pool but the engine's own."""
    paths = [p for p in sys.path if p]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _still_running(processes: list[subprocess.Popen[bytes]], patience_s: float) -> list[subprocess.Popen[bytes]]:
    """Those that have not ended after `patience_s`."""
    deadline = time.monotonic() + patience_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    return [p for p in processes if p.poll() is None]


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return f"its last words in {log}: {lines[-1]}" if lines else f"{log} is empty"
