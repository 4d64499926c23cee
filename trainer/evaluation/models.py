"""What `--model` names: a folder with a model, or a name on somebody's server."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from envs.suite import Suite
from sandbox import SandboxError
from trainer import checkpoint
from trainer.config import OutputConfig, read_toml

REMOTE = "openai:"
SAMPLED_BYTES = 1 << 20  # of either end of a weights file, for its fingerprint


@dataclass(frozen=True)
class Model:
    """`path` is a folder, a hub id, or a server's name for the model; `version` counts a run's steps.

    `fingerprint` changes with the weights; it is empty where these are not on this machine.
    """

    path: str
    version: int = 0
    fingerprint: str = ""
    remote: bool = False


def find(name: str, suite: Suite) -> Model:
    """The model called `name`, made now if it is an embedded one. Raises `ValueError`, one line, for one that is not
    there; hub ids are only looked up when the model is loaded."""
    if name.startswith(REMOTE):
        return Model(name.removeprefix(REMOTE), remote=True)
    if name == "embedded":
        families = dict.fromkeys(part.env.partition("?")[0] for part in suite.parts())
        return _local(_embedded(",".join(families), 0))
    folder, at, step = name.rpartition("@")
    run = Path(folder if at else name)
    if (run / "checkpoints").is_dir() or (at and (run / "config.toml").exists()):
        return _of_run(run, step if at else None)
    return _local(name)


def _of_run(run: Path, step: str | None) -> Model:
    steps = {path.name.removeprefix("step-"): path for path in checkpoint.found(run / "checkpoints")}
    if step is None and steps:
        step = list(steps)[-1]
    if step in steps:
        return _local(str(steps[step]))
    if step == "0":
        began = read_toml(run / "config.toml")
        return _local(_embedded(began.env, began.seed) if began.model == "embedded" else began.model)
    there = ", ".join(["0 (its start)", *steps])
    raise ValueError(f"--model {run}: no checkpoint at step {step or 'any'}; there are: {there}")


def _embedded(env: str, seed: int) -> str:
    from trainer import embedded
    from trainer.live import stages

    try:
        with stages() as progress:
            return str(embedded.build(env, seed, progress))
    except (OSError, SandboxError) as error:
        raise ValueError(f"the embedded model cannot be made: {error}") from error


def _local(path: str) -> Model:
    """A folder, whose name tells a run's step, or a hub id."""
    folder = Path(path).expanduser()
    step = re.fullmatch(r"step-(\d+)", folder.name)
    version = int(step[1]) if step else 0
    if not folder.is_dir():
        a_run = folder.parent == OutputConfig.runs_dir  # one that is not there is not to be looked for elsewhere
        is_hub_id = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path) and not ("/" in path and folder.parent.is_dir())
        if a_run or not is_hub_id:
            raise ValueError(f"--model {path}: there is no such folder{_nearest(folder)}")
        return Model(path)
    if not (folder / "config.json").exists():
        raise ValueError(f"--model {path}: neither a model in transformers' format (no config.json) nor a run's folder")
    return Model(str(folder), version, _fingerprint(folder))


def _nearest(folder: Path) -> str:
    there = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
    near = difflib.get_close_matches(folder.name, there, n=1, cutoff=0.5)
    return f"; did you mean {folder.parent / near[0]}?" if near else ""


def _fingerprint(folder: Path) -> str:
    """A hash of the model's configuration, and of the size and both ends of each of its weights files."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            file.seek(max(0, size - SAMPLED_BYTES))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:32]


def longest_context(path: str) -> int:
    """The most positions that the model at `path` has; a very large number where it does not say."""
    try:
        told = json.loads((Path(path) / "config.json").read_text())
    except (OSError, ValueError):
        return 1 << 30
    return int(told.get("max_position_embeddings") or 1 << 30)
