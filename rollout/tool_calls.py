"""The three markups of tool calls, each parsed and written here.

    hermes     <tool_call>\\n{"name": "f", "arguments": {"x": 1}}\\n</tool_call>, once for every call
    llama      {"name": "f", "parameters": {"x": 1}}, several separated by ";" or newlines
    pythonic   f("a", k=1), or [f(a=1), g(2)]

Parsing never raises for text that a model wrote: what looks like a call and is not one becomes a `ToolCall` with its
`error` set. Sizes, nesting and numbers are bounded to what the wire carries.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from envs.types import ToolCall, ToolSpec

Format = Literal["hermes", "llama", "pythonic"]
FORMATS: tuple[Format, ...] = get_args(Format)

MAX_CHARS = 65_536  # of one reply that is parsed
MAX_CALLS = 32
MAX_DEPTH = 16
MAX_VALUES = 10_000  # in one call's arguments

_SOURCE = "<tool call>"
# An escape such as "\d" in a model's string is no concern of the person who runs this.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=re.escape(_SOURCE))
warnings.filterwarnings("ignore", category=DeprecationWarning, module=re.escape(_SOURCE))


class _BadCall(ValueError):
    """Text that looks like a call and is not one; the message is for the model to read."""


def parse(format: Format, text: str, tools: Sequence[ToolSpec] = (), *, first_id: int = 0) -> tuple[ToolCall, ...]:
    """The calls in a reply, in order; () where it asks for none. Reasoning up to "</think>" is skipped.

    Ids count up from `first_id`, in nine characters, which is what the strictest chat templates accept.
    """
    answer = text.rpartition("</think>")[2]
    if len(answer) > MAX_CHARS:
        calls = [_failed("", f"a reply of {len(answer)} characters is too long to hold tool calls")]
    else:
        calls = _PARSERS[format](answer, tools)
    if len(calls) > MAX_CALLS:
        calls = [*calls[: MAX_CALLS - 1], _failed("", f"more than {MAX_CALLS} calls in one reply")]
    return tuple(
        ToolCall(name=call.name, arguments=call.arguments, id=f"call{(first_id + i) % 100_000:05d}", error=call.error)
        for i, call in enumerate(calls)
    )


def render(format: Format, calls: Iterable[ToolCall], tools: Sequence[ToolSpec] = ()) -> str:
    """The text that `parse` reads as `calls`. The pythonic format leaves out the names that `tools` make unnecessary.

    Raises `ValueError` for arguments that the format cannot carry (see the bounds above), or a call with an `error`.
    """
    calls = list(calls)
    for call in calls:
        if call.error:
            raise ValueError(f"a call that could not be parsed cannot be written: {call.error}")
        _check_value(call.arguments)
    if format == "pythonic":
        written = [_render_pythonic(call, tools) for call in calls]
        return written[0] if len(written) == 1 else f"[{', '.join(written)}]" if written else ""
    if format == "llama":
        return "; ".join(_json({"name": call.name, "parameters": call.arguments}) for call in calls)
    return "\n".join(
        f"<tool_call>\n{_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in calls
    )


def schema(tool: ToolSpec) -> dict[str, Any]:
    """`tool` in the form that chat templates and chat-completion interfaces take."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def describe(format: Format, schemas: Sequence[dict[str, Any]]) -> str:
    """A system message that teaches tools and the markup, for models whose chat template does not."""
    listed = "\n".join(map(_json, schemas))
    return (
        "# Tools\n\nYou may call these functions, given as JSON inside <tools></tools>:\n"
        f"<tools>\n{listed}\n</tools>\n\n{_HOW_TO_CALL[format]}"
    )


_HOW_TO_CALL: dict[Format, str] = {
    "hermes": "To call a function, write a JSON object with its name and arguments inside <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>',
    "llama": "To call a function, answer with a JSON object and nothing else:\n"
    '{"name": <function-name>, "parameters": <arguments-object>}',
    "pythonic": "To call a function, answer with a Python call and nothing else:\nname(argument=value)",
}


def _failed(name: str, error: str) -> ToolCall:
    return ToolCall(name=name, error=error)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# JSON, in both markups


def _parse_hermes(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    at = 0
    while (at := text.find("<tool_call>", at)) >= 0 and len(calls) <= MAX_CALLS:
        at += len("<tool_call>")
        call, at = _json_call(text, at, "arguments")
        if not call.error and not text[at:].lstrip().startswith("</tool_call>"):
            call = ToolCall(name=call.name, arguments=call.arguments, error="the call does not end with </tool_call>")
        calls.append(call)
    return calls


def _parse_llama(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    at = len(text) - len(text.lstrip())
    if text.startswith("<|python_tag|>", at):
        at += len("<|python_tag|>")
    while len(calls) <= MAX_CALLS:
        at += len(text[at:]) - len(text[at:].lstrip("; \t\r\n"))
        if not text.startswith("{", at):
            break
        call, at = _json_call(text, at, "parameters")
        if not call.name and not call.error.startswith("not valid JSON"):
            break  # a JSON answer that is no call
        calls.append(call)
        if call.error:
            break
    return calls


def _json_call(text: str, at: int, key: str) -> tuple[ToolCall, int]:
    """The JSON call that starts at `at`, and where it ends. `key` holds its arguments ("arguments" always may)."""
    at += len(text[at:]) - len(text[at:].lstrip())
    name = ""
    try:
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _BadCall(
                f"not valid JSON: {error if isinstance(error, ValueError) else 'nested too deeply'}"
            ) from None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
            raise _BadCall('a call is a JSON object with a "name"')
        _check_value(value["name"])
        name = value["name"]
        arguments = value.get(key, value.get("arguments", {}))
        if isinstance(arguments, str):  # some models write the arguments as JSON inside a string
            arguments = _decoder.decode(arguments) if arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise _BadCall(f'"{key}" is not a JSON object')
        _check_value(arguments)
    except (ValueError, RecursionError) as error:
        return _failed(name, str(error)), at
    return ToolCall(name=name, arguments=arguments), at


def _refuse_constant(text: str) -> Any:
    raise _BadCall(f"not valid JSON: {text} is not a number")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _check_value(value: Any, depth: int = 0, budget: list[int] | None = None) -> None:
    """Raise `ValueError` for a value that the wire does not carry, or that is beyond the bounds above."""
    budget = [MAX_VALUES] if budget is None else budget
    budget[0] -= 1
    if depth > MAX_DEPTH or budget[0] < 0:
        raise _BadCall("arguments are nested too deeply" if depth > MAX_DEPTH else "arguments hold too many values")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _BadCall(f"the key {key!r} is not a string")
        items = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        _check_scalar(value)
        return
    for item in items:
        _check_value(item, depth + 1, budget)


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise _BadCall("a string holds half of a surrogate pair")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _BadCall("a number is not finite")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise _BadCall("an integer does not fit into 64 bits")
    elif value is not None:
        raise _BadCall(f"a value of type {type(value).__name__} is not JSON")


# Python calls


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOKS_LIKE_CALL = re.compile(rf"\[?\s*({_NAME.pattern})\s*\(")
_JSON_NAMES = {"true": True, "false": False, "null": None}


def _parse_pythonic(text: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    source = text.strip()
    begins = _LOOKS_LIKE_CALL.match(source)
    if begins is None:
        return []
    try:
        tree = _python_tree(source)
    except SyntaxError as error:
        known = begins.group(1) in {tool.name for tool in tools}
        # "Sum (of squares) is 14." is a sentence; an unfinished call of a tool that exists is a mistake to report.
        return [_failed(begins.group(1), f"not a valid call: {error.msg}")] if known or not tools else []
    except (ValueError, RecursionError, MemoryError):
        return [_failed(begins.group(1), "not a valid call: nested too deeply, or not text")]
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    return [_python_call(node, tools) for node in nodes[: MAX_CALLS + 1]]


def _python_tree(source: str) -> ast.expr:
    for _ in range(3):
        try:
            return ast.parse(source, filename=_SOURCE, mode="eval").body
        except SystemError:  # before Python 3.12, when another thread parses at the same moment
            continue
    return ast.parse(source, filename=_SOURCE, mode="eval").body


def _python_call(node: ast.expr, tools: Sequence[ToolSpec]) -> ToolCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return _failed("", "not a call of a function by its name")
    name = node.func.id
    try:
        return ToolCall(name=name, arguments=_python_arguments(node, name, tools))
    except ValueError as error:
        return _failed(name, str(error))
    except RecursionError:
        return _failed(name, "arguments are nested too deeply")


def _python_arguments(node: ast.Call, name: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The arguments by name: positional ones take the names of the tool's properties, in their order."""
    names = next((list(tool.parameters.get("properties", {})) for tool in tools if tool.name == name), None)
    if node.args and names is None:
        raise _BadCall(f"there is no tool {name!r}")
    if names is not None and len(node.args) > len(names):
        raise _BadCall(f"{name} takes {len(names)} arguments, not {len(node.args)}")
    pairs = [(key, _literal(value)) for key, value in zip(names or [], node.args, strict=False)]
    for keyword in node.keywords:
        value = _literal(keyword.value)
        if keyword.arg is not None:
            pairs.append((keyword.arg, value))
        elif isinstance(value, dict):  # **{"not an identifier": 1}
            pairs += value.items()
        else:
            raise _BadCall("** is not followed by a dictionary")
    arguments = dict(pairs)
    if len(arguments) < len(pairs):
        raise _BadCall("an argument is given twice")
    _check_value(arguments)
    return arguments


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and not isinstance(node.value, bytes | complex | type(...)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        keys = [_literal(key) for key in node.keys if key is not None]
        if not all(isinstance(key, str) for key in keys):
            raise _BadCall("a dictionary's keys must be strings")
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _literal(node.operand)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    raise _BadCall("an argument is not a plain value: write text in quotes")


def _render_pythonic(call: ToolCall, tools: Sequence[ToolSpec]) -> str:
    if not _NAME.fullmatch(call.name) or not _is_plain_keyword(call.name):
        raise ValueError(f"{call.name!r} is no name of a function")
    order = next((list(tool.parameters.get("properties", {})) for tool in tools if tool.name == call.name), [])
    given = len(call.arguments)
    by_position = order[:given] if set(order[:given]) == set(call.arguments) else []
    parts = [_python(call.arguments[key]) for key in by_position]
    rest = {key: value for key, value in call.arguments.items() if key not in by_position}
    parts += [f"{key}={_python(value)}" for key, value in rest.items() if _is_plain_keyword(key)]
    odd = {key: value for key, value in rest.items() if not _is_plain_keyword(key)}
    return f"{call.name}({', '.join([*parts, f'**{_python(odd)}'] if odd else parts)})"


def _is_plain_keyword(key: str) -> bool:
    """Python rewrites identifiers beyond ASCII, so those are written as strings."""
    if not _NAME.fullmatch(key):
        return False
    try:
        ast.parse(f"f({key}=1)", mode="eval")
    except SyntaxError:
        return False
    return True


def _python(value: Any) -> str:
    if isinstance(value, str):
        return _json(value)  # a JSON string is a Python string
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(key)}: {_python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_python, value)) + "]"
    return repr(value)


_PARSERS = {"hermes": _parse_hermes, "llama": _parse_llama, "pythonic": _parse_pythonic}
