"""A suite beside training: real runs of a few steps, whose weight versions are evaluated by another process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.deterministic import make_model
from trainer import run
from trainer.evaluation.beside import Beside
from trainer.evaluation.store import read_played, read_records
from trainer.metrics import read_metrics
from trainer.page import curves


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def options(folder: Path, model: Path, suite: Path | str, *more: str) -> list[str]:
    return [
        *("--env", "tests.chaos.deterministic:Parrot", "--model", str(model)),
        *("--engine", "tests.chaos.deterministic:HashEngine", "--device", "cpu", "--threads", "1"),
        *("--steps", "2", "--groups-per-step", "2", "--group-size", "4", "--slots", "16"),
        *("--eval-every", "2", "--eval-tasks", "4", "--eval-suite", str(suite), "--plain"),
        *("--runs-dir", str(folder.parent), "--name", folder.name, *more),
    ]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_each_version_that_is_due_is_evaluated_on_its_own_weights(model, tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text('attempts = 2\n[[environments]]\nenv = "tests.chaos.deterministic:Parrot"\ntasks = 5\n')
    folder = tmp_path / "run"
    assert run.main(options(folder, model, suite)) == 0
    records = [r for r in read_metrics(folder) if "eval/mine/step" in r]
    assert [r["eval/mine/step"] for r in records] == [0, 2]
    played = {step: read_played(folder / "evals" / f"mine-step-{step}") for step in (0, 2)}
    assert [of.weight_version for of in played.values()] == [0, 2]
    assert len({of.weights for of in played.values()}) == 2
    for record in records:
        out = folder / "evals" / f"mine-step-{record['eval/mine/step']:.0f}"
        scores = [r.score for r in read_records(out).values()]
        assert record["eval/mine/success"] == pytest.approx(sum(scores) / 10)
        assert record["eval/mine/low"] < record["eval/mine/success"] < record["eval/mine/high"]
        assert json.loads((out / "result.json").read_text())["complete"]
        assert (out / "report.html").exists()
    assert not list((folder / "evals").glob("weights/*"))  # they are in the checkpoints, or gone
    drawn = [r for r in curves.held_out(read_metrics(folder), {}) if r.env == "suite mine"]
    assert [(r.step, r.tasks) for r in drawn] == [(0, 5), (2, 5)]
    assert {r["eval/step"] for r in read_metrics(folder) if "eval/step" in r} == {0, 2}  # held-out tasks too


def test_a_suite_that_does_not_exist_is_refused_before_training(model, tmp_path, capsys):
    assert run.main(options(tmp_path / "run", model, "heldot")) == 2
    assert "no suite 'heldot'; did you mean 'heldout'?" in capsys.readouterr().err


def test_an_evaluation_that_fails_says_so_and_training_goes_on(tmp_path):
    from trainer.config import OutputConfig, RunConfig

    config = RunConfig(output=OutputConfig(eval_suite=str(tmp_path / "gone.toml")))
    beside = Beside(tmp_path, config, lambda folder: None, stall_s=60.0)
    beside.start(3)
    beside.wait()
    assert beside.finished() == [{"eval/gone/step": 3.0, "eval/gone/failed": 1.0}]
    assert "cannot read the suite" in (tmp_path / "logs" / "eval.log").read_text()


def test_what_was_ended_goes_on_with_the_run(tmp_path):
    from trainer.config import OutputConfig, RunConfig

    config = RunConfig(output=OutputConfig(eval_suite=str(tmp_path / "gone.toml")))
    beside = Beside(tmp_path, config, lambda folder: None, stall_s=60.0)
    for version in (1, 2, 3):
        beside.start(version)
    process = beside._running[1]
    beside.close()
    assert process.returncode is not None
    # The run goes on from version 2, and has the figures of version 1.
    again = Beside(tmp_path, config, lambda folder: None, recorded=[1], begun_at=2, stall_s=60.0)
    again.wait()
    assert [f["eval/gone/step"] for f in again.finished()] == [2]
    assert not list((tmp_path / "evals" / "weights").iterdir())
