"""Reward functions written for other trainers: a file with `compute_score`, as verl and its relatives call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rewards.compose import RewardError
from rewards.files import load_file

ComputeScore = Callable[..., Any]
PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


def load_compute_score(path: str, name: str = "compute_score") -> ComputeScore:
    """The function `name` of the Python file at `path`.

    Raises `ValueError` where there is none, or where it cannot be called with `PARAMETERS` by name.
    """
    module = load_file(path)
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
