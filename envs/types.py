"""The words that environments and agents exchange."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "heldout"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call that the model asked for. `error` is set, and the rest best effort, where it could not be parsed."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    error: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation. `name` is the tool's for role "tool"."""

    role: Role
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it; `parameters` is a JSON schema of type "object"."""

    name: str
    description: str
    parameters: dict[str, Any]


class Status(StrEnum):
    """How an episode ended.

    `TERMINATED`: the task itself ended (solved, lost, answered). `TRUNCATED`: a budget ended it (turns, tokens, time,
    context). `ERRORED`: an infrastructure fault; such an episode carries its cause, is retried, and is left out of
    every mean, baseline and loss.
    """

    RUNNING = "running"
    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    ERRORED = "errored"


class Task(msgspec.Struct, frozen=True):
    """One task: a pure function of (environment, version, split, index). `kind` groups results (level, family)."""

    env: str
    split: Split
    index: int
    kind: str
    payload: dict[str, Any]
