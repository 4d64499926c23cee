"""Whole runs whose processes are killed: nothing is lost, nothing is trained twice, and resuming is exact."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.chaos.deterministic import make_model
from trainer import run, scratch
from trainer.ledger import read_groups, read_steps
from trainer.metrics import read_metrics

STEPS, GROUPS = 12, 3
FOREVER = 90.0
STARTED: list[int] = []  # process ids of the trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# Processes start from a server that has imported torch already, so that a run starts within a second.
forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["trainer.session", "tests.chaos.deterministic"])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def options(folder: Path, model: Path, *more: str) -> list[str]:
    return [
        *("--env", "tests.chaos.deterministic:Parrot", "--model", str(model)),
        *("--engine", "tests.chaos.deterministic:HashEngine", "--device", "cpu", "--threads", "1"),
        *("--steps", str(STEPS), "--groups-per-step", str(GROUPS), "--group-size", "4", "--slots", "16"),
        *("--checkpoint-every", "4", "--eval-every", "6", "--eval-tasks", "4", "--plain"),
        *("--runs-dir", str(folder.parent), "--name", folder.name, *more),
    ]


def _main(arguments: list[str], output: str) -> None:
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os._exit(run.main(arguments))


def start(arguments: list[str], output: Path | str = os.devnull) -> multiprocessing.Process:
    process = forkserver.Process(target=_main, args=(arguments, str(output)))
    process.start()
    STARTED.append(process.pid)
    return process


def finish(process: multiprocessing.Process) -> int:
    process.join(FOREVER)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def workers_of(process: multiprocessing.Process) -> list[psutil.Process]:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return [c for c in children if "rollout.worker" in " ".join(c.cmdline())]
    except psutil.NoSuchProcess:
        return []


def weights(folder: Path):
    return load_file(folder / "checkpoints" / f"step-{STEPS}" / "model.safetensors")


def trained(folder: Path) -> list[int]:
    return sorted(key[1] for keys in read_steps(folder / "ledger").values() for key in keys)


def figures_of(folder: Path) -> tuple[list[dict[str, float]], dict[float, float]]:
    """What training came to, by step, and the evaluations, by the version that they began at."""
    kept = ("step", "reward/mean", "train/loss", "policy/kl_mu_pi", "train/tokens")
    records = read_metrics(folder)
    steps = [{key: r[key] for key in kept if key in r} for r in records if "reward/mean" in r]
    return steps, {r["eval/step"]: r["eval/success"] for r in records if "eval/success" in r}


def ledger_size(folder: Path) -> int:
    path = folder / "ledger" / "groups.log"
    return path.stat().st_size if path.exists() else 0


def leftovers() -> list[str]:
    """Workers and folders in shared memory of the runs that were started here."""
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    workers = [c for c in commands if any(f"--parent {pid} " in c for pid in STARTED)]
    return workers + [str(f) for pid in STARTED for f in scratch.SHARED_MEMORY.glob(f"{scratch.PREFIX}{pid}-*")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What a test started is gone within seconds of its end."""
    yield
    deadline = time.monotonic() + 15
    while left := leftovers():
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert finish(start(options(folder, model, "--sync"))) == 0
    return folder


def test_an_uninterrupted_run_trains_every_task_once(uninterrupted, model):
    assert trained(uninterrupted) == list(range(STEPS * GROUPS))
    records = read_metrics(uninterrupted)
    assert [r["step"] for r in records if "reward/mean" in r] == list(range(1, STEPS + 1))
    assert {r["eval/step"] for r in records if "eval/success" in r} == {0, 6, STEPS}
    assert (uninterrupted / "curve.png").stat().st_size > 1000


def test_killing_the_trainer_at_ten_random_moments_changes_nothing(uninterrupted, model, tmp_path):
    """SIGKILL, resume, SIGKILL, ...: the same weights to the bit, the same metrics, every task trained once."""
    folder = tmp_path / "killed"
    draw = random.Random(0)
    process = start(options(folder, model, "--sync"))
    kills = 0
    while kills < 10 and process.exitcode is None:
        process.join(draw.uniform(1.0, 7.0))
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
            arguments = (
                ["--resume", str(folder)] if (folder / "config.toml").exists() else options(folder, model, "--sync")
            )
            process = start(arguments)
    assert finish(process) == 0
    assert kills >= 3, "the run ended before it was killed often enough to mean anything"
    assert trained(folder) == list(range(STEPS * GROUPS))
    for name, tensor in weights(uninterrupted).items():
        assert tensor.equal(weights(folder)[name]), name
    steps, evaluations = zip(*(figures_of(f) for f in (folder, uninterrupted)), strict=True)
    assert steps[0] == steps[1]
    assert evaluations[0] == evaluations[1]


def test_killing_the_worker_at_five_random_moments_loses_nothing(model, tmp_path):
    """With both sides overlapping: every task is trained exactly once, and no group is in the ledger twice."""
    folder = tmp_path / "workers"
    draw = random.Random(1)
    process = start(options(folder, model, "--steps", "60", "--max-lag", "4", "--eval-every", "0"))
    kills = 0
    while kills < 5 and process.exitcode is None:
        size = ledger_size(folder)
        while process.exitcode is None and ledger_size(folder) == size:
            process.join(0.02)
        process.join(draw.uniform(0.0, 0.5))
        for worker in workers_of(process)[:1]:
            worker.send_signal(signal.SIGKILL)
            kills += 1
    assert finish(process) == 0
    assert kills >= 3
    assert trained(folder) == list(range(60 * GROUPS))
    keys = [g.ticket.key for g in read_groups(folder / "ledger")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_and_says_how_to_go_on(model, tmp_path, number):
    folder = tmp_path / "interrupted"
    process = start(options(folder, model, "--steps", "2000"), tmp_path / "output")
    deadline = time.monotonic() + FOREVER
    while len(read_metrics(folder)) < 2:
        assert time.monotonic() < deadline
        assert process.exitcode is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert finish(process) == run.INTERRUPTED
    assert f"--resume {folder}" in (tmp_path / "output").read_text()


def test_a_worker_that_cannot_start_ends_the_run_with_its_last_words(model, tmp_path):
    folder = tmp_path / "broken"
    arguments = options(folder, model)
    arguments[arguments.index("--engine") + 1] = "tests.chaos.deterministic:NoSuchEngine"
    assert finish(start(arguments, tmp_path / "output")) == 1
    shown = (tmp_path / "output").read_text()
    assert "NoSuchEngine" in shown
    assert "cannot start" in shown


def test_events_tell_what_both_sides_did(uninterrupted):
    events = [json.loads(line) for line in (uninterrupted / "events.jsonl").read_text().splitlines()]
    done = {(e["process"].split("-")[0], e["what"]) for e in events}
    assert {("trainer", "wait"), ("trainer", "learn"), ("trainer", "publish"), ("worker", "generate")} <= done
    assert all(e["end"] >= e["start"] for e in events)
