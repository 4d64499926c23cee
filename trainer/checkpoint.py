"""Checkpoints: written beside, then renamed, so that one is there whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainer.config import OutputConfig
from trainer.inbox import Inbox, InboxState

if TYPE_CHECKING:
    from trainer.learner import Learner  # imports torch, which the command line does not need


class State(msgspec.Struct):
    """`state.json`: what a resumed run needs besides the weights and the optimizers."""

    version: int
    inbox: InboxState
    dropped: dict[str, int]
    elapsed_s: float


class Checkpoints:
    """The `checkpoints` folder of a run whose last step is `last`.

    `source`, the one that the run went on from, stays: a worker that is restarted loads its model from there.
    """

    def __init__(
        self, folder: Path, tokenizer: Any, config: OutputConfig, last: int, source: Path | None = None
    ) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.every = config.checkpoint_every
        self.keep = config.keep_checkpoints
        self.last = last
        self.source = source

    def after(self, learner: Learner, inbox: Inbox, elapsed_s: float) -> None:
        """Save if the learner's version is one to save."""
        due = self.every and learner.version % self.every == 0
        if due or learner.version == self.last:
            self.save(learner, inbox, elapsed_s)

    def save(self, learner: Learner, inbox: Inbox, elapsed_s: float) -> Path:
        path = self.folder / f"step-{learner.version}"
        temporary = self.folder / f".step-{learner.version}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        learner.save(temporary)
        self.tokenizer.save_pretrained(temporary)
        state = State(learner.version, inbox.state, dict(inbox.dropped), elapsed_s)
        (temporary / "state.json").write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
        for old in found(self.folder)[: -self.keep]:
            if self.source is None or old.name != self.source.name:
                shutil.rmtree(old)
        return path


def found(folder: Path) -> list[Path]:
    """Whole checkpoints in `folder`, oldest first."""
    steps = {int(m[1]): p for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))}
    return [steps[step] for step in sorted(steps)]


def read_state(checkpoint: Path) -> State:
    """Raises `ValueError` for a damaged file."""
    try:
        return msgspec.json.decode((checkpoint / "state.json").read_bytes(), type=State)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{checkpoint}: not a checkpoint that can be resumed ({error})") from error
