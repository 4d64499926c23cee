from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.types import ToolCall, ToolSpec
from rollout import tool_calls
from rollout.tool_calls import FORMATS, parse, render

OFFER = ToolSpec(
    name="offer",
    description="d",
    parameters={"type": "object", "properties": {"books": {"type": "integer"}, "note": {"type": "string"}}},
)


def one(format: tool_calls.Format, text: str) -> ToolCall:
    (call,) = parse(format, text, (OFFER,))
    return call


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", 'I offer.\n<tool_call>\n{"name": "offer", "arguments": {"books": 2, "note": "a"}}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "offer", "arguments": "{\\"books\\": 2, \\"note\\": \\"a\\"}"}</tool_call>'),
        ("llama", '{"name": "offer", "parameters": {"books": 2, "note": "a"}}'),
        ("llama", ' <|python_tag|>{"name": "offer", "arguments": {"books": 2, "note": "a"}}'),
        ("pythonic", 'offer(2, "a")'),
        ("pythonic", "offer(2, note='a')"),
        ("pythonic", " [offer(note='a', books=2)]\n"),
        ("pythonic", '<think>offer(9, "z")</think>offer(2, "a")'),
    ],
)
def test_one_call_in_each_markup(format, text):
    assert one(format, text) == ToolCall(name="offer", arguments={"books": 2, "note": "a"}, id="call00000")


def test_several_calls_are_numbered_on():
    texts = {
        "hermes": '<tool_call>{"name": "a"}</tool_call> and <tool_call>{"name": "b"}</tool_call>',
        "llama": '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
        "pythonic": "[a(), b()]",
    }
    for format, text in texts.items():
        calls = parse(format, text, first_id=4)
        assert [(c.name, c.id, c.error) for c in calls] == [("a", "call00004", ""), ("b", "call00005", "")]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", ["", "The answer is 3.", '{"answer": 3}', "x = [1, 2]", "Sum (of squares) is 14."])
def test_plain_answers_ask_for_nothing(format, text):
    assert parse(format, text, (OFFER,)) == ()


@pytest.mark.parametrize(
    ("format", "text", "name", "error"),
    [
        ("hermes", '<tool_call>{"name": "offer", "arguments": {', "", "not valid JSON"),
        ("hermes", '<tool_call>{"name": "offer", "arguments": {"books": 1}}', "offer", "</tool_call>"),
        ("hermes", "<tool_call>[1]</tool_call>", "", "name"),
        ("hermes", '<tool_call>{"name": "offer", "arguments": [1]}</tool_call>', "offer", "not a JSON object"),
        ("hermes", '<tool_call>{"name": "offer", "arguments": {"books": NaN}}</tool_call>', "", "NaN"),
        ("hermes", '<tool_call>{"name": "offer", "arguments": {"books": 1e999}}</tool_call>', "offer", "finite"),
        ("hermes", '<tool_call>{"name": "offer", "arguments": {"books": "\\ud800"}}</tool_call>', "offer", "surrogate"),
        ("llama", '{"name": "offer", "parameters": {"books": 99999999999999999999}}', "offer", "64 bits"),
        ("llama", '{"name": "offer", "parameters": ', "", "not valid JSON"),
        ("pythonic", 'offer("a', "offer", "not a valid call"),
        ("pythonic", "offer(1, 'a', 3)", "offer", "takes 2 arguments"),
        ("pythonic", "offer(1, books=2)", "offer", "twice"),
        ("pythonic", "offer(books)", "offer", "plain value"),
        ("pythonic", "offer(f'{books}')", "offer", "plain value"),
        ("pythonic", "offer(__import__('os').system('x'))", "offer", "plain value"),
        ("pythonic", "offer(books={1: 2})", "offer", "strings"),
        ("pythonic", "offer(*[1, 2])", "offer", "plain value"),
        ("pythonic", "offer(1)(2)", "", "by its name"),
        ("pythonic", "other(1)", "other", "no tool"),
    ],
)
def test_bad_calls_carry_their_error(format, text, name, error):
    call = one(format, text)
    assert call.name == name
    assert error in call.error
    assert call.arguments == {} or "</tool_call>" in error


@pytest.mark.parametrize("format", FORMATS)
def test_calls_and_sizes_are_bounded(format):
    many = render(format, [ToolCall(name="f", arguments={})] * 100)
    assert len(parse(format, many)) == tool_calls.MAX_CALLS
    assert parse(format, many)[-1].error
    deep = {
        "hermes": '<tool_call>{"name": "f", "arguments": ',
        "llama": '{"name": "f", "parameters": ',
        "pythonic": "f(",
    }
    for depth in (20, 150, 20_000):
        (call,) = parse(format, deep[format] + "[" * depth + "]" * depth, (OFFER,)) or [ToolCall(name="", error="none")]
        assert call.error
    assert "too long" in parse(format, "f(" + "1," * 50_000 + ")")[0].error
    assert "too many" in parse("pythonic", "f(a=[" + "1," * 20_000 + "])")[0].error
    assert parse("pythonic", "f(" + "-" * 30_000 + "1)")[0].error


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}_", fullmatch=True)
calls = st.builds(
    ToolCall,
    name=names | st.just("offer"),
    arguments=st.dictionaries(
        names | st.sampled_from(["books", "note", "lambda", "ﬁ", "a-b", ""]), json_values, max_size=3
    ),
)


@given(st.sampled_from(FORMATS), st.lists(calls, min_size=1, max_size=3), st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_is_written_is_read_again(format, written, know_tools):
    tools = (OFFER,) if know_tools else ()
    read = parse(format, render(format, written, tools), tools)
    assert [(c.name, c.arguments, c.error) for c in read] == [(c.name, c.arguments, "") for c in written]


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "offer", ',
    '"arguments": ',
    "{",
    "}",
    "[",
    "]",
    "offer(",
    ")",
    "1",
    ",",
]
FRAGMENTS += [
    "<|python_tag|>",
    ";",
    "'",
    '"',
    "\\",
    "\x00",
    "**",
    "*",
    "=",
    "lambda",
    "\ud800",
    "é",
    "\n",
    "</think>",
    "-",
]


@given(st.sampled_from(FORMATS), st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=20).map("".join))
@settings(max_examples=250, deadline=None)
def test_no_text_raises_and_every_call_fits_the_wire(format, text):
    for call in parse(format, text, (OFFER,)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=ToolCall) == call


def test_leading_arguments_are_written_by_position():
    assert (
        render("pythonic", [ToolCall(name="offer", arguments={"books": 2, "note": "a"})], (OFFER,)) == 'offer(2, "a")'
    )
    assert render("pythonic", [ToolCall(name="offer", arguments={"note": "a"})], (OFFER,)) == 'offer(note="a")'
    assert render("pythonic", [ToolCall(name="offer", arguments={"books": 2})]) == "offer(books=2)"


def test_what_cannot_be_written_is_refused():
    for call in [
        ToolCall(name="f", error="broken"),
        ToolCall(name="f", arguments={"x": float("nan")}),
        ToolCall(name="f", arguments={"x": {1, 2}}),
    ]:
        with pytest.raises(ValueError, match="call|finite|JSON"):
            render("hermes", [call])
    with pytest.raises(ValueError, match="name of a function"):
        render("pythonic", [ToolCall(name="a b")])
