"""What a run writes down: metrics.jsonl, events.jsonl, TensorBoard, W&B, and the live view's numbers."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from rollout.link import LinkServer, LinkState
from trainer.config import RunConfig, to_plain


class Sink(Protocol):
    """Somewhere that metrics go."""

    def write(self, step: int, figures: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and seldom asked for

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError("--log wandb needs the wandb package: pip install 'slipstream-rl[wandb]'") from error
        self.run = wandb.init(
            project="slipstream",
            name=folder.name,
            id=folder.name,
            resume="allow",
            dir=str(folder),
            config=to_plain(config),
        )

    def write(self, step: int, figures: dict[str, float]) -> None:
        self.run.log(figures, step=step)

    def close(self) -> None:
        self.run.finish()


def open_sinks(folder: Path, config: RunConfig) -> list[Sink]:
    """Raises `ValueError` for one that is not installed."""
    made: dict[str, Any] = {"tensorboard": lambda: TensorBoard(folder), "wandb": lambda: WandB(folder, config)}
    return [made[name]() for name in config.output.log]


class Metrics:
    """One object a step in metrics.jsonl, and every process's spans in events.jsonl.

    `start_version` and `elapsed_s` are those of the checkpoint that the run goes on from: later lines are cut off.
    """

    def __init__(
        self, folder: Path, link: LinkServer, sinks: list[Sink], *, start_version: int = 0, elapsed_s: float = 0.0
    ) -> None:
        self.link = link
        self.sinks = sinks
        self.start_version = start_version
        self.on_step: Callable[[dict[str, float]], None] = lambda record: None
        self.history: list[dict[str, float]] = _keep_until(folder / "metrics.jsonl", start_version)
        self.now: tuple[str, float] = ("start", time.time())  # what the trainer is doing, and since when
        self._metrics = (folder / "metrics.jsonl").open("a")
        self._events = (folder / "events.jsonl").open("a")
        self._began = time.monotonic() - elapsed_s
        self._step_began = time.monotonic()
        self._times: defaultdict[str, float] = defaultdict(float)
        self._sampled: deque[tuple[float, float]] = deque([(time.monotonic(), 0.0)])  # (when, tokens drawn by then)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds as `time/<what>_s`, and as a bar of the trainer's timeline."""
        start = time.time()
        self.now = (what, start)
        try:
            yield
        finally:
            end = time.time()
            self._times[what] += end - start
            self._event("trainer", what, start, end)
            self.now = ("between", end)

    def step(self, version: int, figures: dict[str, float]) -> None:
        """Write the figures of the step that made `version`."""
        step_s = time.monotonic() - self._step_began
        self._step_began = time.monotonic()
        state = self.link.state()
        learn_s = self._times["learn"]
        figures = figures | {f"time/{name}_s": seconds for name, seconds in self._times.items()}
        figures |= {
            "time/step_s": step_s,
            "gen/tokens_per_s": self._generation_rate(state),
            "train/tokens_per_s": figures.get("train/tokens_in", 0.0) / learn_s if learn_s else 0.0,
            "groups/out": float(state.out),
            "link/regranted": float(state.counts.get("regranted", 0)),
            "link/malformed": float(state.counts.get("malformed", 0)),
        }
        self._times.clear()
        self._write(version, figures)
        self.drain_events()

    def _generation_rate(self, state: LinkState) -> float:
        """Tokens drawn a second over the last ten seconds; workers tell their counts once a second."""
        now, drawn = time.monotonic(), sum(w.counters.get("sampled_tokens", 0.0) for w in state.workers)
        if drawn < self._sampled[-1][1]:  # a worker was restarted, and counts from 0 again
            self._sampled.clear()
        self._sampled.append((now, drawn))
        while len(self._sampled) > 2 and self._sampled[1][0] < now - 10:
            self._sampled.popleft()
        then, before = self._sampled[0]
        return (drawn - before) / (now - then) if now > then else 0.0

    def evaluations(self, version: int, finished: list[dict[str, float]]) -> None:
        """Write an object for each evaluation that finished by `version`."""
        for figures in finished:
            self._write(version, figures)

    def drain_events(self) -> None:
        for worker, span in self.link.take_spans():
            self._event(worker, span.what, span.start, span.end)
        self._events.flush()

    def _write(self, version: int, figures: dict[str, float]) -> None:
        record: dict[str, float] = {"step": version, "time/elapsed_s": round(self.elapsed_s, 3)}
        record |= {name: round(value, 6) for name, value in sorted(figures.items())}
        self.history.append(record)
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()
        for sink in self.sinks:
            sink.write(version, figures)
        self.on_step(record)

    def _event(self, process: str, what: str, start: float, end: float) -> None:
        self._events.write(json.dumps({"process": process, "what": what, "start": start, "end": end}) + "\n")

    def close(self) -> None:
        self.drain_events()
        for sink in self.sinks:
            sink.close()
        self._metrics.close()
        self._events.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Every whole line of a run's metrics.jsonl; a last line torn by a crash is left out."""
    path = folder / "metrics.jsonl"
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


def _keep_until(path: Path, version: int) -> list[dict[str, float]]:
    """Cut metrics.jsonl off after `version`; the steps that follow are made again. Returns what stays."""
    records = [r for r in read_metrics(path.parent) if r["step"] <= version]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(r) + "\n" for r in records))
    temporary.rename(path)
    return records
