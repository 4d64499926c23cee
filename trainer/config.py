"""A run's configuration: the same fields from the command line, from `--config FILE.toml`, and in a run's folder."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_origin

import msgspec
import tomli_w
from tyro.conf import OmitArgPrefixes as Flat

from trainer import algorithms
from trainer.algorithms import Algorithm

A = TypeVar("A", bound=Algorithm)
GRPO: Any = algorithms.ALGORITHMS["grpo"]


@dataclass(frozen=True)
class RolloutConfig:
    """Generation: engine, sampling and budgets."""

    engine: str = "torch"
    """What generates: "torch" is the embedded engine, in the rollout worker's process; or `module:Class` of another."""
    workers: int = 1
    """Rollout worker processes, each with an engine of its own."""
    slots: int = 128
    """Episodes that one worker plays at once."""
    context: int = 512
    """Longest sequence in tokens, prompt and replies together; longer episodes are truncated."""
    max_reply_tokens: int = 64
    """Longest single reply in tokens."""
    temperature: float = 1.0
    """Sampling temperature; the trainer recomputes log-probabilities at the same one."""
    top_p: float = 1.0
    """Nucleus sampling; refused in training, where it would bias every ratio."""
    top_k: int = 0
    """Sampling from the k likeliest; refused in training."""
    min_p: float = 0.0
    """Sampling above a share of the likeliest; refused in training."""
    repetition_penalty: float = 1.0
    """Penalty on tokens that occurred; refused in training."""
    episode_timeout_s: float = 120.0
    """Wall-clock budget of one episode in seconds."""
    sandbox: Literal["local", "docker"] = "local"
    """Where untrusted programs run."""
    sandbox_slots: int = 2
    """Programs that run at the same time."""


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer step."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon on the hidden matrices, AdamW on the rest. adamw: AdamW on everything."""
    lr: float = 1e-3
    """Learning rate of AdamW."""
    muon_lr: float = 4.5e-3
    """Learning rate of Muon."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls from its peak to 0 at the last step."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly."""
    grad_clip: float = 1.0
    """Largest global gradient norm; 0 is off."""
    minibatches: int = 1
    """Optimizer updates per step, each on its share of the groups."""
    micro_tokens: int = 4096
    """Tokens that go through the model at once; does not change the gradient."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the model's weights. float32 is the one that the embedded model needs."""
    device: str = "auto"
    """auto takes cuda where there is one."""


@dataclass(frozen=True)
class OutputConfig:
    """What is written, shown and measured."""

    runs_dir: Path = Path("runs")
    """Where run folders are made."""
    name: str = ""
    """The run folder's name; by default the environment and the time."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where metrics go besides metrics.jsonl."""
    checkpoint_every: int = 20
    """Steps between checkpoints; the last step always makes one. 0 is only the last."""
    keep_checkpoints: int = 2
    """How many checkpoints stay."""
    eval_every: int = 20
    """Steps between evaluations on held-out tasks, also made before the first and after the last step; 0 is off."""
    eval_tasks: int = 128
    """Held-out tasks an evaluation."""
    eval_suite: str = ""
    """A suite that is played every --eval-every steps besides, on frozen weights, by a process of its own (see
    trainer.eval): its figures are eval/SUITE/... of metrics.jsonl, its transcripts in evals/."""
    plain: bool = False
    """Print a line a step instead of the live view."""


@dataclass(frozen=True)
class RunConfig(Generic[A]):
    """Train an agent with asynchronous reinforcement learning."""

    env: str = "code_exec"
    """One environment or a weighted mix: `code_exec?level=2`, `my.py:MyEnv`, `code_exec,doc_search=0.5`."""
    model: str = "embedded"
    """A transformers folder, a hub id, or "embedded": a model of 1M parameters, made on the spot by imitation."""
    steps: int = 80
    """Optimizer steps; each makes one weight version."""
    groups_per_step: int = 16
    """Tasks a step."""
    group_size: int = 8
    """Episodes of each task."""
    max_lag: int = 2
    """Oldest weights that a trained token may come from, in versions behind the trainer's."""
    sync: bool = False
    """Generate and train in turn: the on-policy reference, with the same code."""
    threads: int = 0
    """Threads in all, shared out between engines and trainer; 0 is one a core."""
    seed: int = 0
    """Of tasks, sampling and the embedded model."""
    rollout: Flat[RolloutConfig] = field(default_factory=RolloutConfig)
    algorithm: Flat[A] = field(default_factory=GRPO)
    optim: Flat[OptimConfig] = field(default_factory=OptimConfig)
    output: Flat[OutputConfig] = field(default_factory=OutputConfig)

    @property
    def lag_bound(self) -> int:
        """Versions behind that a group's oldest token may be: 0 in a synchronous run."""
        return 0 if self.sync else self.max_lag

    def check(self) -> None:
        """Raise `ValueError`, naming the option and what to do, for values that cannot be trained with."""
        positive = {
            "steps": self.steps,
            "groups-per-step": self.groups_per_step,
            "workers": self.rollout.workers,
            "slots": self.rollout.slots,
            "context": self.rollout.context,
            "max-reply-tokens": self.rollout.max_reply_tokens,
            "episode-timeout-s": self.rollout.episode_timeout_s,
            "sandbox-slots": self.rollout.sandbox_slots,
            "minibatches": self.optim.minibatches,
            "micro-tokens": self.optim.micro_tokens,
            "keep-checkpoints": self.output.keep_checkpoints,
        }
        for name, value in positive.items():
            if value <= 0:
                raise ValueError(f"--{name} must be above 0, got {value}")
        not_negative = {
            "max-lag": self.max_lag,
            "threads": self.threads,
            "eval-every": self.output.eval_every,
            "eval-tasks": self.output.eval_tasks,
            "checkpoint-every": self.output.checkpoint_every,
        }
        for name, value in not_negative.items():
            if value < 0:
                raise ValueError(f"--{name} must not be negative, got {value}")
        if self.group_size < self.algorithm.least_group:
            raise ValueError(
                f"--group-size {self.group_size}: the advantages of --algorithm {self.algorithm.algorithm} compare the "
                f"episodes of a task, of which they need at least {self.algorithm.least_group}"
            )
        self.algorithm.check()
        if self.group_size > self.rollout.slots * self.rollout.workers:
            raise ValueError(
                f"--group-size {self.group_size} is more than --slots {self.rollout.slots} can play at once"
            )
        if self.optim.minibatches > self.groups_per_step:
            raise ValueError(
                f"--minibatches {self.optim.minibatches} is more than --groups-per-step {self.groups_per_step}"
            )
        if self.rollout.temperature <= 0:
            raise ValueError(
                f"--temperature {self.rollout.temperature}: training needs a temperature above 0: a greedy policy "
                "explores nothing and has no log-probabilities to learn from"
            )
        neutral = {"top-p": 1.0, "top-k": 0, "min-p": 0.0, "repetition-penalty": 1.0}
        for name, off in neutral.items():
            if (value := getattr(self.rollout, name.replace("-", "_"))) != off:
                raise ValueError(
                    f"--{name} {value} cannot be used in training: the trainer recomputes log-probabilities over the "
                    f"whole vocabulary, so another sampling distribution would bias every ratio. Leave it at {off}"
                )


Config = TypeVar("Config")


def to_plain(config: Any) -> dict[str, Any]:
    """A nested dict of TOML values."""
    return msgspec.to_builtins(config, enc_hook=str)


def dump_toml(config: Any) -> str:
    """Fields that are None are left out, which TOML cannot say."""
    return tomli_w.dumps(_without_none(to_plain(config)))


def write_toml(config: RunConfig, path: Path) -> None:
    path.write_text(dump_toml(config))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in values.items() if v is not None}


def with_algorithm(config: RunConfig, name: str) -> RunConfig:
    """`config` with the algorithm called `name` and its defaults, unless it has that one already."""
    if name == config.algorithm.algorithm:
        return config
    return dataclasses.replace(config, algorithm=algorithms.make(name))


def read_toml(path: Path) -> RunConfig:
    """A run's configuration. Raises `ValueError` naming the file and the key, with the nearest valid one."""
    data = _load(path)
    section = data.get("algorithm")
    name = section.get("algorithm", "grpo") if isinstance(section, dict) else "grpo"
    algorithm: Any = algorithms.find(str(name))
    return _convert(data, RunConfig[algorithm], path, {"algorithm": algorithm})


def read_config(path: Path, kind: type[Config]) -> Config:
    """The configuration `kind`, a dataclass, in a file. Raises `ValueError` as `read_toml` does."""
    return _convert(_load(path), kind, path, {})


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def _convert(data: dict[str, Any], kind: type[Config], path: Path, chosen: dict[str, type]) -> Config:
    _check_keys(data, get_origin(kind) or kind, str(path), chosen)
    try:
        return msgspec.convert(data, kind, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_keys(data: dict[str, Any], kind: type, where: str, chosen: dict[str, type]) -> None:
    """`chosen` holds the types of sections that the data itself chooses."""
    known = {f.name: chosen.get(f.name, f.default_factory) for f in dataclasses.fields(kind)}
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            # A key in the wrong section is the commonest mistake: say where it belongs.
            homes = [name for name, section in known.items() if key in _field_names(section)]
            hint = f"; it belongs in [{homes[0]}]" if homes else f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: unknown key {key!r}{hint}")
        section = known[key]
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            if not isinstance(value, dict):
                raise ValueError(f"{where}: {key!r} is a section: write [{key}]")
            _check_keys(value, section, f"{where} [{key}]", {})


def _field_names(kind: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


def differences(old: Any, new: Any) -> list[str]:
    """One line for each field that differs, `section.key: old -> new`."""

    def flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            out |= flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
        return out

    was, now = flat(to_plain(old)), flat(to_plain(new))
    return [f"{key}: {was.get(key)!r} -> {now.get(key)!r}" for key in sorted(was | now) if was.get(key) != now.get(key)]
