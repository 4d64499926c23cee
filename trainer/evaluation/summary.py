"""From the episodes of an evaluation to its figures, in all, by environment, by part and by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

import msgspec

from envs.suite import Part
from envs.types import Status
from trainer.evaluation.statistics import (
    Difference,
    Estimate,
    difference,
    estimate,
    pass_at_k,
    pass_hat_k,
)
from trainer.evaluation.store import Faults, Played, Record

SOLVED = 1.0 - 1e-9  # the score from which an attempt counts as passed
GAP = "public_gap"  # the component that says how much of what the public test promised the hidden ones did not keep
ALL = "all"
Key = tuple[int, int]


class Row(msgspec.Struct, frozen=True):
    """The figures of the whole suite (`environment` is "all"), of an environment, of a part of it (`part`: the text it
    is made by) or of a kind of its tasks. `pass_at` and `pass_all` are pass@k and pass^k, by k.

    `strata` are the parts of the suite that it is about. `planned` episodes are those that the suite asks for (0 for a
    kind, of which nobody knows before). Errored ones are in no other figure. `labels` count the scored episodes that
    carry each. Means of turns, tool calls and tokens are an episode's.
    """

    environment: str
    part: str
    kind: str
    strata: list[str]
    planned: int
    scored: int
    errored: int
    truncated: int
    score: Estimate
    reward: Estimate
    components: dict[str, float]
    pass_at: dict[str, Estimate]
    pass_all: dict[str, Estimate]
    labelled: int
    labels: dict[str, int]
    public_gap: Estimate | None
    turns: float | None
    tool_calls: float | None
    prompt_tokens: float | None
    sampled_tokens: float | None

    @property
    def name(self) -> str:
        return " · ".join(filter(None, (self.part or self.environment, self.kind)))


class Spent(msgspec.Struct, frozen=True):
    """What it took. `usd` is None where no prices were given. `seconds` are the mean of an episode, by row."""

    prompt_tokens: int
    sampled_tokens: int
    usd: float | None
    seconds: dict[str, float]


class Against(msgspec.Struct, frozen=True):
    """The comparison with a baseline, whose own figures are `rows`: all tasks first, then by environment and part."""

    name: str
    model: str
    differences: dict[str, Difference]
    rows: list[Row]


class Result(msgspec.Struct, frozen=True):
    """`result.json`."""

    suite: str
    suite_hash: str
    environments: list[str]
    model: str
    weights: str
    weight_version: int
    attempts: int
    complete: bool
    rows: list[Row]
    errors: dict[str, int]
    spent: Spent
    faults: Faults
    baseline: Against | None = None

    @property
    def whole(self) -> Row:
        return self.rows[0]


def summarise(
    names: tuple[str, str],
    played: Played,
    records: Mapping[Key, Record],
    faults: Faults,
    prices: tuple[float, float] | None = None,
) -> Result:
    """`names` are the suite's and the model's; `prices` USD for a million tokens read and drawn."""
    ordered = [records[key] for key in sorted(records)]
    rows = _rows(played, ordered)
    prompt, sampled = (sum(getattr(r.episode, name) for r in ordered) for name in ("prompt_tokens", "sampled_tokens"))
    usd = None if prices is None else (prompt * prices[0] + sampled * prices[1]) / 1e6
    seconds = {row.name: fmean(r.episode.wall_s for r in of) for row, of in rows if of}
    errors = Counter(record.episode.error for record in ordered if record.score is None)
    return Result(
        suite=names[0],
        suite_hash=played.suite_hash,
        environments=played.environments,
        model=names[1],
        weights=played.weights,
        weight_version=played.weight_version,
        attempts=played.suite.attempts,
        complete=rows[0][0].scored == rows[0][0].planned,
        rows=[row for row, _ in rows],
        errors=dict(errors.most_common(20)),
        spent=Spent(prompt, sampled, usd, seconds),
        faults=faults,
    )


def compare(
    result: Result, records: Mapping[Key, Record], name: str, other: Result, others: Mapping[Key, Record]
) -> Against:
    """How much better `result` is than `other`, task by task, over the attempts that both have."""
    shared = {key for key in records.keys() & others.keys() if None not in (records[key].score, others[key].score)}
    mine, theirs = (task_means([of[key] for key in sorted(shared)], lambda r: r.score) for of in (records, others))
    pairs = [(stratum, value - theirs[task][1]) for task, (stratum, value) in mine.items() if task in theirs]
    bounded = all(0 <= r.score <= 1 for of in (records, others) for r in of.values() if r.score is not None)
    differences = {
        row.name: difference(by_stratum((s, v) for s, v in pairs if s in row.strata), bounded=bounded)
        for row in result.rows
        if not row.kind
    }
    return Against(name, other.model, differences, other.rows)


def _rows(played: Played, records: list[Record]) -> list[tuple[Row, list[Record]]]:
    """Each row with its records: everything, then each environment with its parts and kinds if there are several."""
    parts = played.suite.parts()
    plan: list[tuple[str, str, str, list[Part]]] = [(ALL, "", "", parts)]
    for environment in dict.fromkeys(part.env_id for part in parts):
        own = [part for part in parts if part.env_id == environment]
        plan.append((environment, "", "", own))
        if len(own) > 1:
            plan += [(environment, part.label, "", [part]) for part in own]
        labels = {part.label for part in own}
        kinds = sorted({r.episode.kind for r in records if r.part in labels and r.episode.kind})
        if len(kinds) > 1 and len(kinds) != len(own):
            plan += [(environment, "", kind, own) for kind in kinds]
    rows = []
    for environment, part, kind, of in plan:
        labels = {each.label for each in of}
        found = [r for r in records if r.part in labels and kind in ("", r.episode.kind)]
        planned = 0 if kind else sum(each.tasks for each in of) * played.suite.attempts
        rows.append((_row((environment, part, kind), sorted(labels), planned, found), found))
    return rows


def _row(names: tuple[str, str, str], strata: list[str], planned: int, records: list[Record]) -> Row:
    sound = [r for r in records if r.score is not None]
    passed: dict[int, tuple[str, int, int]] = {}  # task: (stratum, attempts, of these passed)
    for record in sound:
        stratum, attempts, good = passed.get(record.task, (record.part, 0, 0))
        passed[record.task] = stratum, attempts + 1, good + (record.score is not None and record.score >= SOLVED)
    components: dict[str, list[float]] = defaultdict(list)
    for record in sound:
        for name, value in record.episode.components.items():
            components[name].append(value)
    labels = Counter(label for r in sound for label in r.episode.labels)
    most = max((attempts for _, attempts, _ in passed.values()), default=0)

    def by_k(chance: Callable[[int, int, int], float]) -> dict[str, Estimate]:
        return {
            str(k): estimate(by_stratum((s, chance(n, c, k)) for s, n, c in passed.values() if n >= k))
            for k in _ks(most)
        }

    def average(value: Callable[[Record], float]) -> float | None:
        return fmean(map(value, sound)) if sound else None

    gap = estimate(by_stratum(task_means(sound, lambda r: r.episode.components.get(GAP)).values()))
    return Row(
        environment=names[0],
        part=names[1],
        kind=names[2],
        strata=strata,
        planned=planned,
        scored=len(sound),
        errored=len(records) - len(sound),
        truncated=sum(r.episode.status is Status.TRUNCATED for r in sound),
        score=estimate(by_stratum(task_means(sound, lambda r: r.score).values())),
        reward=estimate(by_stratum(task_means(sound, lambda r: r.episode.reward).values())),
        components={name: fmean(values) for name, values in sorted(components.items())},
        pass_at=by_k(pass_at_k),
        pass_all=by_k(pass_hat_k),
        labelled=sum(bool(r.episode.labels) for r in sound),
        labels=dict(sorted(labels.items())),
        public_gap=gap if gap.tasks else None,
        turns=average(lambda r: r.episode.turns),
        tool_calls=average(lambda r: sum(len(m.tool_calls) for m in r.episode.messages)),
        prompt_tokens=average(lambda r: r.episode.prompt_tokens),
        sampled_tokens=average(lambda r: r.episode.sampled_tokens),
    )


def _ks(attempts: int) -> list[int]:
    """1, 2, 4, 8, ... and the number of attempts itself."""
    return sorted({2**power for power in range(attempts.bit_length()) if 2**power <= attempts} | {attempts} - {0})


def task_means(records: Iterable[Record], value: Callable[[Record], float | None]) -> dict[int, tuple[str, float]]:
    """(stratum, mean over the attempts that have a value) of each task."""
    values: dict[int, list[float]] = defaultdict(list)
    strata: dict[int, str] = {}
    for record in records:
        if (found := value(record)) is not None:
            values[record.task].append(found)
            strata[record.task] = record.part
    return {task: (strata[task], fmean(of)) for task, of in sorted(values.items())}


def by_stratum(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for stratum, value in pairs:
        found[stratum].append(value)
    return found
