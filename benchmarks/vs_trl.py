"""How many samples a second, against TRL's GRPOTrainer?

    python -m benchmarks.vs_trl

Both train the same model with the same tokenizer on the same tasks in the same order, in float32 with AdamW, on all
cores of this machine: a task with one reply, and one with a tool and several turns (`benchmarks.peer.tasks`). A step is
the same number of samples in groups of the same size, and trains on each sample once, those of groups without
variance too. The learning rate is so small that both policies stay where they began, so replies stay equally long;
the measured lengths are in the result. A reply may have as many tokens on both sides; the peer counts all replies and
tool results of an episode against that number, here a reply at a time. The first steps are not counted, nor are those
at the end of an asynchronous run, for which nothing is generated any more.

The peer's virtual environment is made on the first run, in the cache (some minutes), as is the model (one minute).
Progress goes to stderr; the last line on stdout is one JSON object. Samples are episodes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

import envs
from benchmarks import training
from benchmarks.peer import model, tasks, venv
from benchmarks.peer.trl_side import Job, Result

WARM_UP = 5  # steps that are not counted
MAX_LAG = 2
# Of ours. With two and the trainer there is a thread more than cores: what one side leaves, the other takes. It serves
# where playing is the slower side.
WORKERS = {"recite": 1, "add": 2}
LEARNING_RATE = 1e-6
MAX_REPLY = {"recite": 32, "add": 128}  # tokens
RUN_S = 900.0  # more than any one run takes
KEYS = {"recite": "", "add": "multi_turn_"}


@dataclass(frozen=True)
class Options:
    """Samples a second against TRL's GRPOTrainer, at equal batch, group size and reply lengths."""

    steps: int = 48
    """Optimizer steps of each run of ours."""
    peer_steps: int = 20
    """Optimizer steps of each run of the peer, which take longer."""
    groups: int = 16
    """Tasks a step."""
    group_size: int = 8
    """Samples of each task."""
    rounds: int = 2
    """How often the runs alternate, against drift of the machine."""
    tasks: tuple[str, ...] = ("recite", "add")
    """Which tasks: recite has one turn, add has a tool and several."""
    sync: bool = True
    """Measure our training in turn (`--sync`) too."""
    threads: int = 0
    """Threads of either side, in all; 0 is one a core. At least 2: asynchronous training cannot do with one."""
    venv: Path | None = None
    """An existing virtual environment with trl, instead of the one that is made."""

    @property
    def all_threads(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))

    def check(self) -> None:
        """Raise `ValueError` for what would not be a measurement."""
        if unknown := set(self.tasks) - set(tasks.PROMPTS):
            raise ValueError(f"no task {', '.join(sorted(unknown))}; there are: {', '.join(tasks.PROMPTS)}")
        if self.peer_steps <= WARM_UP or self.steps <= WARM_UP + MAX_LAG + 1:
            raise ValueError(
                f"too few steps: the first {WARM_UP} are not counted, nor the last {MAX_LAG + 1} of --steps"
            )
        if self.all_threads < 2:
            raise ValueError("asynchronous training has two sides, with a thread or more each: --threads 2")
        if self.rounds < 1:
            raise ValueError(f"--rounds must be 1 or more, got {self.rounds}")


@dataclass
class Arm:
    """What the runs of one trainer on one task gave, a value a run."""

    per_s: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)  # sampled, an episode
    turns: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)

    def add(self, name: str, per_s: float, tokens: float, turns: float, reward: float) -> None:
        for values, value in zip(vars(self).values(), (per_s, tokens, turns, reward), strict=True):
            values.append(value)
        print(
            f"{name}: {per_s:.1f} samples/s, {tokens:.1f} tokens and {turns:.2f} turns a sample, reward {reward:.3f}",
            file=sys.stderr,
            flush=True,
        )

    def mean(self, what: str) -> float:
        return statistics.mean(getattr(self, what))


def run_ours(options: Options, task: str, start: Path, folder: Path, *, sync: bool) -> tuple[float, ...]:
    """(samples a second, sampled tokens and turns an episode, reward) over the counted steps."""
    arguments = ["--env", model.ENVIRONMENTS[task], "--model", str(start), "--steps", str(options.steps)]
    arguments += ["--groups-per-step", str(options.groups), "--group-size", str(options.group_size)]
    arguments += ["--slots", str(options.groups * options.group_size), "--max-reply-tokens", str(MAX_REPLY[task])]
    arguments += ["--optimizer", "adamw", "--lr", str(LEARNING_RATE), "--entropy-coef", "0", "--keep-zero-variance"]
    arguments += ["--eval-every", "0", "--checkpoint-every", "0"]
    workers = 1 if sync else WORKERS[task]
    arguments += ["--workers", str(workers), "--threads", str(max(options.all_threads, workers + 1))]
    arguments += ["--sync"] if sync else ["--max-lag", str(MAX_LAG)]
    run = training.train(folder, folder.parent / "cache", *arguments, timeout_s=RUN_S)
    # The last tickets are granted max_lag + 1 steps before the end: after those, learning has the machine for itself.
    steps = run.steps()[WARM_UP : None if sync else -(MAX_LAG + 1)]
    if errored := sum(s["episodes/errored"] for s in steps):
        raise RuntimeError(f"{errored:g} episodes of {task} errored: see {folder}")
    samples, seconds = (sum(s[key] for s in steps) for key in ("episodes/count", "time/step_s"))
    names = ("episodes/sampled_tokens", "episodes/turns", "reward/mean")
    return samples / seconds, *(statistics.mean(s[name] for s in steps) for name in names)


def run_peer(options: Options, task: str, start: Path, folder: Path, python: Path) -> tuple[Result, tuple[float, ...]]:
    """The peer's result, and what `run_ours` returns. Raises `RuntimeError` with its last words."""
    env = envs.make(model.ENVIRONMENTS[task])
    job = Job(
        task=task,
        model=str(start),
        rows=[env.make_task("train", i).payload["numbers"] for i in range(options.peer_steps * options.groups)],
        steps=options.peer_steps,
        groups=options.groups,
        group_size=options.group_size,
        max_completion=MAX_REPLY[task],
        tool_iterations=env.max_turns - 1,
        learning_rate=LEARNING_RATE,
        threads=options.all_threads,
    )
    folder.mkdir()
    source, target = folder / "job.json", folder / "result.json"
    source.write_text(json.dumps(asdict(job)))
    command = [str(python), "-m", "benchmarks.peer.trl_side", str(source), str(target)]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S
    )
    if done.returncode:
        raise RuntimeError(f"the peer's run of {task}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    result = Result(**json.loads(target.read_text()))
    ends = result.ends_s[WARM_UP - 1 :]
    per_s = (len(ends) - 1) * options.groups * options.group_size / (ends[-1] - ends[0])
    logs = result.logs[WARM_UP:]
    tokens, reward, calls = (
        statistics.mean(log.get(key, 0.0) for log in logs)
        for key in ("completions/mean_length", "reward", "tools/call_frequency")
    )
    return result, (per_s, tokens, 1 + calls, reward)  # a turn for every call, for replies hold one, and the last


def compare(options: Options, task: str, start: Path, out: Path, python: Path) -> tuple[dict[str, Arm], Result]:
    """Every arm's runs of one task, in turn."""
    arms = {name: Arm() for name in ("async", "peer", *(["sync"] if options.sync else []))}
    for number in range(options.rounds):
        for name, arm in arms.items():
            folder = out / f"{task}-{name}-{number}"
            if name == "peer":
                result, figures = run_peer(options, task, start, folder, python)
            else:
                figures = run_ours(options, task, start, folder, sync=name == "sync")
            arm.add(f"{task}, {name}", *figures)
    return arms, result


def figures_of(prefix: str, arms: dict[str, Arm]) -> dict[str, float | list[float]]:
    """The result's keys of one task."""
    ours, peer = arms["async"], arms["peer"]
    line: dict[str, float | list[float]] = {
        "ours_per_s": round(ours.mean("per_s"), 1),
        "peer_per_s": round(peer.mean("per_s"), 1),
        "ratio": round(ours.mean("per_s") / peer.mean("per_s"), 2),
    }
    if "sync" in arms:
        line["ours_sync_per_s"] = round(arms["sync"].mean("per_s"), 1)
    for name, arm in (("ours", ours), ("peer", peer)):
        line |= {f"{name}_{what}": round(arm.mean(what), 2) for what in ("tokens", "turns", "reward")}
        line[f"{name}_runs_per_s"] = [round(value, 1) for value in arm.per_s]
    return {prefix + key: value for key, value in line.items()}


def main() -> int:
    options = tyro.cli(Options, prog="python -m benchmarks.vs_trl", description=__doc__)
    try:
        options.check()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        python = venv.python(options.venv)
        start = model.build(lambda step, loss: print(f"model: step {step}, {loss:.2f}", file=sys.stderr, end="\r"))
        line: dict[str, object] = {"benchmark": "vs_trl"}
        with tempfile.TemporaryDirectory(prefix="slipstream-vs-trl-") as folder:
            for task in options.tasks:
                arms, result = compare(options, task, start, Path(folder), python)
                line |= figures_of(KEYS[task], arms)
    except (RuntimeError, subprocess.TimeoutExpired) as error:  # VenvError is a RuntimeError
        print(f"error: {error}", file=sys.stderr)
        return 1
    batch = options.groups * options.group_size
    line |= {"batch": batch, "group_size": options.group_size, "threads": options.all_threads}
    print(json.dumps(line | {"versions": result.versions}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
