"""What a rollout worker asks of an inference engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

Finish = Literal["stop", "length", "abort"]


class Sampling(msgspec.Struct, frozen=True):
    """The settings of one request. A temperature of 0 is greedy.

    `seed` makes the draws of one request a function of (seed, position) alone, whatever else is in the batch.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled.

    `logprobs[i]` is the natural-log probability of `token_ids[i]` under the distribution that it was drawn from
    (temperature, top-p and top-k applied); `versions[i]` is the weight version that drew it. A stop token that was
    sampled is included. `finish` is "stop" (a stop token), "length" (max_tokens or the context) or "abort".
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Finish

    @property
    def size(self) -> int:
        """Tokens that were sampled."""
        return len(self.token_ids)

    def check(self) -> None:
        """Raise `EngineError` for a completion that must not be trained on."""
        n = self.size
        if self.finish == "abort":
            raise EngineError("the engine gave the request up")
        if n == 0 or not n == len(self.logprobs) == len(self.versions):
            counts = f"{n} tokens, {len(self.logprobs)} log-probabilities, {len(self.versions)} versions"
            raise EngineError(f"the engine returned {counts}")
        if not math.isfinite(sum(self.logprobs)) or max(self.logprobs) > 1e-4:
            raise EngineError("the engine returned a log-probability that is not a finite number at or below 0")
        if min(self.versions) < 0:
            raise EngineError("the engine returned a token without a weight version")


class WeightsError(ValueError):
    """A weights file that is torn, of another version, or not this model's."""


class NoRoom(ValueError):
    """The prompt leaves no room for a reply in the model's context."""


class EngineError(RuntimeError):
    """The engine failed; the episode is errored and retried, never scored."""


class Engine(Protocol):
    """Generates many requests at once and takes new weights without dropping any of them."""

    version: int  # of the weights that the next token is drawn with

    async def start(self) -> None: ...

    async def generate(self, token_ids: list[int], sampling: Sampling, *, session: str) -> Completion:
        """Sample a reply to `token_ids` (the whole sequence so far).

        Calls of one `session` (an episode) extend each other, so an engine may keep that session's KV cache. Cancelling
        the call frees its place. Raises `EngineError`, and `NoRoom`.
        """
        ...

    def end_session(self, session: str) -> None:
        """The episode is over: what was kept for it may go. Unknown names are ignored."""
        ...

    async def load(self, path: str, version: int) -> None:
        """Take the weights that `rollout.weights.write` put at `path`.

        In-flight requests go on; every token drawn after this returns carries `version`. No kept prefix mixes versions.
        """
        ...

    def check(self) -> None:
        """Raise `EngineError` if it can generate nothing any more."""
        ...

    async def aclose(self) -> None: ...
