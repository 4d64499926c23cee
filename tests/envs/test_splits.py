from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import envs
from envs.splits import content_hash, sample_in_split, split_of, task_rng

FAMILIES = ("code_exec?level=0-6", "doc_search", "negotiation?level=1-3")


@pytest.mark.parametrize("name", FAMILIES)
def test_no_heldout_task_is_a_training_task(name: str) -> None:
    env = envs.make(name)
    train = {env.task_hash(env.make_task("train", index)) for index in range(500)}
    heldout = {env.task_hash(env.make_task("heldout", index)) for index in range(160)}
    assert not train & heldout
    assert len(heldout) > 60


@pytest.mark.parametrize("name", FAMILIES)
def test_a_task_is_a_pure_function_of_its_index(name: str) -> None:
    first, second = envs.make(name), envs.make(name)
    tasks = [first.make_task("train", index) for index in (0, 7, 2**40)]
    assert [second.make_task("train", index) for index in (0, 7, 2**40)] == tasks
    assert tasks[0] != tasks[1]
    assert all(task.kind for task in tasks)


def test_tasks_are_the_same_in_every_process() -> None:
    code = "import envs; e = envs.make('doc_search'); print(e.task_hash(e.make_task('heldout', 11)))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    env = envs.make("doc_search")
    assert outputs == {env.task_hash(env.make_task("heldout", 11))}


def test_the_seed_depends_on_each_part() -> None:
    draws = [
        task_rng(*parts).integers(1 << 60)
        for parts in (
            ("a", 0, "train", 0),
            ("b", 0, "train", 0),
            ("a", 1, "train", 0),
            ("a", 0, "heldout", 0),
            ("a", 0, "train", 1),
        )
    ]
    assert len(set(draws)) == 5


def test_a_quarter_of_all_contents_is_held_out() -> None:
    share = sum(split_of({"n": n}) == "heldout" for n in range(4000)) / 4000
    assert 0.22 < share < 0.28


def test_the_hash_ignores_the_order_of_keys() -> None:
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": [2], "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": "1"})


def test_too_few_tasks_are_refused() -> None:
    other = "train" if split_of(1) == "heldout" else "heldout"
    with pytest.raises(ValueError, match="too few different tasks"):
        sample_in_split(lambda rng: {"x": 1}, lambda payload: payload["x"], np.random.default_rng(0), other)


@pytest.mark.parametrize(("split", "index", "complaint"), [("test", 0, "train, heldout"), ("train", -1, "0 or more")])
def test_wrong_positions_are_named(split: str, index: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        task_rng("a", 0, split, index)  # type: ignore[arg-type]
