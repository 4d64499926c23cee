"""Does held-out success rise, asynchronously as well as in turn?

    python -m benchmarks.learn --env code_exec --seeds 3

Every seed makes its own embedded model (whose making is part of `cpu_s`), trains it asynchronously, and, from the same
start and with the same number of samples, in turn (`--sync`). With `--uncorrected`, also with the correction off and a
lag of up to 8. Progress goes to stderr; the last line on stdout is one JSON object.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks import training
from benchmarks.training import Measured
from trainer.metrics import read_metrics

ARMS = {
    "async": [],
    "sync": ["--sync"],
    "uncorrected": ["--max-lag", "8", "--correction", "none"],
}


@dataclass(frozen=True)
class Options:
    """Learning curves over several seeds."""

    env: str = "code_exec"
    """The environment."""
    seeds: int = 3
    """How many seeds, from 0."""
    steps: int = 80
    """Optimizer steps."""
    tasks: int = 256
    """Held-out tasks an evaluation."""
    eval_every: int = 40
    """Steps between evaluations, which `cpu_s` includes."""
    max_lag: int = 4
    """Of the asynchronous run."""
    sync: bool = True
    """Train in turn too."""
    uncorrected: bool = False
    """Train without the off-policy correction at a lag of up to 8 too."""
    out: Path | None = None
    """Keep the runs here, with the picture; a second start goes on where the first was stopped."""
    options: tuple[str, ...] = ()
    """More options of trainer.run, for every arm."""


def run_arm(options: Options, out: Path, arm: str, seed: int) -> Measured:
    folder = out / f"{arm}-{seed}"
    record = out / f"{arm}-{seed}.json"
    if record.exists():
        saved = json.loads(record.read_text())
        return Measured(folder, read_metrics(folder), saved["cpu_s"], saved["wall_s"])
    arguments = ["--env", options.env, "--seed", str(seed), "--steps", str(options.steps)]
    arguments += ["--eval-tasks", str(options.tasks), "--eval-every", str(options.eval_every)]
    arguments += ["--max-lag", str(options.max_lag)]
    measured = training.train(folder, out / f"cache-{seed}", *arguments, *ARMS[arm], *options.options)
    record.write_text(json.dumps({"cpu_s": measured.cpu_s, "wall_s": measured.wall_s}))
    ends = [f"{e['eval/success']:.3f}" for e in measured.evaluations()]
    print(f"{arm} seed {seed}: {' '.join(ends)}  {measured.cpu_s:.0f} CPU-s", file=sys.stderr, flush=True)
    return measured


def interval(values: list[float]) -> list[float]:
    """Mean and half-width of the 95% interval (Student's t) over seeds."""
    quantile = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 1.96)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return [round(mean, 4), math.nan]
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [round(mean, 4), round(quantile * deviation / math.sqrt(len(values)), 4)]


def draw(path: Path, runs: dict[str, list[Measured]], env: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for number, (arm, measured) in enumerate(runs.items()):
        for seed, run in enumerate(measured):
            points = [(e["eval/step"], e["eval/success"]) for e in run.evaluations()]
            label = arm if seed == 0 else None
            axes.plot(*zip(*points, strict=True), marker="o", color=f"C{number}", alpha=0.8, label=label)
    axes.set(xlabel="step (16 tasks x 8 episodes)", ylabel="held-out success", title=env, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.learn")
    out = options.out or Path(tempfile.mkdtemp(prefix="slipstream-learn-"))
    out.mkdir(parents=True, exist_ok=True)
    arms = ["async"] + ["sync"] * options.sync + ["uncorrected"] * options.uncorrected
    runs: dict[str, list[Measured]] = {arm: [] for arm in arms}
    for seed in range(options.seeds):
        for arm in arms:
            runs[arm].append(run_arm(options, out, arm, seed))
    draw(out / "curves.png", runs, options.env)
    ends = {arm: [round(run.evaluations()[-1]["eval/success"], 4) for run in done] for arm, done in runs.items()}
    line = {
        "benchmark": "learn",
        "env": options.env,
        "start": [round(run.evaluations()[0]["eval/success"], 4) for run in runs["async"]],
        "end": ends["async"],
        "sync_end": ends.get("sync", []),
        "cpu_s": [round(run.cpu_s) for run in runs["async"]],
        "wall_s": [round(run.wall_s) for run in runs["async"]],
        "lag_max": [max(s.get("lag/max", 0) for s in run.steps()) for run in runs["async"]],
        "end_interval": interval(ends["async"]),
        "picture": str(out / "curves.png"),
    }
    if options.sync:
        line["sync_end_interval"] = interval(ends["sync"])
        line["async_minus_sync"] = interval([a - s for a, s in zip(ends["async"], ends["sync"], strict=True)])
    if options.uncorrected:
        line["uncorrected_end"] = ends["uncorrected"]
    print(json.dumps(line))


if __name__ == "__main__":
    main()
