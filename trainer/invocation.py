"""From a command line to a run: its configuration, its folder, and the checkpoint that it goes on from."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic

import tyro

import envs
from envs import suite
from trainer import algorithms, checkpoint
from trainer.config import A, Flat, RunConfig, differences, read_toml, with_algorithm, write_toml

PROGRAM = "python -m trainer.run"


@dataclass(frozen=True)
class Source:
    """Where the configuration comes from, before any single option."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None
    """Read options from a TOML file; the command line's override it."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Go on with a run's folder, from its last checkpoint; needs no other option. --steps may be raised."""


@dataclass(frozen=True)
class Invocation(Generic[A]):
    """Train an agent with asynchronous reinforcement learning: generation and training overlap."""

    source: Flat[Source]
    run: Flat[RunConfig[A]]


@dataclass(frozen=True)
class Run:
    """A run's folder, and the checkpoint that it goes on from (None: from the start)."""

    folder: Path
    config: RunConfig
    checkpoint: Path | None

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that its name is free again."""
        if self.checkpoint is None and {p.name for p in self.folder.iterdir()} <= {"config.toml", "tokenizer"}:
            shutil.rmtree(self.folder)


def parse(args: Sequence[str]) -> Run:
    """The run that the command line asks for; its folder exists afterwards.

    Raises `ValueError`, one line, for what cannot be run; `SystemExit` for what the command-line parser refuses.
    """
    source = _source(args)
    return _fresh(source, args) if source.resume is None else _resumed(source.resume, source, args)


def _fresh(source: Source, args: Sequence[str]) -> Run:
    config = _parse(args, source, read_toml(source.config) if source.config else RunConfig())
    for name in envs.mix(config.env).names:
        envs.make(name)
    folder = config.output.runs_dir / (config.output.name or _name(config.env))
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} holds a run already: go on with --resume {folder}, or give another --name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_toml(config, folder / "config.toml")
    except OSError as error:
        raise ValueError(
            f"cannot write the run folder {folder} ({error.strerror}): choose another --runs-dir"
        ) from error
    return Run(folder, config, None)


def _resumed(folder: Path, source: Source, args: Sequence[str]) -> Run:
    if not (folder / "config.toml").exists():
        raise ValueError(f"--resume {folder}: there is no run (no config.toml)")
    saved = read_toml(folder / "config.toml")
    base = read_toml(source.config) if source.config else saved
    config = _parse(args, source, base)
    changed = [d for d in differences(saved, config) if not d.startswith(("steps:", "output."))]
    if changed:
        raise ValueError(f"--resume {folder}: that run has another configuration: {'; '.join(changed)}")
    if config.steps < saved.steps:
        raise ValueError(f"--resume {folder}: --steps {config.steps} is below the run's {saved.steps}")
    try:
        write_toml(config, folder / "config.toml")
    except OSError as error:
        raise ValueError(f"cannot write the run folder {folder}: {error.strerror}") from error
    whole = checkpoint.found(folder / "checkpoints")
    return Run(folder, config, whole[-1] if whole else None)


def _parse(args: Sequence[str], source: Source, base: RunConfig) -> RunConfig:
    name, of_file = _given(args, "--algorithm") or base.algorithm.algorithm, base.algorithm
    if source.config and name != of_file.algorithm and of_file != algorithms.make(of_file.algorithm):
        raise ValueError(f"--algorithm {name}: the [algorithm] section of {source.config} is for {of_file.algorithm}")
    base = with_algorithm(base, name)
    algorithm: Any = type(base.algorithm)  # which says what its options are
    kind: type[Invocation] = Invocation[algorithm]
    default = Invocation(source, base)
    config = tyro.cli(kind, args=args, default=default, prog=PROGRAM, description=Invocation.__doc__).run
    config.check()
    if config.output.eval_suite:
        suite.load(config.output.eval_suite)
    return config


def _source(args: Sequence[str]) -> Source:
    """`--config` and `--resume`, which say what the other options' defaults are."""
    config, resume = _given(args, "--config"), _given(args, "--resume")
    return Source(Path(config) if config else None, Path(resume) if resume else None)


def _given(args: Sequence[str], option: str) -> str:
    """The value of an option that must be known before the others can be read; "" where it is not given."""
    for arg, following in zip(reversed(args), ["", *reversed(args)], strict=False):
        name, equals, value = arg.partition("=")
        if name == option:
            return value if equals else following
    return ""


def _name(env: str) -> str:
    """A folder name from the environments and the time."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", env.rpartition("/")[2]).strip("-")
    return f"{words}-{time.strftime('%Y%m%d-%H%M%S')}"
