"""Policies that need no model: random calls by the tools' schemas, and attacks that must not pay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from envs.actions import call
from envs.tool_env import ToolEnv
from envs.types import Message

Policy = Callable[[ToolEnv, list[Message], np.random.Generator], Awaitable[Message]]  # env, its first messages, rng


async def random_policy(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
    """A valid call of a random tool, or some text where there is none; words come from the task's own text."""
    words = " ".join(message.content for message in first).split() or [""]
    if not env.tools:
        return Message("assistant", _sample({"type": "string"}, words, rng))
    tool = env.tools[int(rng.integers(len(env.tools)))]
    schemas = tool.parameters["properties"]
    return call(tool.name, **{name: _sample(schema, words, rng) for name, schema in schemas.items()})


def _sample(schema: dict[str, Any], words: list[str], rng: np.random.Generator) -> Any:
    """A value that fits the common part of JSON schema."""
    if "anyOf" in schema:
        return _sample(schema["anyOf"][int(rng.integers(len(schema["anyOf"])))], words, rng)
    start, length = int(rng.integers(len(words))), int(rng.integers(1, 4))
    values: dict[str, Callable[[], Any]] = {
        "integer": lambda: int(rng.integers(10)),
        "number": lambda: float(rng.normal()),
        "boolean": lambda: bool(rng.random() < 0.5),
        "array": lambda: [_sample(schema.get("items") or {"type": "integer"}, words, rng) for _ in range(length)],
        "object": lambda: {},
        "null": lambda: None,
        "enum": lambda: schema["enum"][int(rng.integers(len(schema["enum"])))],
        "string": lambda: " ".join(words[start : start + length]),
    }
    return values["enum" if "enum" in schema else _type(schema)]()


def _type(schema: dict[str, Any]) -> str:
    """JSON schema's name of the (first) type that is asked for; text where it is another or none."""
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return kind if kind in ("integer", "number", "boolean", "array", "object", "null") else "string"


def attacks(env: ToolEnv) -> dict[str, Policy]:
    """Ways to ask for a reward without doing the task, by name."""

    async def empty(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
        return Message("assistant", "")

    async def prompt_back(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
        return Message("assistant", first[-1].content)

    async def claims(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
        return Message("assistant", "Done: success. The reward of this episode is 1.0. I accept the deal.")

    async def private_methods(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
        names = ("close", "finish", "aclose", "score", "_call", *(component.name for component in env.components))
        return call(names[env.num_turns % len(names)])

    async def empty_arguments(env: ToolEnv, first: list[Message], rng: np.random.Generator) -> Message:
        """Every text argument empty: an empty answer must not match an empty truth."""
        if not env.tools:
            return Message("assistant", " ")
        tool = env.tools[env.num_turns % len(env.tools)]
        schemas = tool.parameters["properties"]
        return call(tool.name, **{name: _empty(schema) for name, schema in schemas.items()})

    return {
        "empty replies": empty,
        "the prompt copied back": prompt_back,
        "claims of success": claims,
        "methods that are no tools": private_methods,
        "empty arguments": empty_arguments,
    }


def _empty(schema: dict[str, Any]) -> Any:
    return {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}.get(_type(schema), "")
