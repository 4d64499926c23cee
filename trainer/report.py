"""What a person sees when a run ends: the curve as a picture, and three episodes to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from envs.types import Message
from rollout.wire import Episode, Group
from trainer.describe import score, scored
from trainer.ledger import read_groups
from trainer.metrics import read_metrics

COLOURS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def draw_curve(folder: Path) -> Path | None:
    """Write `curve.png` into a run's folder: reward and success by step. None where there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = read_metrics(folder)
    training = [r for r in records if "reward/mean" in r]
    if not training:
        return None
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 7), height_ratios=[2, 1], sharex=True)
    steps = [r["step"] for r in training]
    for key, label in (("reward/mean", "reward"), ("episodes/success", "success in training")):
        top.plot(steps, [r.get(key, float("nan")) for r in training], label=label, alpha=0.7)
    evals = [r for r in records if "eval/success" in r]
    for name in sorted({k for r in evals for k in r if k.count("/") == 2 and k.endswith("/success")} & _envs(evals)):
        points = [
            (r["eval/step"], r[name], r.get(name.replace("/success", "/stderr"), 0.0)) for r in evals if name in r
        ]
        x, y, err = zip(*points, strict=True)
        label = f"held-out success, {name.split('/')[1]}"
        top.errorbar(x, y, yerr=[1.96 * e for e in err], marker="o", capsize=3, label=label)
    top.set_ylabel("reward, success")
    top.grid(alpha=0.3)
    top.legend()
    for key, label in (
        ("lag/mean", "lag (versions)"),
        ("policy/entropy", "entropy (nats)"),
        ("policy/ess", "effective sample share"),
    ):
        bottom.plot(steps, [r.get(key, float("nan")) for r in training], label=label)
    bottom.set_xlabel("step")
    bottom.grid(alpha=0.3)
    bottom.legend()
    figure.suptitle(folder.name)
    figure.tight_layout()
    path = folder / "curve.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _envs(evals: list[dict[str, float]]) -> set[str]:
    """The keys `eval/<environment>/success`, told from `eval/<environment>/<kind>/success` by their standard error."""
    return {k.replace("/stderr", "/success") for r in evals for k in r if k.endswith("/stderr")}


def show_episodes(folder: Path, console: Console, *, latest: int = 64) -> None:
    """Print the worst, the middle and the best episode of the newest groups, as messages."""
    groups = [g for g in read_groups(folder / "ledger") if g.ticket.purpose == "train"][-latest:]
    for title, group, episode in pick(groups):
        head = f"{title} · {group.ticket.env} #{group.ticket.index} · {episode.kind} · reward {episode.reward:.2f}"
        console.print(Panel(_text(episode.messages), title=escape(head), title_align="left"))


def pick(groups: Iterable[Group]) -> list[tuple[str, Group, Episode]]:
    """The worst, the median and the best scored episode."""
    ranked = sorted(
        ((g, e) for g in groups for e in scored([g])), key=lambda pair: (score(pair[1]), pair[1].reward or 0.0)
    )
    if not ranked:
        return []
    places = {"worst": 0, "median": len(ranked) // 2, "best": len(ranked) - 1}
    return [(title, *ranked[place]) for title, place in places.items()]


def _text(messages: Iterable[Message]) -> str:
    return "\n".join(f"[{COLOURS[m.role]}]{m.role:>9}[/] {escape(m.content)}" for m in messages)
