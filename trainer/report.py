"""What a person sees when a run ends: the curve as a picture, and three episodes to read."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from envs.types import Message
from rollout.wire import Episode, Group
from trainer.describe import score, scored
from trainer.ledger import read_groups
from trainer.metrics import read_metrics
from trainer.page.curves import Record, columns, held_out, training

COLOURS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
SHOWN_CHARS, SHOWN_LINES = 1600, 24  # of one message
POINTS = 400  # of one curve
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def draw_curve(folder: Path) -> Path | None:
    """Write `curve.png` into a run's folder: reward and success by step. None where there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = read_metrics(folder)
    steps = columns(training(records), POINTS)
    if not steps:
        return None
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 7), height_ratios=[2, 1], sharex=True)
    _lines(top, steps, {"reward/mean": "reward", "episodes/success": "success in training"}, alpha=0.7)
    _held_out(top, records)
    top.set_ylabel("reward, success")
    health = {"lag/mean": "lag (versions)", "policy/entropy": "entropy (nats)", "policy/ess": "effective sample share"}
    _lines(bottom, steps, health, alpha=1.0)
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    figure.suptitle(folder.resolve().name, parse_math=False)
    figure.tight_layout()
    path = folder / "curve.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _lines(axes: Any, steps: dict[str, list[float | None]], names: dict[str, str], *, alpha: float) -> None:
    for name, label in names.items():
        if name in steps:
            axes.plot(steps["step"], [float("nan") if v is None else v for v in steps[name]], label=label, alpha=alpha)


def _held_out(axes: Any, records: list[Record]) -> None:
    """Success with its 95% interval, a line an environment."""
    results = [r for r in held_out(records, {}) if not r.kind]
    for env in dict.fromkeys(r.env for r in results):
        of_env = [r for r in results if r.env == env]
        below = [r.success - (r.success if r.low is None else r.low) for r in of_env]
        above = [(r.success if r.high is None else r.high) - r.success for r in of_env]
        x, y = [r.step for r in of_env], [r.success for r in of_env]
        axes.errorbar(x, y, yerr=[below, above], marker="o", capsize=3, label=f"held-out success, {env}")


def show_episodes(folder: Path, console: Console, *, latest: int = 64) -> None:
    """Print the worst, the middle and the best episode of the newest groups, as messages."""
    groups = deque((g for g in read_groups(folder / "ledger") if g.ticket.purpose == "train"), maxlen=latest)
    for title, group, episode in pick(groups):
        console.print(panel(title, group, episode))


def panel(title: str, group: Group, episode: Episode) -> Panel:
    """One episode to read: its messages under a line that says what came of it."""
    reward = "errored" if episode.reward is None else f"reward {episode.reward:.2f}"
    parts = [title, f"{group.ticket.env} #{group.ticket.index}", episode.kind, reward]
    parts += [str(episode.status), f"{episode.turns} turns", *episode.labels]
    head = " · ".join(part for part in parts if part)
    return Panel(_table(episode.messages), title=escape(_shortened(head)), title_align="left")


def pick(groups: Iterable[Group]) -> list[tuple[str, Group, Episode]]:
    """The worst, the median and the best scored episode."""
    ranked = sorted(
        ((g, e) for g in groups for e in scored([g])), key=lambda pair: (score(pair[1]), pair[1].reward or 0.0)
    )
    if not ranked:
        return []
    places = {"worst": 0, "median": len(ranked) // 2, "best": len(ranked) - 1}
    return [(title, *ranked[place]) for title, place in places.items()]


def _table(messages: Iterable[Message]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for message in messages:
        table.add_row(Text(message.role, COLOURS[message.role]), Text(_shortened(_with_calls(message))))
    return table


def _with_calls(message: Message) -> str:
    """The message with the tool calls that its text does not spell out already."""
    calls = []
    for call in message.tool_calls:
        if not call.name or call.name not in message.content:
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            calls.append(f"→ {call.name}({arguments}) {call.error}".rstrip())
    return "\n".join([message.content, *calls] if message.content else calls)


def _shortened(text: str) -> str:
    """The text's beginning and end, so that three episodes fit on a few screens; its control characters spelled out.

    A model or a tool may write terminal escape sequences, and these must not reach the terminal.
    """
    text = CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    if len(text) > SHOWN_CHARS:
        half = SHOWN_CHARS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
    lines = text.splitlines()
    if len(lines) > SHOWN_LINES:
        half = SHOWN_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]
    return "\n".join(lines)
