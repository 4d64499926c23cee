"""Weight versions, out through shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rollout import weights
from rollout.wire import Weights
from trainer.learner import Learner


class Announce(Protocol):
    """The part of the link that the publisher uses."""

    def publish(self, notice: Weights) -> None: ...


class Publisher:
    """Writes each version into `folder` under a name that says which it is, and tells the workers.

    The newest two stay, since an engine may be reading the last one while the next is announced.
    """

    def __init__(self, folder: Path, link: Announce) -> None:
        self.folder = folder
        self.link = link

    def publish(self, learner: Learner) -> None:
        """Make the learner's weights what engines sample from. Raises `OSError` (shared memory full)."""
        path = weights.write(self.folder, learner.version, learner.named_tensors())
        self.link.publish(Weights(learner.version, path))
        weights.prune(self.folder, keep=2)
