"""What stays on disk, and who may use a run's folder."""

from __future__ import annotations

import os

import pytest

from trainer import lock, scratch
from trainer.checkpoint import Checkpoints, found, read_state
from trainer.config import OutputConfig
from trainer.inbox import InboxState


class Learner:
    version = 0

    def save(self, folder):
        (folder / "model").write_text(str(self.version))


class Tokenizer:
    def save_pretrained(self, folder):
        (folder / "tokenizer.json").write_text("{}")


class Inbox:
    state = InboxState(steps=3)
    dropped = {"groups/dropped_stale": 2}  # noqa: RUF012


def run_to(checkpoints, last, first=0):
    learner = Learner()
    for learner.version in range(first + 1, last + 1):
        checkpoints.after(learner, Inbox(), 1.5)


def test_the_newest_stay_and_with_them_the_one_that_the_run_went_on_from(tmp_path):
    config = OutputConfig(checkpoint_every=2, keep_checkpoints=2)
    run_to(Checkpoints(tmp_path, Tokenizer(), config, 7), 7)
    assert [path.name for path in found(tmp_path)] == ["step-6", "step-7"]
    resumed = Checkpoints(tmp_path, Tokenizer(), config, 20, tmp_path / "step-7")
    run_to(resumed, 14, first=7)
    assert [path.name for path in found(tmp_path)] == ["step-7", "step-12", "step-14"]
    state = read_state(tmp_path / "step-14")
    assert (state.version, state.inbox.steps, state.dropped, state.elapsed_s) == (14, 3, Inbox.dropped, 1.5)


def test_two_trainers_cannot_use_one_folder(tmp_path):
    held = lock.hold(tmp_path)
    with pytest.raises(ValueError, match="is in use: another process is running it"):
        lock.hold(tmp_path)
    os.close(held)
    os.close(lock.hold(tmp_path))


def test_shared_memory_of_a_run_that_cannot_be_seen_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(scratch, "_alive", lambda pid: False)  # as from another container
    folder = scratch.make()
    dead = tmp_path / "slipstream-1-left"
    dead.mkdir()
    scratch.sweep(tmp_path)
    assert (folder.exists(), dead.exists()) == (True, False)
    os.close(scratch._held.pop())
    scratch.sweep(tmp_path)
    assert not folder.exists()
