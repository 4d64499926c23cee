"""A tool call written as text, for those who act in text: Gymnasium's `step` and a person at the terminal."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import msgspec

from envs.types import Message, ToolCall, ToolSpec

MAX_ACTION_CHARS = 100_000


def call(name: str, /, **arguments: Any) -> Message:
    """The assistant message that calls one tool."""
    return Message("assistant", "", tool_calls=(ToolCall(name, arguments),))


def parse_action(text: str, tools: Sequence[ToolSpec]) -> Message:
    """The assistant message that `text` means.

    `name(1, key="x")` with literal arguments (positional ones in the schema's order) and
    `{"name": ..., "arguments": {...}}` are tool calls; anything else is plain text without a call.
    """
    stripped = text.strip()[:MAX_ACTION_CHARS]
    made = _from_json(stripped) if stripped.startswith("{") else _from_python(stripped, tools)
    return Message("assistant", text, tool_calls=(made,) if made else ())


def _from_json(text: str) -> ToolCall | None:
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(data.get("name"), str):
        return None
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(data["name"], error="arguments must be an object")
    return ToolCall(data["name"], arguments)


def _from_python(text: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    name = node.func.id
    names = next((list(tool.parameters.get("properties", {})) for tool in tools if tool.name == name), [])
    keywords = [(each.arg, each.value) for each in node.keywords if each.arg is not None]
    if len(node.args) > len(names) or len(keywords) < len(node.keywords):
        return ToolCall(name, error=f"{name} takes {len(names)} arguments, by position or by name")
    arguments: dict[str, Any] = {}
    for key, value in [*zip(names, node.args, strict=False), *keywords]:
        if key in arguments:
            return ToolCall(name, error=f"argument {key} is given twice")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            return ToolCall(name, error=f"argument {key} is not a literal")
    return ToolCall(name, arguments)


def show_action(message: Message) -> str:
    """`message` as the text that `parse_action` reads."""
    if not message.tool_calls:
        return message.content
    first = message.tool_calls[0]
    return f"{first.name}({', '.join(f'{key}={value!r}' for key, value in first.arguments.items())})"
