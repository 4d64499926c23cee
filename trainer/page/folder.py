"""What a run's folder says of the run itself: its configuration, how far it is, its checkpoints and logs."""

from __future__ import annotations

import json
import platform
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.checkpoint import found
from trainer.config import RunConfig, to_plain
from trainer.page.curves import Record, training

FRESH_S = 300.0  # an unfinished run that wrote nothing for this long counts as stopped
LOG_CHARS = 6000
WRITTEN = ("metrics.jsonl", "events.jsonl", "ledger/groups.log")


def check(folder: Path) -> None:
    """Raise `ValueError`, one line, unless `folder` is a run's."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    if not any((folder / name).exists() for name in ("config.toml", *WRITTEN)):
        raise ValueError(f"{folder} is not a run's folder (no config.toml in it)")


def read_config(folder: Path) -> dict[str, Any]:
    """The run's configuration as it stands in config.toml, of this version or another; empty without one.

    Raises `ValueError` for a damaged file.
    """
    path = folder / "config.toml"
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def fingerprint(folder: Path) -> str:
    """Changes when the run has written something."""
    stats = [path.stat() for name in WRITTEN if (path := folder / name).exists()]
    return "-".join(f"{s.st_mtime_ns:x}.{s.st_size:x}" for s in stats)


def status(folder: Path, config: dict[str, Any], records: list[Record], now: float) -> dict[str, Any]:
    """`state` in a word, its `tone` ("good", "warn", "bad") and `progress` in a line."""
    step = max((int(r["step"]) for r in records), default=0)
    steps = config.get("steps", 0)
    age_s = now - last_written(folder)
    ago = f"last written {_ago(age_s)} before this page was made"
    of = f" of {steps}" if steps else ""
    if steps and step >= steps and (folder / "checkpoints" / f"step-{steps}").exists():
        return {"state": "finished", "tone": "good", "progress": f"{step}{of} steps"}
    if age_s < FRESH_S:
        return {"state": "running" if step else "starting", "tone": "warn", "progress": f"step {step}{of}, {ago}"}
    return {"state": "stopped", "tone": "bad", "progress": f"at step {step}{of}, {ago}"}


def last_written(folder: Path) -> float:
    """`time.time()` of the last write to any of the run's files."""
    paths = [folder / name for name in ("config.toml", *WRITTEN)] + list((folder / "logs").glob("*"))
    return max((p.stat().st_mtime for p in paths if p.exists()), default=folder.stat().st_mtime)


def _ago(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return "moments" if seconds < 2 else f"{seconds:.0f} seconds"


def about(folder: Path, config: dict[str, Any], records: list[Record], now: float) -> dict[str, Any]:
    """The page about the run: configuration, status, versions, and the ends of the workers' logs."""
    state = status(folder, config, records, now)
    kept = found(folder / "checkpoints")
    steps = training(records)
    model = _model(kept[-1]) if kept else {}
    facts = [
        ("state", f"{state['state']}, {state['progress']}"),
        ("folder", str(folder.resolve())),
        ("training time", f"{steps[-1]['time/elapsed_s']:.0f} s" if steps else "–"),
        ("checkpoints", ", ".join(p.name for p in kept) or "none yet"),
        *((f"model {name}", str(value)) for name, value in model.items()),
    ]
    return {
        "status": facts,
        "versions": [
            ("weights, newest", str(max((int(r["step"]) for r in records), default=0))),
            ("model saved by", f"transformers {_saved_by(kept[-1])}" if kept else "–"),
            ("page made by", f"slipstream-rl {_installed('slipstream-rl')}"),
            ("Python, of the page", platform.python_version()),
            ("page made at", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))),
        ],
        "config": sections(config),
        "logs": [_log_end(path) for path in sorted((folder / "logs").glob("*")) if path.is_file()],
    }


def sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The configuration by section, each value with the default where it differs from that."""
    defaults = to_plain(RunConfig())

    def rows(values: dict[str, Any], plain: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "key": key,
                "value": _shown(value),
                "changed": key in plain and _shown(value) != _shown(plain[key]),
                "default": _shown(plain.get(key, "")),
            }
            for key, value in values.items()
            if not isinstance(value, dict)
        ]

    parts = [{"name": "", "rows": rows(config, defaults)}]
    for name, section in config.items():
        if isinstance(section, dict):
            parts.append({"name": name, "rows": rows(section, defaults.get(name, {}))})
    return [part for part in parts if part["rows"]]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def _model_config(checkpoint: Path) -> dict[str, Any]:
    try:
        found = json.loads((checkpoint / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _model(checkpoint: Path) -> dict[str, Any]:
    names = {
        "model_type": "type",
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "vocab_size": "vocabulary",
        "dtype": "dtype",
    }
    config = _model_config(checkpoint)
    return {label: config[key] for key, label in names.items() if key in config}


def _saved_by(checkpoint: Path) -> str:
    return str(_model_config(checkpoint).get("transformers_version", "?"))


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"


def _log_end(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - LOG_CHARS))
        text = file.read(LOG_CHARS).decode("utf-8", "replace")
    return {"name": f"logs/{path.name}", "text": text.replace("\r", "\n"), "cut": size > LOG_CHARS}
