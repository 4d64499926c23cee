"""Runs `python -m trainer.run` for the benchmarks, and measures what it cost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.metrics import read_metrics


@dataclass(frozen=True)
class Measured:
    """A finished run. `cpu_s` counts the trainer, its workers and every program that they ran."""

    folder: Path
    metrics: list[dict[str, float]]
    cpu_s: float
    wall_s: float

    def evaluations(self) -> list[dict[str, float]]:
        return [r for r in self.metrics if "eval/success" in r]

    def steps(self) -> list[dict[str, float]]:
        return [r for r in self.metrics if "reward/mean" in r]


def train(folder: Path, cache: Path, *options: str, timeout_s: float = 3600.0) -> Measured:
    """Train in `folder` with the embedded models in `cache`. Raises `RuntimeError` with the run's last words."""
    command = [sys.executable, "-m", "trainer.run", "--plain", "--runs-dir", str(folder.parent), "--name", folder.name]
    before, began = _children_cpu_s(), time.monotonic()
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [*command, *options],
        check=False,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(options)}: exit status {done.returncode}\n{done.stdout[-2000:]}")
    return Measured(folder, read_metrics(folder), _children_cpu_s() - before, time.monotonic() - began)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
