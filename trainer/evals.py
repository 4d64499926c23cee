"""Success on held-out tasks, beside training: evaluation tickets go out on the same link as training ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection

from rollout.wire import Group, Ticket
from trainer.describe import describe, mean, score, scored
from trainer.evaluation.beside import Beside
from trainer.inbox import Inbox

PARTS = 4  # steps over which an evaluation's tasks are handed out
ROUND = 1 << 20  # more than the tasks of any evaluation: ticket ids are version * ROUND + task


class Evaluations:
    """Plays the same `tasks` held-out tasks before the first step, every `every` steps, and after the last.

    Those between run while training goes on, a part of their tasks a step, so that training does not have to wait for
    them all. They run on whatever weights the engines hold then: `eval/lag` says how far those moved meanwhile. The
    first and the last wait, so their weights are the run's first and last.

    `beside` plays a whole suite at the same versions, in a process of its own on frozen weights; only the end waits.
    """

    def __init__(
        self,
        inbox: Inbox,
        ticket_for: Callable[[int, int], Ticket],
        *,
        every: int,
        tasks: int,
        last: int,
        recorded: Collection[int] = (),
        beside: Beside | None = None,
    ) -> None:
        self.inbox = inbox
        self.ticket_for = ticket_for  # (id, task) -> Ticket
        self.every = every
        self.tasks = tasks
        self.last = last
        self.beside = beside
        self._begun = set(recorded)  # versions; of a resumed run, those whose figures it has already
        self._finished: list[dict[str, float]] = []
        self._groups: dict[int, list[Group]] = {}
        self._later: deque[Ticket] = deque()  # of evaluations that have begun

    @property
    def on(self) -> bool:
        return bool(self.every and self.tasks)

    def after(self, version: int) -> None:
        """Start an evaluation if one is due at `version`; the last is for `wait`."""
        due = bool(self.every) and version % self.every == 0 and version < self.last
        if self.on and due:
            self._start(version)
        if self.beside is not None and due:
            self.beside.start(version)
        self._ask(math.ceil(self.tasks / min(PARTS, self.every or PARTS)))

    def wait(self, version: int) -> None:
        """Finish every evaluation that is due at `version`, and those that a killed run began and did not record."""
        if self.beside is not None and self.every and (version % self.every == 0 or version == self.last):
            self.beside.start(version)
        if self.on:
            for each in range(0, version, self.every):
                if any(self.inbox.has(self.ticket_for(each * ROUND + i, i)) for i in range(self.tasks)):
                    self._start(each)
            if version % self.every == 0 or version == self.last:
                self._start(version)
            self._ask(len(self._later))
            self.inbox.serve_evaluations(lambda: sum(self.tasks - len(g) for g in self._groups.values()))
        if self.beside is not None and version == self.last:
            self.beside.wait()

    def finished(self) -> list[dict[str, float]]:
        """Figures of the evaluations that finished since the last call; `eval/step` is the version they began at."""
        finished, self._finished = self._finished, []
        return finished + (self.beside.finished() if self.beside is not None else [])

    def _start(self, version: int) -> None:
        if version in self._begun:
            return
        self._begun.add(version)
        self._groups[version] = []
        self._later.extend(self.ticket_for(version * ROUND + i, i) for i in range(self.tasks))

    def _ask(self, count: int) -> None:
        """Have the next `count` tasks played."""
        self.inbox.evaluate([self._later.popleft() for _ in range(min(count, len(self._later)))], self._on_group)

    def _on_group(self, group: Group) -> None:
        version = group.ticket.id // ROUND
        self._groups[version].append(group)
        if len(self._groups[version]) == self.tasks:
            figures = evaluation_figures(version, self._groups.pop(version))
            self._finished.append(figures | {"eval/step": float(version)})


def evaluation_figures(version: int, groups: list[Group]) -> dict[str, float]:
    """`eval/...` figures: success with its standard error, by environment and by kind. Errors are counted apart."""
    figures: dict[str, float] = {}
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        by_env.setdefault(group.ticket.env, []).append(group)
    for env, of_env in sorted(by_env.items()):
        values = [score(e) for e in scored(of_env)]
        if not values:
            continue
        average = mean(values)
        spread = math.sqrt(sum((v - average) ** 2 for v in values) / max(1, len(values) - 1))
        figures[f"eval/{env}/success"] = average
        figures[f"eval/{env}/stderr"] = spread / math.sqrt(len(values))
        figures[f"eval/{env}/reward"] = mean(e.reward for e in scored(of_env) if e.reward is not None)
        figures |= {
            f"eval/{key.removeprefix('success/')}/success": value
            for key, value in describe(of_env).items()
            if key.startswith("success/") and not key.endswith("/all")
        }
    newest = max((v for g in groups for e in g.episodes for v in e.versions()), default=version)
    figures["eval/success"] = mean(
        [figures[f"eval/{env}/success"] for env in by_env if f"eval/{env}/success" in figures]
    )
    figures["eval/lag"] = float(newest - version)
    figures["eval/errored"] = float(sum(len(g.episodes) for g in groups) - len(scored(groups)))
    return {name: value for name, value in figures.items() if not math.isnan(value)}
