"""Evaluation suites: which tasks of which environments are played, how often, and within which limits.

A suite is a TOML file, one of those in `envs/suites/` by its name or any other by its path:

    description = "What it measures."
    attempts = 4                        # of each task

    [[environments]]
    env = "code_exec"                   # as `envs.make` takes it
    tasks = 32                          # of each combination of `arguments`
    arguments = { level = [2, 3] }      # constructor arguments to go through

    [limits]
    max_reply_tokens = 256

    [sampling]
    temperature = 1.0
"""

from __future__ import annotations

import difflib
import itertools
import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from envs.registry import make
from envs.splits import content_hash
from envs.types import Split

SHIPPED = "envs.suites"

AtLeastOne = Annotated[int, Meta(ge=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[environments]]`: `tasks` tasks of `split`, from index `first` on, for each combination of `arguments`."""

    env: str
    tasks: AtLeastOne
    split: Split = "heldout"
    first: Annotated[int, Meta(ge=0)] = 0
    arguments: dict[str, list[str | int | float | bool]] = {}


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what one episode may take. Turns are the environment's own (`max_turns` among `arguments`)."""

    max_reply_tokens: AtLeastOne = 256
    context: Annotated[int, Meta(ge=2)] = 2048
    reply_timeout_s: Annotated[float, Meta(gt=0)] = 300.0


class Decoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sampling]`: how replies are drawn. A temperature of 0 is greedy."""

    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks `first` to `first + tasks - 1` of one environment text; `env_id` is its id with the version."""

    env: str
    env_id: str
    split: Split
    first: int
    tasks: int

    @property
    def label(self) -> str:
        return label(self.env, self.split)


def label(env: str, split: Split) -> str:
    """What the tasks of one environment text are called: its name, and the split where that is not the usual one."""
    return env if split == "heldout" else f"{env} [{split}]"


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole suite. Each of its tasks is played `attempts` times."""

    environments: list[Entry]
    attempts: AtLeastOne = 1
    description: str = ""
    limits: Limits = Limits()
    sampling: Decoding = Decoding()

    def parts(self) -> list[Part]:
        """The environments with their arguments written out. Raises `ValueError` for one that cannot be made."""
        found: list[Part] = []
        for entry in self.environments:
            for values in itertools.product(*entry.arguments.values()):
                text = _with_arguments(entry.env, dict(zip(entry.arguments, values, strict=True)))
                env = make(text)
                if len(env.seats) > 1:
                    raise ValueError(f"in {text!r} the model plays against itself: name an opponent, to measure it")
                env_id = env.registered_id or f"{type(env).__qualname__}-v{env.version}"
                found.append(Part(text, env_id, entry.split, entry.first, entry.tasks))
        labels = [part.label for part in found]
        if twice := next((name for name in labels if labels.count(name) > 1), None):
            raise ValueError(f"{twice!r} is in the suite twice: write one entry for both")
        ids = [part.env_id for part in found]
        if same := next((name for name in labels if ids.count(name) > 1), None):
            raise ValueError(f"{same!r} names one part of the suite and all of them: leave its version out")
        return found

    def content_hash(self) -> str:
        """Changes with what is played and how, the environments' versions included; not with the description."""
        content = msgspec.to_builtins(self)
        del content["description"]
        return content_hash([content, [part.env_id for part in self.parts()]]).hex()


def shipped() -> list[str]:
    """The names of the suites that come with the package."""
    return sorted(path.name.removesuffix(".toml") for path in files(SHIPPED).iterdir() if path.name.endswith(".toml"))


def load(name: str) -> Suite:
    """The suite of a name in `shipped()`, or of a path that ends in ".toml".

    Raises `ValueError`, one line, naming the file, and the key or the environment that is wrong.
    """
    if name.endswith(".toml"):
        try:
            text = Path(name).expanduser().read_text("utf-8")
        except OSError as error:
            raise ValueError(f"cannot read the suite {name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not TOML: {error}") from error
        return parse(text, name)
    if name not in shipped():
        near = difflib.get_close_matches(name, shipped(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(shipped())}; or give a path.toml"
        raise ValueError(f"no suite {name!r}; {hint}")
    return parse((files(SHIPPED) / f"{name}.toml").read_text("utf-8"), f"suite {name}")


def parse(text: str, where: str) -> Suite:
    """The suite that `text` is; `where` names it in errors. Raises `ValueError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not TOML: {error}") from error
    _check_keys(data, Suite, where)
    try:
        suite = msgspec.convert(data, Suite)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error
    if not suite.environments:
        raise ValueError(f"{where}: there are no [[environments]]")
    if wrong := next((e for e in suite.environments for values in e.arguments.values() if not values), None):
        raise ValueError(f"{where}: an argument of {wrong.env!r} has no values to go through")
    if not all(map(math.isfinite, (suite.limits.reply_timeout_s, suite.sampling.temperature))):
        raise ValueError(f"{where}: a limit or the temperature is not a finite number")
    try:
        suite.parts()
    except Exception as error:  # the boundary to the authors' constructors
        raise ValueError(f"{where}: {str(error) or type(error).__name__}") from error
    return suite


def _check_keys(data: Any, kind: Any, where: str) -> None:
    """Raise `ValueError` for a key that no field has, naming the nearest one."""
    if not isinstance(data, dict):
        return  # the conversion says what is wrong
    hints = get_type_hints(kind)
    for key, value in data.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(hints)}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")
        for inner in (hints[key], *get_args(hints[key])):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                for position, item in enumerate(value if isinstance(value, list) else [value], 1):
                    number = f" {position}" if isinstance(value, list) else ""
                    _check_keys(item, inner, f"{where} [{key}]{number}")


def _with_arguments(env: str, arguments: dict[str, Any]) -> str:
    written = "&".join(f"{name}={value}" for name, value in arguments.items())
    return f"{env}{'&' if '?' in env else '?'}{written}" if written else env
