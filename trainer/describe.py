"""Figures over the episodes of one step or one evaluation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from envs.types import Status
from rollout.wire import Episode, Group

SUCCESS = "success"  # the component that says whether a task was solved, where an environment has one


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def score(episode: Episode) -> float:
    """How far the task was solved: the `success` component, or the reward where there is none."""
    assert episode.reward is not None
    return episode.components.get(SUCCESS, episode.reward)


def scored(groups: Iterable[Group]) -> list[Episode]:
    """Episodes with a reward; errored ones are in no mean."""
    return [e for g in groups for e in g.episodes if e.status is not Status.ERRORED]


def describe(groups: Sequence[Group]) -> dict[str, float]:
    """`reward/...`, `episodes/...` and `success/<environment>/<kind>` of a step's groups."""
    episodes = scored(groups)
    everyone = [e for g in groups for e in g.episodes]
    figures = {
        "reward/mean": mean(e.reward for e in episodes if e.reward is not None),
        "episodes/success": mean(score(e) for e in episodes),
        "episodes/count": float(len(everyone)),
        "episodes/errored": float(len(everyone) - len(episodes)),
        "episodes/retries": float(sum(e.retries for e in everyone)),
        "episodes/truncated": float(sum(e.status is Status.TRUNCATED for e in episodes)),
        "episodes/labelled": float(sum(bool(e.labels) for e in episodes)),
        "episodes/turns": mean(e.turns for e in episodes),
        "episodes/sampled_tokens": mean(sum(sum(s.sampled) for s in e.sequences) for e in episodes),
    }
    components: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for episode in scored([group]):
            for name, value in episode.components.items():
                components[f"reward/{name}"].append(value)
            kinds[f"success/{group.ticket.env}/{episode.kind or 'all'}"].append(score(episode))
    figures = {name: mean(values) for name, values in sorted((components | kinds).items())} | figures
    return {name: value for name, value in figures.items() if not math.isnan(value)}
