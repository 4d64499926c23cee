"""Python files that users name, as modules."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(path: str) -> ModuleType:
    """The module of the Python file at `path`, run once a process. Raises `ValueError` where there is none."""
    file = Path(path).expanduser().resolve()
    name = f"slipstream_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
