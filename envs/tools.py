"""`@tool` and functions as tools: what the model may call, its JSON schema, and the check of what the model passes."""

from __future__ import annotations

import copy
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, overload

import msgspec

from envs.types import ToolSpec

Method = TypeVar("Method", bound=Callable[..., Any])

TOOL_MARK = "__slipstream_tool__"
DEFAULT_TIMEOUT_S = 30.0
MAX_RESULT_CHARS = 16_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NAME_RULE = "a letter, then up to 63 letters, digits or '_'"
_ARGUMENT = re.compile(r"^\s{0,8}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: how the model sees it, how its arguments are checked, and what runs.

    `run` is the name of a method of the environment, or a function. `arguments` is None where the function checks them
    itself (raising `FormatError`), as the tools of a server do.
    """

    spec: ToolSpec
    run: str | Callable[..., Any]
    arguments: type[msgspec.Struct] | None
    is_async: bool
    timeout_s: float = DEFAULT_TIMEOUT_S

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments to run it with. Raises `msgspec.ValidationError` saying what is wrong with `given`."""
        if self.arguments is None:
            return dict(given)
        checked = msgspec.convert(dict(given), self.arguments)
        return {name: getattr(checked, name) for name in self.arguments.__struct_fields__}


@overload
def tool(method: Method) -> Method: ...
@overload
def tool(*, name: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Callable[[Method], Method]: ...


def tool(method: Method | None = None, *, name: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """Let the model call this method of a `ToolEnv`.

    The schema comes from the signature's type hints and the docstring: its first paragraph describes the tool, its
    `Args:` section the arguments. The method returns the text that the model reads. One that is not `async` runs in a
    thread of its own; after `timeout_s` the model reads `timeout:` instead of its result.
    """

    def mark(function: Method) -> Method:
        if not timeout_s > 0:
            raise ValueError(f"tool {function.__name__!r}: timeout_s must be above 0, got {timeout_s}")
        setattr(function, TOOL_MARK, (name or function.__name__, timeout_s))
        return function

    return mark if method is None else mark(method)


def collect_tools(cls: type) -> dict[str, Tool]:
    """The tools of an environment class, by the name the model uses, in the order of their definition.

    Raises `TypeError` for a method that cannot be a tool.
    """
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        methods.update(vars(base))
    found: dict[str, Tool] = {}
    for attribute, method in methods.items():
        mark = getattr(method, TOOL_MARK, None)
        if mark is None:
            continue
        made = _make(f"tool {cls.__name__}.{attribute}", method, *mark, attribute=attribute)
        if made.spec.name in found:
            raise TypeError(f"{cls.__name__} has two tools called {made.spec.name!r}")
        found[made.spec.name] = made
    return found


def function_tool(function: Callable[..., Any]) -> Tool:
    """A function with type hints and a docstring as a tool; `@tool(name=…, timeout_s=…)` on it is kept.

    Raises `TypeError` for a function that cannot be a tool.
    """
    name = getattr(function, "__name__", type(function).__name__)
    return _make(f"tool {name}", function, *getattr(function, TOOL_MARK, (name, DEFAULT_TIMEOUT_S)))


def foreign_tool(
    name: str, description: str, schema: Mapping[str, Any], run: Callable[..., Awaitable[Any]], timeout_s: float
) -> Tool:
    """A tool that something else describes by a JSON schema and runs: `run` gets the arguments unchecked, by name.

    Characters that models cannot write in a name become "_". Raises `TypeError` where that leaves no name.
    """
    written = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not _NAME.fullmatch(written):
        raise TypeError(f"tool {name!r}: {_NAME_RULE}")
    parameters = {"type": "object", "properties": {}} | {key: value for key, value in schema.items() if key != "title"}
    return Tool(ToolSpec(written, description, parameters), run, None, True, timeout_s)


def _make(where: str, function: Callable[..., Any], name: str, timeout_s: float, *, attribute: str = "") -> Tool:
    """`attribute` is the name of a method, whose first parameter is the environment; "" for a function."""
    if not _NAME.fullmatch(name):
        raise TypeError(f"{where}: {name!r} is not a tool name ({_NAME_RULE})")
    description, about = parse_docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{where}: a type hint cannot be resolved: {error}") from error
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in list(inspect.signature(function).parameters.values())[bool(attribute) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where}: parameter {parameter.name!r} must be an ordinary one, which a schema can name")
        if parameter.name not in hints:
            raise TypeError(f"{where}: parameter {parameter.name!r} needs a type hint")
        hint = hints[parameter.name]
        if parameter.name in about:
            hint = Annotated[hint, msgspec.Meta(description=about[parameter.name])]
        default = parameter.default
        if default is parameter.empty:
            fields.append((parameter.name, hint))
        elif isinstance(default, (list, dict)):  # made anew for every call, which hides it from the schema
            hint = Annotated[hint, msgspec.Meta(extra_json_schema={"default": default})]
            fields.append((parameter.name, hint, msgspec.field(default_factory=partial(copy.deepcopy, default))))
        else:
            fields.append((parameter.name, hint, default))
    unknown = about.keys() - {field[0] for field in fields}
    if unknown:
        raise TypeError(f"{where}: the docstring describes {sorted(unknown)}, which are not parameters")
    arguments = msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)
    spec = ToolSpec(name=name, description=description, parameters=_schema(arguments, where))
    return Tool(spec, attribute or function, arguments, inspect.iscoroutinefunction(function), timeout_s)


def _schema(arguments: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """The JSON schema of the arguments: a plain object schema, with "$defs" only where a type needs them."""
    try:
        schema = msgspec.json.schema(arguments)
    except TypeError as error:
        raise TypeError(f"{where}: a type hint has no JSON schema: {error}") from error
    definitions = schema["$defs"]
    top = definitions.pop(schema["$ref"].removeprefix("#/$defs/"))
    top.pop("title", None)
    return {**top, "$defs": definitions} if definitions else top


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description (everything before `Args:`) and what the `Args:` section says of each argument."""
    description, _, rest = text.partition("\nArgs:\n") if "\nArgs:\n" in text else (text, "", "")
    about: dict[str, str] = {}
    current = ""
    for line in rest.splitlines():
        if line and not line[0].isspace():
            break  # the next section
        match = _ARGUMENT.match(line)
        indent = len(line) - len(line.lstrip())
        if match and indent <= 4:
            current = match.group(1)
            about[current] = match.group(2).strip()
        elif current and line.strip():
            about[current] = f"{about[current]} {line.strip()}".strip()
    for section in ("\nReturns:\n", "\nRaises:\n"):
        description = description.partition(section)[0]
    return description.strip(), about


def result_text(result: Any) -> str:
    """A tool's result as the model reads it: valid Unicode of bounded length, JSON for what is not text."""
    if not isinstance(result, str):
        result = "" if result is None else _as_json(result)
    if len(result) > MAX_RESULT_CHARS:
        half = MAX_RESULT_CHARS // 2
        result = f"{result[:half]}\n[{len(result) - 2 * half} characters left out]\n{result[-half:]}"
    return result.encode("utf-8", "replace").decode()


def _as_json(result: Any) -> str:
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError, OverflowError):  # no JSON-like data
        return str(result)
