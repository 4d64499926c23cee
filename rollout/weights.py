"""One weight version, out and in: a safetensors file whose name and header carry the version.

The writer (a trainer) and the readers (engines) share a directory, in memory by preference (/dev/shm). A file appears
under its name only when it is whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rollout.engine import WeightsError

_NAME = re.compile(r"weights-(\d{10})\.safetensors")
_TEMPORARY = ".writing-"


def write(
    directory: str | os.PathLike[str],
    version: int,
    named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
) -> str:
    """Write version `version` of the weights into `directory` (made if missing); returns the file's path.

    Tensors that share their memory (tied embeddings) are written once, under their first name. Any device and dtype.
    Raises `OSError` where there is no room.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    unique: dict[tuple[object, ...], tuple[str, torch.Tensor]] = {}
    for name, tensor in dict(named_tensors).items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        unique.setdefault(place if tensor.numel() else (name,), (name, tensor))
    tensors = {name: _standalone(tensor) for name, tensor in unique.values()}
    path = folder / f"weights-{version:010d}.safetensors"
    temporary = folder / f"{_TEMPORARY}{os.getpid()}-{path.name}"
    try:
        save_file(tensors, temporary, metadata={"version": str(version)})
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"cannot write the weights to {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return str(path)


def _standalone(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` on the CPU, contiguous and alone in its storage, as the file format wants it; copied only if needed."""
    on_cpu = tensor.detach().to("cpu").contiguous()
    return on_cpu if on_cpu.untyped_storage().nbytes() == on_cpu.nbytes else on_cpu.clone()


def read(path: str | os.PathLike[str], version: int | None = None) -> dict[str, torch.Tensor]:
    """The tensors at `path` by name, on the CPU, mapped from the file rather than copied.

    Raises `WeightsError` if the file is missing or torn, or if `version` is given and is not the file's.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found = (file.metadata() or {}).get("version")
            if version is not None and found != str(version):
                raise WeightsError(f"{path} holds weight version {found}, not {version}")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a whole weights file: {error}") from error


def prune(directory: str | os.PathLike[str], keep: int = 2) -> list[int]:
    """Remove all but the newest `keep` versions, and what interrupted writers left; returns the versions that stay."""
    folder = Path(directory)
    found = {int(match.group(1)): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
    kept = sorted(found)[-keep:] if keep > 0 else []
    for version in found.keys() - set(kept):
        found[version].unlink(missing_ok=True)
    for leftover in folder.glob(f"{_TEMPORARY}*"):
        leftover.unlink(missing_ok=True)
    return kept
