"""What the page draws by step: the metrics as columns, and held-out success with its intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.describe import mean

Record = dict[str, float]
Scores = Mapping[tuple[int, str, str], list[float]]  # of (weight version, environment, kind); kind "" is all kinds

POINTS = 2000  # the most that one curve has on the page
Z = 1.959964  # standard errors on either side of a 95% interval
AGREES = 2e-6  # metrics.jsonl is rounded to 6 digits


@dataclass(frozen=True)
class HeldOut:
    """Success of one weight version on the held-out tasks of one environment, or of one kind of them.

    `kind` is "" for the whole environment. The 95% interval is None where the number of tasks is not known.
    """

    env: str
    kind: str
    step: int
    success: float
    low: float | None
    high: float | None
    tasks: int | None


def training(records: Iterable[Record]) -> list[Record]:
    """The records of training steps, without those that only carry an evaluation's result."""
    return [r for r in records if "time/step_s" in r]


def columns(records: Sequence[Record], points: int = POINTS) -> dict[str, list[float | None]]:
    """Every figure that any record has, as a list as long as the others, None where a record lacks it or it is not
    a finite number.

    More than `points` records are thinned: each run of neighbours becomes one, which has the largest of the figures
    that end in "max", the least of those that end in "min", the last of the counters, and the mean of the others.
    """
    size = max(1, math.ceil(len(records) / points))
    buckets = [records[i : i + size] for i in range(0, len(records), size)]
    names = sorted({name for r in records for name in r})
    return {
        name: [_one(name, [r[name] for r in bucket if math.isfinite(r.get(name, math.nan))]) for bucket in buckets]
        for name in names
    }


def _one(name: str, values: list[float]) -> float | None:
    if not values:
        return None
    if name in ("step", "time/elapsed_s") or name.startswith(("groups/dropped", "link/")):
        return values[-1]
    value = max(values) if name.endswith("max") else min(values) if name.endswith("min") else mean(values)
    return float(f"{value:.6g}")


def held_out(records: Iterable[Record], scores: Scores) -> list[HeldOut]:
    """Every evaluation in the metrics, by environment and by kind, and those of suites.

    `scores` are those of the evaluations' episodes. Where their mean is the recorded figure, the interval is worked
    out from them; elsewhere the recorded standard error gives that of the environment, and kinds have none.
    """
    results = []
    for record in records:
        results += suites(record)
        if "eval/step" not in record:
            continue
        step = int(record["eval/step"])
        for env in environments(record):
            success = record[f"eval/{env}/success"]
            if _agrees(scores.get((step, env, "")), success):
                results.append(_from_scores(env, "", step, scores))
            else:
                spread = Z * record[f"eval/{env}/stderr"]
                results.append(HeldOut(env, "", step, success, max(0.0, success - spread), success + spread, None))
            for kind in _kinds(record, env):
                success = record[f"eval/{env}/{kind}/success"]
                if _agrees(scores.get((step, env, kind)), success):
                    results.append(_from_scores(env, kind, step, scores))
                else:
                    results.append(HeldOut(env, kind, step, success, None, None, None))
    return results


def suites(record: Record) -> list[HeldOut]:
    """The result of a suite that was played beside training, where the record is one's."""
    found = []
    for name in record:
        head = name.removesuffix("/step")
        if name.startswith("eval/") and name not in (head, "eval/step") and f"{head}/success" in record:
            low, high, tasks = (record.get(f"{head}/{part}") for part in ("low", "high", "tasks"))
            suite, step = f"suite {head.removeprefix('eval/')}", int(record[name])
            success = record[f"{head}/success"]
            found.append(HeldOut(suite, "", step, success, low, high, None if tasks is None else int(tasks)))
    return found


def environments(record: Record) -> list[str]:
    """The environments that an evaluation's record has figures of; their names may hold slashes."""
    return [
        name.removeprefix("eval/").removesuffix("/stderr")
        for name in record
        if name.startswith("eval/") and name.endswith("/stderr")
    ]


def _kinds(record: Record, env: str) -> list[str]:
    pattern = re.compile(f"eval/{re.escape(env)}/(.+)/success")
    return [found[1] for name in record if (found := pattern.fullmatch(name))]


def _agrees(values: list[float] | None, recorded: float) -> bool:
    return bool(values) and abs(mean(values or ()) - recorded) < AGREES


def _from_scores(env: str, kind: str, step: int, scores: Scores) -> HeldOut:
    values = scores[step, env, kind]
    low, high = interval(values)
    return HeldOut(env, kind, step, mean(values), low, high, len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean: Wilson's for values that are 0 or 1, else mean ± 1.96 standard errors."""
    n, average = len(values), mean(values)
    if all(v in (0.0, 1.0) for v in values):
        middle = (average + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z * math.sqrt(average * (1 - average) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
        return max(0.0, middle - half), min(1.0, middle + half)
    half = Z * math.sqrt(sum((v - average) ** 2 for v in values) / max(1, n - 1) / n)
    return average - half, average + half


def evaluation_points(records: Sequence[Record], scores: Scores) -> list[dict[str, Any]]:
    """`held_out` as the page reads it, each with the seconds at which its weight version was made."""
    made = {int(r["step"]): r["time/elapsed_s"] for r in training(records)}
    return [
        {
            "env": r.env,
            "kind": r.kind,
            "step": r.step,
            "elapsed_s": made.get(r.step, 0.0),
            "success": r.success,
            "low": r.low,
            "high": r.high,
            "tasks": r.tasks,
        }
        for r in held_out(records, scores)
    ]
