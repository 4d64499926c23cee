"""Reward functions written for other trainers: a file with `compute_score`, as verl and its relatives call it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rewards.compose import RewardError

ComputeScore = Callable[..., Any]
PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


def load_compute_score(path: str, name: str = "compute_score") -> ComputeScore:
    """The function `name` of the Python file at `path`.

    Raises `ValueError` where there is none, or where it cannot be called with `PARAMETERS` by name.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    module_name = f"slipstream_score_{hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path!r} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # before it runs: dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{path!r} has no function {name!r}")
    try:
        inspect.signature(function).bind(**dict.fromkeys(PARAMETERS))
    except TypeError as error:
        raise ValueError(f"{name} of {path!r} does not take {', '.join(PARAMETERS)}: {error}") from error
    return function


def score_of(result: Any) -> tuple[float, dict[str, float]]:
    """The score in what `compute_score` returned, a number or a mapping with "score", and its other numbers.

    Raises `RewardError` for anything else.
    """
    if isinstance(result, Mapping):
        if "score" not in result:
            raise RewardError(f"compute_score returned a mapping without 'score': {sorted(map(str, result))[:8]}")
        extra = {str(key): float(value) for key, value in result.items() if isinstance(value, (bool, int, float))}
        return score_of(result["score"])[0], {key: value for key, value in extra.items() if key != "score"}
    try:
        return float(result), {}
    except (TypeError, ValueError) as error:
        raise RewardError(f"compute_score returned {result!r:.80}, not a number") from error
