"""How much faster is asynchronous training than training in turn, with the same threads?

    python -m benchmarks.overlap --env code_exec

Three runs from one start: asynchronous, in turn with the same threads, and in turn with one thread, whose generation
and learning times are those of each side alone on the thread that it has in the asynchronous run. `efficiency` is the
slower side alone over the asynchronous step: 1 is perfect overlap. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks import training
from benchmarks.training import Measured


@dataclass(frozen=True)
class Options:
    """Episodes a second, asynchronous against in turn."""

    env: str = "code_exec"
    """The environment."""
    steps: int = 30
    """Optimizer steps a run; the first five are not counted."""
    rounds: int = 2
    """How often the runs alternate, against drift of the machine."""
    options: tuple[str, ...] = ()
    """More options of trainer.run, for every run."""


WARM_UP = 5


def medians(run: Measured) -> dict[str, float]:
    steps = run.steps()[WARM_UP:]
    keys = ("time/step_s", "time/wait_s", "time/learn_s", "time/publish_s")
    return {key: statistics.median(s.get(key, 0.0) for s in steps) for key in keys}


def rate(run: Measured) -> float:
    """Episodes a second over the counted steps."""
    steps = run.steps()[WARM_UP:]
    return sum(s["episodes/count"] for s in steps) / sum(s["time/step_s"] for s in steps)


def busy(run: Measured) -> dict[str, float]:
    """The share of the counted steps' time in which each side worked, and both at once."""
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    learns = [(e["start"], e["end"]) for e in events if e["process"] == "trainer" and e["what"] == "learn"]
    generates = [(e["start"], e["end"]) for e in events if e["process"] != "trainer" and e["what"] == "generate"]
    first, last = learns[WARM_UP][0], learns[-1][1]
    marks = sorted(
        [(t, side, d) for side, spans in enumerate((learns, generates)) for s, e in spans for t, d in ((s, 1), (e, -1))]
    )
    depth, before = [0, 0], first
    totals = {"learn": 0.0, "generate": 0.0, "both": 0.0}
    for time, side, change in marks:
        span = max(0.0, min(time, last) - max(before, first))
        totals["learn"] += span * (depth[0] > 0)
        totals["generate"] += span * (depth[1] > 0)
        totals["both"] += span * (min(depth) > 0)
        depth[side] += change
        before = time
    return {side: round(total / (last - first), 3) for side, total in totals.items()}


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.overlap")
    threads = len(os.sched_getaffinity(0))
    arms = {"async": ["--max-lag", "2"], "sync": ["--sync"], "alone": ["--sync", "--threads", "1"]}
    with tempfile.TemporaryDirectory(prefix="slipstream-overlap-") as folder:
        out = Path(folder)
        runs: dict[str, list[Measured]] = {arm: [] for arm in arms}
        for number in range(options.rounds):
            for arm, extra in arms.items():
                arguments = ["--env", options.env, "--steps", str(options.steps), "--eval-every", "0", *extra]
                run = training.train(out / f"{arm}-{number}", out / "cache", *arguments, *options.options)
                runs[arm].append(run)
                print(f"{arm}: {rate(run):.1f} episodes/s, {medians(run)}", file=sys.stderr, flush=True)
        rates = {arm: statistics.mean(rate(run) for run in done) for arm, done in runs.items()}
        alone = [medians(run) for run in runs["alone"]]
        step_s = statistics.mean(medians(run)["time/step_s"] for run in runs["async"])
        sides = {
            side: statistics.mean(m[f"time/{key}_s"] for m in alone)
            for side, key in (("generate", "wait"), ("learn", "learn"))
        }
        line = {
            "benchmark": "overlap",
            "env": options.env,
            "threads": threads,
            "async_over_sync": round(rates["async"] / rates["sync"], 3),
            "efficiency": round(max(sides.values()) / step_s, 3),
            "sync_stall_s": round(statistics.mean(medians(run)["time/publish_s"] for run in runs["async"]), 4),
            "async_per_s": round(rates["async"], 1),
            "sync_per_s": round(rates["sync"], 1),
            "alone_s": {side: round(seconds, 3) for side, seconds in sides.items()},
            "async_step_s": round(step_s, 3),
            "busy": busy(runs["async"][-1]),
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
