"""`scored`: rows of prompts, each answered once and scored by a `compute_score` function that somebody already has."""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import numpy as np

from envs.registry import register
from envs.scoring import reward
from envs.threads import in_thread
from envs.tool_env import ToolEnv
from envs.types import Message, Role
from rewards.compat import load_compute_score, score_of
from rewards.compose import RewardError

SCORE_TIMEOUT_S = 60.0
SCORE_RANGE = (-1000.0, 1000.0)
_NEEDED = ("prompt", "reward_model")


@lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[dict[str, Any], ...]:
    """The rows of a JSONL or Parquet file in verl's format. Raises `ValueError` for a file that is not one."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    rows = _parquet(file) if file.suffix == ".parquet" else _jsonl(file)
    if not rows:
        raise ValueError(f"{path!r}: no rows")
    for number, row in enumerate(rows, 1):
        if fault := _fault(row):
            raise ValueError(f"{path!r}: row {number} {fault}")
    return tuple(rows)


def _jsonl(file: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"'{file}' is not JSONL: {error}") from error


def _parquet(file: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        needed = "needs the pyarrow package: pip install 'slipstream-rl[parquet]', or convert it to JSONL"
        raise ValueError(f"reading '{file}' {needed}") from error
    try:
        return parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"'{file}' is not Parquet: {str(error).partition(chr(10))[0]}") from error


def _fault(row: Any) -> str:
    """What keeps `row` from being a task: "" for nothing."""
    if not isinstance(row, dict) or not all(key in row for key in _NEEDED):
        return f"lacks {' or '.join(_NEEDED)}"
    if not isinstance(row["reward_model"], dict):
        return "has a reward_model that is not an object"
    prompt = row["prompt"]
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        return "has a prompt that is neither text nor a list of messages"
    if not all(turn.get("role") in get_args(Role) and isinstance(turn.get("content"), str) for turn in turns):
        return "has a message without a known role or without text (images are not played)"
    return ""


@register("scored-v0", max_turns=1)
class Scored(ToolEnv):
    """Answer a prompt of `data` once; `compute_score` of the Python file `score` says what that is worth."""

    def __init__(self, score: str, data: str) -> None:
        self.compute_score = load_compute_score(score)
        self.rows = read_rows(data)

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        row = self.rows[int(rng.integers(len(self.rows)))]
        source = row.get("data_source", "")
        return {
            "kind": str(source),
            "data_source": source,
            "prompt": row["prompt"],
            "ground_truth": row["reward_model"].get("ground_truth"),
            "extra_info": row.get("extra_info") or {},
        }

    def task_key(self, payload: dict[str, Any]) -> Any:
        return payload["prompt"]

    async def start(self, task: dict[str, Any]) -> list[Message]:
        self.reply: str | None = None
        self.extra: dict[str, float] = {}
        prompt = task["prompt"]
        if isinstance(prompt, str):
            return [Message("user", prompt)]
        return [Message(turn["role"], turn["content"]) for turn in prompt]

    async def on_text(self, text: str) -> str:
        self.reply = text
        return self.finish()

    @reward(weight=1.0, range=SCORE_RANGE, name="score")
    async def scored(self) -> float:
        """What `compute_score` makes of the reply, in a thread, for it may block. Without a reply it is not asked."""
        if self.reply is None:
            return 0.0
        task = self.task.payload
        arguments = {
            "data_source": task["data_source"],
            "solution_str": self.reply,
            "ground_truth": task["ground_truth"],
            "extra_info": task["extra_info"],
        }
        try:
            async with asyncio.timeout(SCORE_TIMEOUT_S):
                earned, self.extra = score_of(await in_thread(self.compute_score, **arguments))
        except TimeoutError as error:
            raise RewardError(f"compute_score took longer than {SCORE_TIMEOUT_S:g} s") from error
        return earned

    @reward(weight=0.0)
    def success(self) -> float:
        """The function's own "acc" where it returns one, as verl's do."""
        return float(self.extra.get("acc", 0.0))
