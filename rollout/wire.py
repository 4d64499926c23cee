"""Every Struct that crosses a process boundary, and its codec. Nothing else crosses, and nothing is unpickled.

Frames are msgpack maps tagged with "type", checked against these schemas on arrival and bounded by `MAX_FRAME_BYTES`.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from envs.types import Message, Split, Status
from rollout.engine import Sampling

PROTOCOL = 1
MAX_FRAME_BYTES = 256 << 20
BEAT_S = 1.0  # between two heartbeats, both ways

Count = Annotated[int, Meta(ge=0)]
Purpose = Literal["train", "eval"]
Key = tuple[Purpose, int, int]  # what identifies a ticket: purpose, id, attempt


class WireError(ValueError):
    """A frame that is not what this protocol allows. The peer that sent it is not believed, and counted."""


class Ticket(msgspec.Struct, frozen=True, tag="ticket"):
    """Permission to play one group: `group_size` episodes of one task.

    `id` is the data position; `attempt` counts the times that its group was dropped as stale and granted again.
    """

    id: Count
    attempt: Count
    purpose: Purpose
    env: str
    split: Split
    index: Count
    group_size: Annotated[int, Meta(ge=1, le=4096)]
    sampling: Sampling

    @property
    def key(self) -> Key:
        return (self.purpose, self.id, self.attempt)


class Sequence(msgspec.Struct, frozen=True):
    """Token ids of one append-only conversation, and what is known of each.

    All four lists have equal length. `sampled[i]` says that the policy drew token i (only those are trained);
    elsewhere `logprobs[i]` is 0.0 and `versions[i]` is -1.
    """

    tokens: list[Count]
    sampled: list[bool]
    logprobs: list[float]
    versions: list[int]

    def check(self) -> None:
        """Raise `WireError` for unequal lengths, a sampled token without a version, or a log-probability that is not
        a finite number at or below 0 (rounding up to 1e-4 above is allowed)."""
        n = len(self.tokens)
        if not n == len(self.sampled) == len(self.logprobs) == len(self.versions):
            raise WireError("a sequence's lists differ in length")
        if (oldest := min(compress(self.versions, self.sampled), default=0)) < 0:
            raise WireError(f"a sampled token has version {oldest}")
        # A NaN hides from max(), but not from a sum; both run without a Python loop over the tokens.
        drawn = list(compress(self.logprobs, self.sampled))
        if not math.isfinite(sum(drawn)) or max(drawn, default=0.0) > 1e-4:
            wrong = next((x for x in drawn if not math.isfinite(x) or x > 1e-4), "of absurd size")
            raise WireError(f"a sampled token has log-probability {wrong}")


class Episode(msgspec.Struct, frozen=True):
    """One played episode: what happened, what was earned, and the tokens to train on.

    `reward` is the weighted sum of `components`; it is None exactly when `status` is ERRORED, and then `error` says
    why. `labels` name attacks and oddities that the environment saw; `counts` how often its tools answered "ok",
    "format_error", "tool_error" or "timeout", and "truncated_<reason>" where a budget ended the episode.
    `prompt_tokens` and `sampled_tokens` are those of all its requests, retries included: what is read again counts
    again, as it is billed. Where several seats play, each has an episode of its own, with what that `seat` read, said
    and earned.
    """

    status: Status
    sequences: list[Sequence]
    messages: list[Message]
    reward: float | None
    components: dict[str, float]
    kind: str = ""
    error: str = ""
    turns: Count = 0
    retries: Count = 0
    wall_s: float = 0.0
    labels: tuple[str, ...] = ()
    isolation: str = ""
    counts: dict[str, Count] = {}
    prompt_tokens: Count = 0
    sampled_tokens: Count = 0
    seat: str = ""

    def versions(self) -> list[int]:
        return [v for s in self.sequences for v, drawn in zip(s.versions, s.sampled, strict=True) if drawn]


class Group(msgspec.Struct, frozen=True, tag="group"):
    """A ticket's episodes, whole: `group_size` of each seat."""

    ticket: Ticket
    episodes: list[Episode]
    worker: str
    wall_s: float = 0.0

    def oldest(self) -> int | None:
        """The weight version of the oldest sampled token; None where nothing was sampled."""
        return min((v for e in self.episodes for v in e.versions()), default=None)

    def check(self) -> None:
        """Raise `WireError` for a group that is not its ticket's."""
        counts = Counter(episode.seat for episode in self.episodes) or {"": 0}
        for seat, count in counts.items():
            if count != self.ticket.group_size:
                whose = f" of seat {seat!r}" if seat else ""
                asked = f"ticket {self.ticket.id} asked for {self.ticket.group_size} episodes"
                raise WireError(f"{asked}, got {count}{whose}")
        for episode in self.episodes:
            if (episode.reward is None) != (episode.status is Status.ERRORED):
                raise WireError(f"an episode is {episode.status} with reward {episode.reward}")
            if episode.reward is not None and not math.isfinite(episode.reward):
                raise WireError(f"an episode's reward is {episode.reward}")
            if not all(map(math.isfinite, episode.components.values())):
                raise WireError(f"an episode's reward components are {episode.components}")
            for sequence in episode.sequences:
                sequence.check()


class Span(msgspec.Struct, frozen=True):
    """What a process did when: one bar of the overlap timeline. Times are `time.time()` seconds."""

    what: str
    start: float
    end: float


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's first frame. `capacity` is how many tickets it holds at once; `holding` are those that it still has
    from before a lost connection."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]
    protocol: int
    capacity: Annotated[int, Meta(ge=1, le=65536)]
    pid: int
    holding: Annotated[list[Key], Meta(max_length=65536)] = []


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The trainer's answer: `config` is the JSON of the worker's configuration, `weights` the version to load."""

    config: bytes
    weights: Weights | None


class Weights(msgspec.Struct, frozen=True, tag="weights"):
    """A new weight version is at `path`."""

    version: Count
    path: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The worker's engine draws with `version` from now on."""

    version: Count


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A heartbeat, both ways, with what the worker did since the last one and its counters (cumulative)."""

    spans: Annotated[list[Span], Meta(max_length=4096)] = []
    counters: Annotated[dict[str, float], Meta(max_length=1024)] = {}


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """The group is in the ledger: the worker may forget it."""

    purpose: Purpose
    id: Count
    attempt: Count


class Revoke(msgspec.Struct, frozen=True, tag="revoke"):
    """The ticket is not wanted any more (another worker's group arrived first): stop playing it."""

    purpose: Purpose
    id: Count
    attempt: Count


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker cannot play this ticket at all (an unknown environment, a broken sandbox): the run must stop."""

    ticket: Ticket
    error: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """The trainer does not know this worker (any more): it restarted, or gave the worker up. Say Hello again."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The run is over, or this worker is not welcome: `reason` says why."""

    reason: str


ToWorker = Welcome | Ticket | Weights | Ack | Revoke | Beat | Unknown | Stop
ToTrainer = Hello | Group | Loaded | Beat | Refused

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_trainer = msgspec.msgpack.Decoder(ToTrainer)


def encode(frame: ToWorker | ToTrainer) -> bytes:
    return _encoder.encode(frame)


def portable(messages: list[Message]) -> list[Message]:
    """The messages with what msgpack cannot carry replaced: a model may write an integer of 100 digits or half of a
    surrogate pair, and that must not cost its group. Messages that can be sent are returned as they are."""
    return [m if _fits(m) else _portable(m) for m in messages]


def _fits(value: Any) -> bool:
    try:
        _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError, TypeError):
        return False
    return True


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _spelled(value: Any) -> str:
    try:
        return _text(repr(value))
    except (ValueError, RecursionError):  # an integer of over 4300 digits, a list nested too deep
        return f"<{type(value).__name__}>"


def _portable(message: Message) -> Message:
    calls = tuple(
        call
        if _fits(call)
        else msgspec.structs.replace(
            call,
            name=_text(call.name),
            arguments={_text(str(k)): v if _fits(v) else _spelled(v) for k, v in call.arguments.items()},
            id=_text(call.id),
            error=_text(call.error),
        )
        for call in message.tool_calls
    )
    content, name = _text(message.content), _text(message.name)
    return msgspec.structs.replace(message, content=content, name=name, tool_calls=calls)


def _decode(decoder: msgspec.msgpack.Decoder, data: bytes) -> ToWorker | ToTrainer:
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    try:
        frame = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a frame of protocol {PROTOCOL}: {error}") from error
    if isinstance(frame, Group):
        frame.check()
    return frame


def decode_to_worker(data: bytes) -> ToWorker:
    """Raises `WireError`."""
    return _decode(_to_worker, data)  # type: ignore[return-value]


def decode_to_trainer(data: bytes) -> ToTrainer:
    """Raises `WireError`."""
    return _decode(_to_trainer, data)  # type: ignore[return-value]
