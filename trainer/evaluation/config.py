"""The options of an evaluation: from the command line, or from the folder of an evaluation that goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tyro

from envs import suite as suites
from envs.suite import Suite
from trainer.config import Flat, differences, read_config

PROGRAM = "python -m trainer.eval"
CONFIG = "config.toml"

Order = Literal["worst", "best", "random"]


@dataclass(frozen=True)
class OverrideConfig:
    """Instead of what the suite says."""

    tasks: int | None = None
    """Tasks of each part of the suite."""
    attempts: int | None = None
    """Attempts at each task."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""
    max_reply_tokens: int | None = None
    """Longest single reply in tokens."""
    context: int | None = None
    """Longest sequence in tokens, prompt and replies together."""


@dataclass(frozen=True)
class EngineConfig:
    """What generates, where the model is not an endpoint's."""

    engine: str = "torch"
    """"torch" is the embedded engine, in this process; or `module:Class` of another."""
    device: str = "auto"
    """auto takes cuda where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the model's weights."""


@dataclass(frozen=True)
class EndpointConfig:
    """An OpenAI-compatible server, for `--model openai:NAME`."""

    base_url: str = ""
    """Where its API is: `http://127.0.0.1:8000/v1`."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds its key; none is sent where it is not set."""
    request_timeout_s: float = 120.0
    """Longest wait for one answer; what takes longer is asked again."""
    request_retries: int = 6
    """How often a request is sent again after a 429, a 5xx, a cut connection or a timeout."""


@dataclass(frozen=True)
class PlayConfig:
    """How much is played at once. Changes nothing about the result."""

    slots: int = 64
    """Episodes that are played at once."""
    threads: int = 0
    """Threads of the embedded engine; 0 is one a core."""
    sandbox: Literal["local", "docker"] = "local"
    """Where untrusted programs run."""
    sandbox_slots: int = 2
    """Programs that run at the same time."""


@dataclass(frozen=True)
class OutputConfig:
    """What is written and shown."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The evaluation's folder; one that exists goes on where it stopped. By default evals/SUITE-MODEL-TIME."""
    baseline: Annotated[str, tyro.conf.arg(metavar="B")] = ""
    """Compare with this: the folder of an evaluation of the same suite, or a model, which is then played too."""
    price_in: float | None = None
    """USD for a million prompt tokens; with --price-out the result says what it cost."""
    price_out: float | None = None
    """USD for a million sampled tokens."""
    plain: Annotated[bool, tyro.conf.FlagCreatePairsOff] = field(default=False)
    """Print lines instead of the live table."""
    inspect: Annotated[bool, tyro.conf.FlagCreatePairsOff] = field(default=False)
    """Also write inspect.eval, a log for inspect_ai's viewer."""


@dataclass(frozen=True)
class ReadConfig:
    """Reading and scoring what was played."""

    show: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Print N episodes."""
    order: Order = "worst"
    """Which of them."""
    rescore: Annotated[str, tyro.conf.arg(metavar="ENV")] = ""
    """Score the saved episodes with the rewards of another environment (`my.py:MyEnv`), generating nothing."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate an agent on a suite of tasks: error bars, transcripts, comparison with a baseline.

    Killed at any moment, the same command with --out goes on where it stopped.
    """

    suite: str = "smoke"
    """A suite that comes with the package (smoke, heldout, families), or a path.toml."""
    model: str = "embedded"
    """A run's folder (runs/NAME, or runs/NAME@STEP; @0 is what it started from), a transformers folder, a hub id,
    "embedded", or openai:NAME with --base-url."""
    overrides: Flat[OverrideConfig] = field(default_factory=OverrideConfig)
    engine: Flat[EngineConfig] = field(default_factory=EngineConfig)
    endpoint: Flat[EndpointConfig] = field(default_factory=EndpointConfig)
    play: Flat[PlayConfig] = field(default_factory=PlayConfig)
    output: Flat[OutputConfig] = field(default_factory=OutputConfig)
    read: Flat[ReadConfig] = field(default_factory=ReadConfig)

    def check(self) -> None:
        """Raise `ValueError`, naming the option, for values that nothing can be played with."""
        positive = {
            "tasks": self.overrides.tasks,
            "attempts": self.overrides.attempts,
            "max-reply-tokens": self.overrides.max_reply_tokens,
            "context": self.overrides.context,
            "request-timeout-s": self.endpoint.request_timeout_s,
            "slots": self.play.slots,
            "sandbox-slots": self.play.sandbox_slots,
        }
        not_negative = {
            "temperature": self.overrides.temperature,
            "request-retries": self.endpoint.request_retries,
            "threads": self.play.threads,
            "price-in": self.output.price_in,
            "price-out": self.output.price_out,
            "show": self.read.show,
        }
        for name, value in positive.items():
            if value is not None and not value > 0:
                raise ValueError(f"--{name} must be above 0, got {value}")
        for name, value in not_negative.items():
            if value is not None and not value >= 0:
                raise ValueError(f"--{name} must not be negative, got {value}")
        for option, name in (("model", self.model), ("baseline", self.output.baseline)):
            if name.startswith("openai:") and not self.endpoint.base_url:
                raise ValueError(f"--{option} {name} needs --base-url, such as http://127.0.0.1:8000/v1")
        if "@" in self.endpoint.base_url:
            raise ValueError("--base-url holds a name or a password: put the key into the variable of --key-variable")
        if (self.output.price_in is None) != (self.output.price_out is None):
            raise ValueError("--price-in and --price-out go together")

    def load_suite(self) -> Suite:
        """The suite with the overrides in it. Raises `ValueError`."""
        suite, over = suites.load(self.suite), self.overrides
        changes = {name: value for name in ("max_reply_tokens", "context") if (value := getattr(over, name))}
        limits = msgspec.structs.replace(suite.limits, **changes)
        sampling = suite.sampling
        if over.temperature is not None:
            sampling = msgspec.structs.replace(sampling, temperature=over.temperature)
        entries = suite.environments
        if over.tasks:
            entries = [msgspec.structs.replace(entry, tasks=over.tasks) for entry in entries]
        return msgspec.structs.replace(
            suite,
            environments=entries,
            limits=limits,
            sampling=sampling,
            attempts=over.attempts or suite.attempts,
        )

    @property
    def folder(self) -> Path:
        assert self.output.out is not None, "parse() gives every evaluation a folder"
        return self.output.out

    def kept(self) -> EvalConfig:
        """The options that an evaluation's folder keeps. Those that make it what it is may not change; `output` may."""
        output = replace(self.output, out=None, plain=False, inspect=False)
        endpoint = EndpointConfig(self.endpoint.base_url, self.endpoint.key_variable)
        play = PlayConfig(sandbox=self.play.sandbox)
        return EvalConfig(self.suite, self.model, self.overrides, self.engine, endpoint, play, output)

    def changed_since(self, kept: EvalConfig) -> list[str]:
        """What makes this another evaluation than the one that a folder keeps, a line each."""
        free = ("output.", "play.", "endpoint.key_variable")
        return [line for line in differences(kept, self.kept()) if not line.startswith(free)]


def parse(args: Sequence[str]) -> EvalConfig:
    """The options; `--out` is set, and where its folder holds an evaluation, it says what is not given.

    Raises `ValueError`, one line; `SystemExit` for what the command-line parser refuses.
    """
    saved = _out(args)
    default = EvalConfig()
    if saved is not None and (saved / CONFIG).exists():
        default = read_config(saved / CONFIG, EvalConfig)
    config = tyro.cli(EvalConfig, args=args, default=default, prog=PROGRAM)
    config.check()
    if config.output.out is None:
        config = replace(config, output=replace(config.output, out=_fresh(config)))
    return config


def _out(args: Sequence[str]) -> Path | None:
    """`--out`, whose folder says what the other options' defaults are."""
    found = None
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        name, equals, value = arg.partition("=")
        if name == "--out" and (equals or following):
            found = Path(value if equals else following)
    return found


def _fresh(config: EvalConfig) -> Path:
    """A folder name from the suite, the model and the time."""
    name = f"{Path(config.suite).stem}-{config.model.removeprefix('openai:').rstrip('/').rpartition('/')[2]}"
    return Path("evals") / f"{words(name)}-{time.strftime('%Y%m%d-%H%M%S')}"


def words(text: str) -> str:
    """`text` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.@]+", "-", text).strip("-.")
