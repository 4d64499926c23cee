"""metrics.jsonl, the sinks, and what a resumed run keeps."""

from __future__ import annotations

import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollout.link import LinkState, WorkerState
from rollout.wire import Span
from trainer.config import OutputConfig, RunConfig
from trainer.metrics import Metrics, open_sinks, read_metrics


class Link:
    """A link with one worker that has drawn `drawn` tokens."""

    def __init__(self):
        self.drawn = 0.0
        self.spans = [("worker-0", Span("generate", 1.0, 2.0))]

    def state(self):
        counters = {"sampled_tokens": self.drawn}
        return LinkState(workers=(WorkerState("worker-0", 1, 8, 0, 3, 0.1, counters),), out=5)

    def take_spans(self):
        spans, self.spans = self.spans, []
        return spans


def config(*log) -> RunConfig:
    return RunConfig(output=OutputConfig(log=log))


def test_a_step_is_one_object_with_times_and_rates(tmp_path, monkeypatch):
    link = Link()
    log = Metrics(tmp_path, link, [])
    ticks = iter([100.0, 102.5])
    monkeypatch.setattr("trainer.metrics.time.time", lambda: next(ticks))
    with log.timed("learn"):
        link.drawn = 100.0
    monkeypatch.undo()
    log.step(1, {"reward/mean": 0.5, "train/tokens_in": 10.0})
    log.evaluations(1, [])
    log.close()
    [record] = read_metrics(tmp_path)
    assert (record["step"], record["reward/mean"], record["groups/out"]) == (1, 0.5, 5)
    assert record["gen/tokens_per_s"] > 0
    assert (record["time/learn_s"], record["train/tokens_per_s"]) == (2.5, 4.0)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(e["process"], e["what"]) for e in events] == [("trainer", "learn"), ("worker-0", "generate")]


def test_a_restarted_worker_does_not_give_a_negative_rate(tmp_path):
    link = Link()
    log = Metrics(tmp_path, link, [])
    for drawn in (500.0, 3.0):
        link.drawn = drawn
        log.step(1, {})
    log.close()
    assert all(r["gen/tokens_per_s"] >= 0 for r in read_metrics(tmp_path))


def test_resuming_cuts_off_the_steps_that_are_made_again(tmp_path):
    log = Metrics(tmp_path, Link(), [])
    for version in (1, 2, 3):
        log.step(version, {"reward/mean": version / 10})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # torn by a crash
    resumed = Metrics(tmp_path, Link(), [], start_version=2, elapsed_s=100.0)
    resumed.step(3, {"reward/mean": 0.9})
    resumed.close()
    records = read_metrics(tmp_path)
    assert [(r["step"], r["reward/mean"]) for r in records] == [(1, 0.1), (2, 0.2), (3, 0.9)]
    assert records[-1]["time/elapsed_s"] >= 100


def test_tensorboard_holds_the_same_numbers(tmp_path):
    [sink] = open_sinks(tmp_path, config("tensorboard"))
    sink.write(1, {"reward/mean": 0.25})
    sink.write(2, {"reward/mean": 0.5})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]


def test_wandb_takes_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    [sink] = open_sinks(tmp_path, config("wandb"))
    sink.write(1, {"reward/mean": 0.25})
    assert sink.run.config["env"] == "code_exec"
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
