"""Deterministic stand-ins: an engine, a chat and an environment whose episodes are a pure function of the ticket.

    python -m tests.fakes --connect ADDRESS --name NAME ...

is the rollout worker with this chat, so that its process starts without a tokenizer's library.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from envs import Message, ToolCall, ToolEnv, reward, tool
from rollout.engine import Completion, Sampling
from rollout.wire import Sequence, Ticket

STOP = 0


def make_ticket(
    id: int = 0, *, attempt: int = 0, env: str = "tests.fakes:Dice", group_size: int = 2, **more: Any
) -> Ticket:
    sampling = more.pop("sampling", Sampling(max_tokens=16, seed=7))
    values = {"purpose": "train", "split": "train", "index": id} | more
    return Ticket(id=id, attempt=attempt, env=env, group_size=group_size, sampling=sampling, **values)


class FakeEngine:
    """Replies with `roll(N)` where N, and every log-probability, is a function of (seed, prompt) alone.

    `pace_s` is the time of one reply. `reply` overrides the text. Weights are files that hold their version.
    """

    def __init__(self, model: str = "", *, pace_s: float = 0.0, reply: str = "", **_: Any) -> None:
        self.version = 0
        self.pace_s, self.reply = pace_s, reply
        self.sessions: set[str] = set()
        self.closed = False

    async def start(self) -> None: ...

    async def generate(self, token_ids: list[int], sampling: Sampling, *, session: str) -> Completion:
        self.sessions.add(session)
        version = self.version
        if self.pace_s:
            await asyncio.sleep(self.pace_s)
        digest = hashlib.sha256(f"{sampling.seed}/{token_ids}".encode()).digest()
        ids = [*(self.reply or f"roll({digest[0]})").encode(), STOP]
        finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        logprobs = [-(digest[i % 32] + 1) / 256 for i in range(len(ids))]
        return Completion(ids, logprobs, [version] * len(ids), finish)

    def end_session(self, session: str) -> None:
        self.sessions.discard(session)

    async def load(self, path: str, version: int) -> None:
        assert await asyncio.to_thread(Path(path).read_text) == str(version)
        self.version = version

    def check(self) -> None: ...

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class FakeTemplate:
    stop_ids: tuple[int, ...] = (STOP,)


@dataclass
class FakeChat:
    """Tokens are the bytes of the text; `name(integer)` is a tool call."""

    tools: tuple = ()
    template: FakeTemplate = field(default_factory=FakeTemplate)
    messages: list[Message] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, *messages: Message) -> None:
        for message in messages:
            ids = list(message.content.encode())
            self.messages.append(message)
            self.tokens += ids
            self.sampled += [False] * len(ids)
            self.logprobs += [0.0] * len(ids)
            self.versions += [-1] * len(ids)

    def prompt(self) -> list[int]:
        return list(self.tokens)

    def reply(self, completion: Completion) -> Message:
        self.tokens += completion.token_ids
        self.sampled += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        text = bytes(i for i in completion.token_ids if i != STOP).decode()
        calls = tuple(ToolCall(name, {"n": int(n)}) for name, n in re.findall(r"(\w+)\((\d+)\)", text))
        self.messages.append(Message("assistant", text, tool_calls=calls))
        return self.messages[-1]

    def sequences(self) -> list[Sequence]:
        return [Sequence(self.tokens, self.sampled, self.logprobs, self.versions)] if any(self.sampled) else []


class Dice(ToolEnv):
    """Three rolls; the reward is their mean over 255."""

    max_turns = 4
    opened = 0
    closed = 0

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"side": int(rng.integers(2**62)), "kind": "dice"}

    async def start(self, task: dict[str, Any]) -> str:
        self.rolls: list[int] = []
        Dice.opened += 1
        return f"Roll. {task['side']}"

    async def stop(self) -> None:
        Dice.closed += 1

    @tool
    async def roll(self, n: int) -> str:
        """Roll.

        Args:
            n: what to roll.
        """
        self.rolls.append(n)
        return self.finish("done") if len(self.rolls) == 3 else f"rolled {n}"

    @reward(weight=1.0)
    def mean(self) -> float:
        return float(np.mean(self.rolls or [0])) / 255


if __name__ == "__main__":
    from rollout import worker

    worker.WorkerConfig.make_new_chat = lambda config: FakeChat  # type: ignore[method-assign]
    sys.exit(worker.main())
