"""Environment ids: registering them, and making an environment from the text that names it.

A text is `NAME`, `NAME-vN` (Gymnasium's registry), `module:NAME` or `module:Class`, or `path/file.py:Class`, each with
optional constructor arguments: `code_exec?level=1-3&max_turns=6`. Other processes get this text, never an object.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import gymnasium

from envs.tool_env import ToolEnv
from rewards.files import load_file

ENTRY_POINT_GROUP = "slipstream.envs"
_ID = re.compile(r"(?:(?P<namespace>[\w-]+)/)?(?P<name>[\w.-]+?)-v(?P<version>\d+)")
_registered: dict[str, str | type[ToolEnv]] = {}  # id -> the class, or "module:Class" that is imported when asked for

EnvClass = TypeVar("EnvClass", bound=type[ToolEnv])


class UnknownEnvironment(ValueError):
    """No environment has this id, or it cannot be loaded."""


def register(
    env_id: str, entry_point: str | None = None, *, max_turns: int | None = None
) -> Callable[[EnvClass], EnvClass]:
    """Register a `ToolEnv` class under a versioned id, here and in Gymnasium's own registry.

    A class decorator; given `entry_point` ("module:Class"), the class is imported when it is first asked for. One class
    has one id. Raises `ValueError` for an id without a version or one that another class has.
    """
    if not _ID.fullmatch(env_id):
        raise ValueError(f"{env_id!r} is not an environment id: [namespace/]name-vN")
    if entry_point is not None:
        _add(env_id, entry_point)
        return lambda cls: cls

    def decorate(cls: EnvClass) -> EnvClass:
        if max_turns is not None:
            cls.max_turns = max_turns
        _name_class(cls, env_id)
        _add(env_id, cls)
        return cls

    return decorate


def _add(env_id: str, target: str | type[ToolEnv]) -> None:
    known = _registered.get(env_id)
    if known is not None and _place(known) != _place(target):
        raise ValueError(f"{env_id!r} is already registered for {_place(known)}")
    if isinstance(known, str):
        return  # the lazy entry stands: its module is being imported
    _registered[env_id] = target
    gymnasium.registry.pop(env_id, None)
    creator: Any = target
    gymnasium.register(env_id, entry_point=creator)


def _place(target: str | type) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def _name_class(cls: type[ToolEnv], env_id: str) -> None:
    match = _ID.fullmatch(env_id)
    assert match is not None
    cls.registered_id = env_id
    cls.version = int(match["version"])


def known_ids() -> list[str]:
    """Every registered id, those of installed packages included."""
    _load_entry_points()
    return sorted(_registered)


def load(text: str) -> type[ToolEnv]:
    """The class that `text` names (arguments after "?" are not looked at). Raises `UnknownEnvironment`."""
    name = text.partition("?")[0].strip()
    if ":" in name:
        place, _, wanted = name.rpartition(":")
        return _from_file(place, wanted) if place.endswith(".py") else _from_module(place, wanted)
    _load_entry_points()
    env_id = _resolve(name)
    target = _registered[env_id]
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownEnvironment(f"environment {env_id!r} cannot be imported from {target!r}: {error}") from error
    if not _is_author_class(cls):
        raise UnknownEnvironment(f"environment {env_id!r}: {target} is not a ToolEnv class")
    if not cls.registered_id:
        _name_class(cls, env_id)
    return cls


def make(text: str) -> ToolEnv:
    """Make the environment that `text` names, unwrapped.

    Raises `UnknownEnvironment` naming the nearest ids, and `ValueError` naming a wrong argument.
    """
    cls = load(text)
    arguments = _parse_arguments(text.partition("?")[2], cls)
    max_turns = arguments.pop("max_turns", None)
    env = cls(**arguments)
    env.env_id = text.strip()
    if spec := gymnasium.registry.get(cls.registered_id):
        # the arguments are what Gymnasium makes another one with
        env.spec = dataclasses.replace(spec, kwargs=arguments) if arguments else spec
    if max_turns is not None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, got {max_turns}")
        env.max_turns = max_turns
    return env


def _resolve(name: str) -> str:
    """The full id of `NAME` (its newest version) or `NAME-vN`."""
    if name in _registered:
        return name
    parts = {env_id: _ID.fullmatch(env_id) for env_id in _registered}
    versions = [(int(match["version"]), env_id) for env_id, match in parts.items() if match and _bare(match) == name]
    if versions:
        return max(versions)[1]
    bare = [_bare(match) for match in parts.values() if match]
    near = difflib.get_close_matches(name, [*bare, *_registered], n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"; there are: {', '.join(sorted(bare))}"
    raise UnknownEnvironment(f"no environment {name!r}{hint}")


def _bare(match: re.Match[str]) -> str:
    return f"{match['namespace']}/{match['name']}" if match["namespace"] else match["name"]


@functools.cache  # reading every installed package's metadata takes milliseconds
def _load_entry_points() -> None:
    """Add the environments of installed packages: entry points `acme/Vault-v0 = "acme.envs:Vault"` of our group."""
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name not in _registered:
            register(point.name, point.value)


def _from_module(place: str, wanted: str) -> type[ToolEnv]:
    try:
        module = importlib.import_module(place)
    except ImportError as error:
        raise UnknownEnvironment(f"module {place!r} of environment {wanted!r} cannot be imported: {error}") from error
    return _from_namespace(module, place, wanted)


def _from_file(place: str, wanted: str) -> type[ToolEnv]:
    if not Path(place).expanduser().is_file():
        raise UnknownEnvironment(f"there is no file {place!r}")
    return _from_namespace(load_file(place), place, wanted)


def _from_namespace(module: types.ModuleType, place: str, wanted: str) -> type[ToolEnv]:
    """The class called `wanted` in `module`, or the one registered under the id `wanted` once it is imported."""
    found: Any = getattr(module, wanted, None)
    if _is_author_class(found):
        return found
    try:
        return load(wanted)
    except UnknownEnvironment:
        names = [name for name, value in vars(module).items() if _is_author_class(value)]
        there = f"it has: {', '.join(names)}" if names else "it has no ToolEnv class"
        raise UnknownEnvironment(f"{place!r} has no environment {wanted!r}; {there}") from None


def _is_author_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, ToolEnv) and value is not ToolEnv


def _parse_arguments(text: str, cls: type[ToolEnv]) -> dict[str, Any]:
    """Constructor arguments out of `a=1&b=x`, typed by the constructor's hints. Raises `ValueError` for a wrong one."""
    allowed = _constructor_hints(cls.__init__)
    arguments: dict[str, Any] = {}
    for item in filter(None, text.split("&")):
        key, equals, value = item.partition("=")
        if key not in allowed or not equals:
            near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.0)
            raise ValueError(f"{cls.__name__} takes no argument {key!r}, did you mean {near[0]}=…?")
        arguments[key] = _convert(key, value, allowed[key])
    return arguments


@functools.lru_cache(maxsize=256)
def _constructor_hints(constructor: Callable[..., None]) -> dict[str, Any]:
    """The type of each constructor argument, and of `max_turns`, which every environment takes."""
    hints: dict[str, Any] = {"max_turns": int}
    if constructor is not ToolEnv.__init__:
        typed = typing.get_type_hints(constructor)
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        named = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        hints |= {name: typed.get(name, str) for name in named}
    return hints


def _convert(key: str, value: str, hint: Any) -> Any:
    """`value` as the first type of `hint` that fits; `tuple[int, int]` is written `1-3`."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option in (int, float):
            try:
                return option(value)
            except ValueError:
                continue
        if option is bool and value.lower() in ("true", "false", "1", "0"):
            return value.lower() in ("true", "1")
        if option is str:
            return value
        if typing.get_origin(option) is tuple and re.fullmatch(r"\d+-\d+", value):
            return tuple(int(part) for part in value.split("-"))
        if typing.get_origin(option) is typing.Literal and value in typing.get_args(option):
            return value
    names = " or ".join(getattr(option, "__name__", str(option)) for option in options if option is not types.NoneType)
    raise ValueError(f"argument {key}={value!r} is not {names}")
