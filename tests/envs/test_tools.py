from __future__ import annotations

from typing import Any, Literal

import pytest

from envs import ToolEnv, parse_action, tool
from envs.actions import show_action
from envs.tools import parse_docstring


class Many(ToolEnv):
    @tool
    async def book(
        self,
        city: str,
        nights: int = 1,
        beds: list[int] = [1],  # noqa: B006
        kind: Literal["inn", "hotel"] = "inn",
    ) -> str:
        """Book a room.

        The price is not shown.

        Args:
            city: where,
                spelt out.
            nights (int): how long.

        Returns:
            A confirmation.
        """
        return f"{city} {nights} {beds} {kind}"

    @tool(name="cancel_all")
    async def cancel(self, reason: str | None = None) -> str:
        return str(reason)


def test_schema_comes_from_signature_and_docstring() -> None:
    book, cancel = Many().tools
    assert book.description == "Book a room.\n\nThe price is not shown."
    assert book.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where, spelt out."},
            "nights": {"type": "integer", "description": "how long.", "default": 1},
            "beds": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            "kind": {"enum": ["hotel", "inn"], "default": "inn"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert (cancel.name, cancel.description) == ("cancel_all", "")


def test_mutable_defaults_are_not_shared() -> None:
    book = Many._tools["book"]
    book.bind({"city": "Oslo"})["beds"].append(7)
    assert book.bind({"city": "Oslo"}) == {"city": "Oslo", "nights": 1, "beds": [1], "kind": "inn"}


def _no_hint(self: Any, x): ...  # type: ignore[no-untyped-def]
def _star(self: Any, *x: int) -> str: ...  # type: ignore[empty-body]
def _unknown(self: Any) -> str:  # type: ignore[return]
    """A tool.

    Args:
        y: not there.
    """


def _no_schema(self: Any, x: complex) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("method", "complaint"),
    [(_no_hint, "'x' needs a type hint"), (_star, "'x' must be"), (_unknown, "'y'"), (_no_schema, "no JSON schema")],
)
def test_methods_that_cannot_be_tools_say_why(method: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        type("Bad", (ToolEnv,), {"run": tool(name="run")(method)})


def test_a_name_must_be_one_that_models_can_write() -> None:
    with pytest.raises(TypeError, match="not a tool name"):
        type("Bad", (ToolEnv,), {"run": tool(name="two words")(lambda self: "")})


def test_docstring_without_arguments() -> None:
    assert parse_docstring("Do it.\n\nReturns:\n    Nothing.") == ("Do it.", {})


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("book('Oslo')", {"city": "Oslo"}),
        (" book('Oslo', 2, kind='hotel')\n", {"city": "Oslo", "nights": 2, "kind": "hotel"}),
        ('{"name": "book", "arguments": {"city": "Oslo", "beds": [2]}}', {"city": "Oslo", "beds": [2]}),
        ('{"name": "book"}', {}),
    ],
)
def test_actions_are_read_from_text(text: str, arguments: dict[str, Any]) -> None:
    (found,) = parse_action(text, Many().tools).tool_calls
    assert (found.name, found.arguments, found.error) == ("book", arguments, "")


@pytest.mark.parametrize("text", ["", "book", "book(", "I book('Oslo')", "{}", "{", "a.b()", "[1]", "(" * 5000, "\x00"])
def test_other_text_is_no_call(text: str) -> None:
    message = parse_action(text, Many().tools)
    assert message.tool_calls == ()
    assert message.content == text


@pytest.mark.parametrize(
    "text",
    ["book(x)", "book(1, 2, 3, 4, 5)", "book('a', city='b')", "book(**{})", "book(__import__('os').getpid())",
     '{"name": "book", "arguments": []}'],
)  # fmt: skip
def test_calls_that_are_not_literal_carry_an_error(text: str) -> None:
    (found,) = parse_action(text, Many().tools).tool_calls
    assert found.error


def test_a_shown_action_reads_back() -> None:
    message = parse_action("book('O\"s\\'lo', beds=[1, 2])", Many().tools)
    assert parse_action(show_action(message), Many().tools).tool_calls == message.tool_calls
