"""A run whose episodes are a pure function of the data position: an environment, an engine and a model for it."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from envs import ToolEnv, register, reward
from envs.types import Message
from rollout.engine import Completion, Sampling
from trainer import embedded
from trainer.demos import Demo

STOP = 1  # the embedded tokenizer's end of turn


@register("tests/Parrot-v0", max_turns=3)
class Parrot(ToolEnv):
    """Says something three times; how it is rewarded depends on what was said."""

    def sample_task(self, rng):
        return {"word": int(rng.integers(1000))}

    async def start(self, task):
        self.heard = ""
        return f"say {task['word']}"

    async def on_text(self, text):
        self.heard += text
        return "more"

    @reward(weight=1.0)
    def success(self) -> float:
        return (sum(self.heard.encode()) % 5) / 4


class HashEngine:
    """Draws tokens as a hash of (seed, prompt): whatever the weights, the machine or the moment."""

    def __init__(self, model: str, **_):
        self.version = 0

    async def start(self) -> None: ...

    async def generate(self, token_ids: list[int], sampling: Sampling, *, session: str) -> Completion:
        await asyncio.sleep(0.002)
        digest = hashlib.sha256(f"{sampling.seed}/{token_ids}".encode()).digest()
        ids = [5 + byte for byte in digest[:5]] + [STOP]
        return Completion(ids, [-5.0 - byte / 256 for byte in digest[:6]], [self.version] * 6, "stop")

    def end_session(self, session: str) -> None: ...

    async def load(self, path: str, version: int) -> None:
        self.version = version

    def check(self) -> None: ...

    async def aclose(self) -> None: ...


def make_model(folder: Path) -> Path:
    """An untrained embedded model, whose tokenizer knows bytes only."""
    return embedded.blank(folder, [Demo("tests.chaos.deterministic:Parrot", [Message("user", "say 1")])], 0)
