"""What the terminal shows while a run goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rollout.link import LinkState
from trainer.config import RunConfig
from trainer.metrics import Metrics
from trainer.page.curves import suites

BLOCKS = " ▁▂▃▄▅▆▇█"


@contextlib.contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int, float], None]]:
    """A progress bar with a loss beside it; call what it gives with (step, loss)."""
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(title, total=total, loss="")
        yield lambda step, loss: progress.update(task, completed=step, loss=f"loss {loss:.3f}")


@contextlib.contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each stage of the embedded model's making; call what it gives with (stage, done, of).

    Where stderr is no terminal, a line says that a stage began.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, of: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"embedded model: {stage}", total=of)
                if not console.is_terminal:
                    console.print(f"embedded model: {stage} ({of}) …", soft_wrap=True)
            progress.update(tasks[stage], completed=done)

        yield report


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last `width` values as block characters, scaled from 0 (or their least) to their largest."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(0.0, *shown), max(*shown, 1e-9)
    return "".join(BLOCKS[round((v - low) / (high - low) * (len(BLOCKS) - 1))] for v in shown)


class View:
    """The live view; `with View(...)` shows it until the block ends, or prints a line a step where `plain`."""

    def __init__(
        self, config: RunConfig, log: Metrics, restarts: Callable[[], int], console: Console, *, plain: bool
    ) -> None:
        self.config = config
        self.log = log
        self.restarts = restarts
        self.plain = plain
        self.console = console
        self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> View:
        if self.plain:
            self.log.on_step = lambda record: self.console.print(plain_line(record, self.config.steps), soft_wrap=True)
        else:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.plain:
            self._live.stop()

    def render(self) -> Panel:
        history = self.log.history
        steps = [r for r in history if "reward/mean" in r]
        version = int(history[-1]["step"]) if history else 0
        body = Group(self._progress(version), self._learning(steps), self._machine(steps, self.log.link.state()))
        return Panel(body, title=f"slipstream · {self.config.env} · {self.config.model}", title_align="left")

    def _progress(self, version: int) -> Text:
        share = version / self.config.steps
        recent = [r["time/step_s"] for r in self.log.history[-12:] if "time/step_s" in r]
        left_s = sum(recent) / len(recent) * (self.config.steps - version) if recent else 0.0
        left = f"{left_s // 60:.0f} min {left_s % 60:.0f} s left" if recent else "starting"
        filled = round(40 * share)
        return Text(f"step {version}/{self.config.steps}  {'━' * filled}{'╌' * (40 - filled)}  {left}")

    def _learning(self, steps: list[dict[str, float]]) -> Table:
        table = Table.grid(padding=(0, 2))
        for title, key in (("reward", "reward/mean"), ("success", "episodes/success"), ("held-out", "eval/success")):
            values = [r[key] for r in self.log.history if key in r]
            table.add_row(title, f"{values[-1]:.3f}" if values else "–", Text(sparkline(values), style="green"))
        lag = steps[-1] if steps else {}
        table.add_row(
            "off-policy",
            f"lag {lag.get('lag/mean', 0.0):.1f} (max {lag.get('lag/max', 0):.0f})",
            f"ess {lag.get('policy/ess', 1.0):.2f}   largest ratio {lag.get('policy/ratio_max', 1.0):.1f}   "
            f"entropy {lag.get('policy/entropy', 0.0):.2f}",
        )
        return table

    def _machine(self, steps: list[dict[str, float]], link: LinkState) -> Table:
        last = steps[-1] if steps else {}
        doing, since = self.log.now
        table = Table.grid(padding=(0, 2))
        held = sum(w.held for w in link.workers)
        table.add_row(
            "generate",
            f"{last.get('gen/tokens_per_s', 0.0):,.0f} tokens/s",
            f"workers {len(link.workers)}   groups in play {held}, waiting {link.waiting}   restarts {self.restarts()}",
        )
        table.add_row(
            "train",
            f"{last.get('train/tokens_per_s', 0.0):,.0f} tokens/s",
            f"now: {doing} for {time.time() - since:.1f} s   last step: wait {last.get('time/wait_s', 0.0):.2f} s, "
            f"learn {last.get('time/learn_s', 0.0):.2f} s",
        )
        total = {key: sum(r.get(key, 0.0) for r in steps) for key in ("episodes/errored", "episodes/retries")}
        table.add_row(
            "faults",
            f"{total['episodes/errored']:.0f} errored",
            f"{total['episodes/retries']:.0f} retries   {last.get('groups/dropped_stale', 0):.0f} stale groups dropped",
        )
        if last.get("policy/ratio_max", 0.0) > RATIO_ALARM:
            table.add_row(Text("alarm", style="bold red"), f"ratio {last['policy/ratio_max']:.0f}", ALARM)
        return table


RATIO_ALARM = 30.0
ALARM = "off-policy ratios this large precede a collapse: lower --max-lag or a learning rate"


def plain_line(record: dict[str, float], steps: int) -> str:
    """One step, or one evaluation, as a line."""
    parts = [f"step {record['step']:.0f}/{steps}"]
    shown = {
        "reward/mean": "reward {:.3f}",
        "episodes/success": "success {:.3f}",
        "eval/success": "held-out {:.3f}",
        "lag/mean": "lag {:.1f}",
        "time/wait_s": "wait {:.2f} s",
        "time/learn_s": "learn {:.2f} s",
        "episodes/errored": "errored {:.0f}",
        "groups/dropped_stale": "dropped {:.0f}",
    }
    parts += [form.format(record[key]) for key, form in shown.items() if key in record]
    parts += [f"{r.env} {r.success:.3f} at step {r.step}" for r in suites(record)]
    if record.get("policy/ratio_max", 0.0) > RATIO_ALARM:
        parts.append(f"ALARM ratio {record['policy/ratio_max']:.0f}: {ALARM}")
    return "  ".join(parts)
