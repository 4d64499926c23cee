"""The peer's own virtual environment: made once, with pip as it is configured here, and kept in the cache."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from trainer.embedded import cache_folder

PEER = "trl==1.16.0"
# The libraries under both trainers are of the same versions.
SHARED = ("torch", "transformers", "tokenizers", "numpy")
INSTALL_S = 1800.0
START_S = 120.0


class VenvError(RuntimeError):
    """The virtual environment cannot be made or used; the message says what failed, and where."""


def python(given: Path | None) -> Path:
    """The interpreter of a virtual environment that has the peer: that of `given`, or one made in the cache.

    Raises `VenvError`.
    """
    folder = given or cache_folder() / f"peer-{PEER.replace('==', '-')}"
    interpreter = folder / "bin" / "python"
    if given is None and not (folder / "complete").exists():
        _make(folder, interpreter)
    _run([str(interpreter), "-c", "import importlib.metadata as m; m.version('trl')"], START_S, folder)
    return interpreter


def _make(folder: Path, interpreter: Path) -> None:
    """Fill `folder`. What a start that was interrupted left there is replaced."""
    print(f"making the peer's virtual environment in {folder}: some minutes", file=sys.stderr, flush=True)
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in SHARED]
    _run([sys.executable, "-m", "venv", "--clear", str(folder)], START_S, folder)
    _run(
        [str(interpreter), "-m", "pip", "install", "--quiet", PEER, "datasets", "accelerate", *pins], INSTALL_S, folder
    )
    (folder / "complete").touch()


def _run(command: list[str], timeout_s: float, folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except OSError as error:
        raise VenvError(f"no virtual environment in {folder}: {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise VenvError(f"{' '.join(command)} took longer than {timeout_s:g} s") from error
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise VenvError(f"no virtual environment in {folder}: {' '.join(command)} failed:\n{last}")
