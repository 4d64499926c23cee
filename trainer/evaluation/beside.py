"""A suite beside training: each weight version that is due is saved, and evaluated by a process of its own.

The weights are frozen and generation for training goes on; the evaluation takes what it leaves of the processors, at
the lowest priority. Its folder, with transcripts, error bars and a page, is `evals/SUITE-step-N` in the run's.

    python -m trainer.evaluation.beside PARENT ARGUMENTS...

is `python -m trainer.eval ARGUMENTS...`, ended when the process PARENT is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from trainer.checkpoint import found
from trainer.config import RunConfig
from trainer.evaluation.store import EPISODES, RESULT
from trainer.evaluation.summary import ALL, Result
from trainer.launch import spawn

STOP_S = 10.0


class Beside:
    """Evaluates one version at a time, in the order of `start`. `save` writes the current model into a folder.

    `recorded` are versions whose figures the run has already. Those up to `begun_at` that a killed run saved and did
    not record are evaluated now. `check` is called while waiting, and may raise. What an evaluation that failed leaves
    behind is a figure that says so, and its last words in logs/eval.log: training goes on.
    """

    def __init__(
        self,
        run: Path,
        config: RunConfig,
        save: Callable[[Path], None],
        *,
        recorded: Collection[int] = (),
        begun_at: int = 0,
        stall_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.run, self.config, self.save, self.stall_s, self.check = run, config, save, stall_s, check
        self.suite = Path(config.output.eval_suite).stem
        self.folder = run / "evals"
        self._begun = set(recorded)
        self._waiting: deque[int] = deque()
        self._running: tuple[int, subprocess.Popen[bytes]] | None = None
        self._finished: list[dict[str, float]] = []
        for version in range(begun_at + 1):
            if version not in self._begun and (self._out(version) / RESULT).exists():
                self._begun.add(version)
                self._finished.append(self._figures(version, 0))
        for weights in found(self.folder / "weights"):
            version = int(weights.name.removeprefix("step-"))
            if version in self._begun or version > begun_at:
                shutil.rmtree(weights)
            else:
                self._begun.add(version)
                self._waiting.append(version)

    def start(self, version: int) -> None:
        """Have the current weights, `version`, evaluated."""
        if version in self._begun:
            return
        self._begun.add(version)
        weights = self._weights(version)
        saving = weights.with_name(f".{weights.name}.tmp")
        for folder in (saving, self._out(version)):
            shutil.rmtree(folder, ignore_errors=True)
        saving.mkdir(parents=True)
        self.save(saving)
        saving.rename(weights)
        self._waiting.append(version)
        self._go_on()

    def finished(self) -> list[dict[str, float]]:
        """Figures of the evaluations that ended since the last call."""
        self._go_on()
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> None:
        """Until all that was started has ended. One that writes nothing for `stall_s` seconds is ended, and failed."""
        seen, since = (-1, -1), time.monotonic()
        while self._running is not None or self._waiting:
            self.check()
            self._go_on()
            if self._running is None:
                continue
            version, process = self._running
            path = self._out(version) / EPISODES
            now = version, path.stat().st_size if path.exists() else 0
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self.stall_s:
                process.kill()
            time.sleep(0.05)

    def close(self) -> None:
        """End what runs. Its folder and its weights stay, for the run that goes on."""
        self._waiting.clear()
        if self._running is not None:
            _, process = self._running
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
            self._running = None

    def _go_on(self) -> None:
        if self._running is not None and self._running[1].poll() is not None:
            version, process = self._running
            self._running = None
            self._finished.append(self._figures(version, process.returncode))
            shutil.rmtree(self._weights(version), ignore_errors=True)
        if self._running is None and self._waiting:
            version = self._waiting.popleft()
            self._running = version, self._spawn(version)

    def _spawn(self, version: int) -> subprocess.Popen[bytes]:
        rollout, optim = self.config.rollout, self.config.optim
        command = [sys.executable, "-m", "trainer.evaluation.beside", str(os.getpid())]
        command += ["--suite", self.config.output.eval_suite, "--model", str(self._weights(version))]
        command += ["--out", str(self._out(version)), "--engine", rollout.engine, "--sandbox", rollout.sandbox]
        command += ["--device", optim.device, "--dtype", optim.dtype, "--threads", "1", "--plain"]
        log = self.run / "logs" / "eval.log"
        log.parent.mkdir(exist_ok=True)
        return spawn(command, log)

    def _figures(self, version: int, status: int) -> dict[str, float]:
        name = f"eval/{self.suite}"
        if status != 0:
            return {f"{name}/step": float(version), f"{name}/failed": 1.0}
        return figures(name, version, msgspec.json.decode((self._out(version) / RESULT).read_bytes(), type=Result))

    def _weights(self, version: int) -> Path:
        return self.folder / "weights" / f"step-{version}"

    def _out(self, version: int) -> Path:
        return self.folder / f"{self.suite}-step-{version}"


def figures(name: str, version: int, result: Result) -> dict[str, float]:
    """`name`/success with its interval, by environment too; and what says whether to believe it."""
    whole = result.whole
    told: dict[str, float | None] = {
        f"{name}/step": float(version),
        f"{name}/success": whole.score.mean,
        f"{name}/low": whole.score.low,
        f"{name}/high": whole.score.high,
        f"{name}/tasks": float(whole.score.tasks),
        f"{name}/reward": whole.reward.mean,
        f"{name}/errored": float(whole.errored),
        f"{name}/labelled": whole.labelled / whole.scored if whole.scored else None,
        f"{name}/public_gap": whole.public_gap.mean if whole.public_gap else None,
    }
    for row in result.rows:
        if row.environment != ALL and not row.part and not row.kind:
            told[f"{name}/{row.environment}/success"] = row.score.mean
    return {key: value for key, value in told.items() if value is not None}


def main(arguments: list[str]) -> int:
    from rollout.worker import end_with
    from trainer import eval as evaluation

    end_with(int(arguments[0]), None)
    os.nice(19)
    return evaluation.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
