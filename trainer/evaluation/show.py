"""What an evaluation prints: a table while it plays, the figures at its end, and episodes to read."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from rollout.wire import Group
from trainer.evaluation.config import Order
from trainer.evaluation.statistics import Estimate, estimate
from trainer.evaluation.store import Record
from trainer.evaluation.summary import ALL, Against, Key, Result, Row, by_stratum, task_means
from trainer.report import panel

PLAIN_EVERY_S = 10.0


class Progress:
    """The live table; `with Progress(...)` shows it until the block ends, or prints a line now and then where `plain`.

    `planned` is the number of episodes by part; `records` is read again each time.
    """

    def __init__(
        self, title: str, planned: Mapping[str, int], records: Mapping[Key, Record], console: Console, *, plain: bool
    ) -> None:
        self.title, self.planned, self.records, self.console, self.plain = title, planned, records, console, plain
        self._began, self._first = time.monotonic(), len(records)
        self._said = self._began
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Progress:
        if not self.plain:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.plain:
            self._live.stop()

    def tick(self) -> None:
        """Something was played."""
        done, planned = len(self.records), sum(self.planned.values())
        if self.plain and (time.monotonic() - self._said > PLAIN_EVERY_S or done == planned):
            self._said = time.monotonic()
            score = interval(_estimate(list(self.records.values())))
            self.console.print(f"{done}/{planned} episodes  score {score}  {self._speed()}", soft_wrap=True)

    def render(self) -> Table:
        table = _table(self.title)
        for name in ("part", "played", "", "score, 95% interval", "errored", "labelled"):
            table.add_column(name, justify="right" if name in ("played", "errored", "labelled") else "left")
        records = list(self.records.values())  # the player adds to them meanwhile
        by_part = by_stratum_of(records)
        for name, planned in self.planned.items():
            table.add_row(escape(name), *self._cells(by_part.get(name, []), planned))
        if len(self.planned) > 1:
            table.add_row(ALL, *self._cells(records, sum(self.planned.values())), style="bold")
        table.caption = self._speed()
        table.caption_justify = "left"
        return table

    def _cells(self, records: list[Record], planned: int) -> tuple[str | ProgressBar, ...]:
        errored = sum(r.score is None for r in records)
        labelled = sum(bool(r.episode.labels) for r in records)
        progress = ProgressBar(total=planned, completed=len(records), width=24)
        counts = (str(errored or "–"), str(labelled or "–"))
        return f"{len(records)}/{planned}", progress, interval(_estimate(records)), *counts

    def _speed(self) -> str:
        done = len(self.records) - self._first
        left = sum(self.planned.values()) - len(self.records)
        per_s = done / max(1e-9, time.monotonic() - self._began)
        return f"{per_s:.1f} episodes/s" + (f", {left / per_s:.0f} s left" if done and left > 0 else "")


def by_stratum_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.part, []).append(record)
    return found


def _estimate(records: Sequence[Record]) -> Estimate:
    return estimate(by_stratum(task_means(records, lambda r: r.score).values()))


def interval(value: Estimate | None, digits: int = 3) -> str:
    """The mean and its 95% interval."""
    if value is None or value.mean is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.mean:.{digits}f} (interval not known)"
    return f"{value.mean:.{digits}f} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def print_result(result: Result, console: Console) -> None:
    """The figures of a whole evaluation."""
    console.print(_figures(result))
    for line in lines_of(result):
        console.print(escape(line), soft_wrap=True, highlight=False)
    if result.baseline is not None:
        console.print(_comparison(result.baseline))


def _figures(result: Result) -> Table:
    weights = f" (step {result.weight_version})" if result.weight_version else ""
    table = _table(f"{result.suite} · {result.model}{weights}")
    most = max((int(k) for k in result.whole.pass_at), default=1)
    several = [f"pass@{most}", f"pass^{most}"] if most > 1 else []
    table.add_column("", no_wrap=True)
    table.add_column("score, 95% interval", no_wrap=True)
    for name in (*several, "tasks", "errored"):
        table.add_column(name, justify="right")
    for row in result.rows:
        cells = [interval(row.score)]
        if several:
            cells += [_mean(row.pass_at.get(str(most))), _mean(row.pass_all.get(str(most)))]
        cells += [str(row.score.tasks), str(row.errored or "–")]
        indent = "" if row.environment == ALL else "    " if row.part or row.kind else "  "
        table.add_row(escape(indent + (row.kind or row.name)), *cells, style="bold" if row.environment == ALL else "")
    return table


def _table(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))


def lines_of(result: Result) -> list[str]:
    """What must not be overlooked, in plain sentences."""
    whole = result.whole
    lines = [cheating(whole)]
    if not result.complete:
        lines.append(
            f"not complete: {whole.planned - whole.scored} of {whole.planned} episodes are missing or errored, and are "
            "in no figure"
        )
    lines += [f"  {count} × {error}" for error, count in result.errors.items()]
    if result.faults:
        lines.append("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(result.faults.items())))
    spent = result.spent
    if spent.prompt_tokens or spent.sampled_tokens:
        cost = f", {spent.usd:.4f} USD" if spent.usd is not None else ""
        each = f"; an episode: {_number(whole.turns)} turns, {_number(whole.tool_calls)} tool calls, "
        each += f"{_number(whole.sampled_tokens)} tokens, {_number(spent.seconds.get(ALL))} s"
        lines.append(f"tokens: {spent.prompt_tokens:,} read, {spent.sampled_tokens:,} sampled{cost}{each}")
    if result.baseline is not None:
        against = result.baseline
        lines.append(f"against {against.name}: {against.differences[ALL].sentence}")
        if whole.labelled or against.rows[0].labelled or whole.public_gap is not None:
            lines.append(f"  the baseline's {cheating(against.rows[0])}")
    return lines


def cheating(row: Row) -> str:
    """Hack labels and the public/hidden gap: a rising score with these rising too is no better agent."""
    text = f"hack labels: {row.labelled} of {row.scored} episodes"
    if row.labels:
        text += f" ({', '.join(f'{name} {count}' for name, count in row.labels.items())})"
    if row.public_gap is not None:
        text += f"; public/hidden gap: {interval(row.public_gap)}"
    return text


def _comparison(against: Against) -> Table:
    table = _table(f"against {against.name}")
    table.add_column("")
    table.add_column("tasks", justify="right")
    table.add_column("difference")
    for name, found in against.differences.items():
        table.add_row(escape(name), str(found.tasks), found.sentence, style="bold" if name == ALL else "")
    return table


def print_episodes(groups: Sequence[Group], count: int, order: Order, console: Console) -> None:
    """`count` episodes to read: the worst or the best by score, or any."""
    from trainer.describe import score

    found = [(group, episode) for group in groups for episode in group.episodes if episode.reward is not None]
    if order == "random":
        chosen = random.sample(found, min(count, len(found)))
    else:
        ranked = sorted(found, key=lambda pair: (score(pair[1]), pair[1].reward or 0.0), reverse=order == "best")
        chosen = ranked[:count]
    for number, (group, episode) in enumerate(chosen, 1):
        console.print(panel(f"{order} {number} of {count}", group, episode))


def _mean(value: Estimate | None) -> str:
    return "–" if value is None or value.mean is None else f"{value.mean:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
