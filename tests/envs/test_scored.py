from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import envs
from envs import Message, RewardError, Status
from envs.scored import read_rows
from rewards.compat import load_compute_score, score_of

REWARD = """
import time

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "raise":
        raise KeyError("x")
    if solution_str == "none":
        return None
    right = solution_str.strip().endswith(ground_truth)
    return {"score": 1.0 if right else -0.5, "acc": right, "note": "text", "index": extra_info["index"]}

def plain(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str)

def wrong(prompt, completion):
    return 1.0
"""


@pytest.fixture
def files(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{i} + {i}?"}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            "extra_info": {"index": i},
        }
        for i in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"scored?score={tmp_path}/reward.py&data={tmp_path}/rows.jsonl"


async def test_a_row_is_answered_once_and_scored_by_the_function(files: str) -> None:
    env = envs.make(files)
    system, user = await env.begin("train", 3)
    assert (system.role, env.kind) == ("system", "sums")
    answer = 2 * int(user.content.split()[0])
    assert await env.act(Message("assistant", f"It is {answer}")) == []
    assert env.status is Status.TERMINATED
    score = await env.score()
    assert (score.reward, score.components) == (1.0, {"score": 1.0, "success": 1.0})
    await env.begin("train", 3)
    await env.act(Message("assistant", "It is no number"))
    assert (await env.score()).reward == -0.5


@pytest.mark.parametrize("reply", ["raise", "none"])
async def test_a_function_that_fails_makes_the_episode_errored(files: str, reply: str) -> None:
    env = envs.make(files)
    await env.begin("heldout", 0)
    await env.act(Message("assistant", reply))
    with pytest.raises(RewardError, match="score"):
        await env.score()


async def test_rows_are_read_from_parquet_as_verl_writes_them(files: str, tmp_path: Path) -> None:
    """Nested columns come back as objects and lists, with None where a row lacks what another has."""
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    rows[0]["extra_info"]["split"] = "train"
    del rows[1]["extra_info"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = read_rows(str(tmp_path / "rows.parquet"))
    assert read[0]["extra_info"] == {"index": 0, "split": "train"}
    assert read[2]["extra_info"] == {"index": 2, "split": None}
    assert [row["prompt"] for row in read] == [row["prompt"] for row in rows]
    assert [row["reward_model"]["ground_truth"] for row in read] == [str(2 * i) for i in range(20)]

    env = envs.make(files.replace("rows.jsonl", "rows.parquet"))
    same = envs.make(files)
    assert [m.content for m in await env.begin("heldout", 5)] == [m.content for m in await same.begin("heldout", 5)]
    await env.act(Message("assistant", env.task.payload["ground_truth"]))
    assert (await env.score()).reward == 1.0
    assert "extra_info" not in rows[1]
    assert all(env.make_task("train", i).payload["extra_info"] is not None for i in range(60))


def test_parquet_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="is not Parquet"):
        read_rows(str(tmp_path / "rows.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"slipstream-rl\[parquet\]"):
        read_rows(str(tmp_path / "rows.parquet"))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"prompt": "x", "reward_model": None}, "row 1 has a reward_model that is not"),
        ({"prompt": [], "reward_model": {}}, "neither text nor a list"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "reward_model": {}}, "images are not played"),
    ],
)
def test_rows_that_cannot_be_played_are_refused(tmp_path: Path, row: dict, fault: str) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=fault):
        read_rows(str(tmp_path / "rows.jsonl"))


def test_files_that_do_not_fit_are_named(files: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match="row 1 lacks prompt or reward_model"):
        read_rows(str(tmp_path / "bad.jsonl"))
    with pytest.raises(ValueError, match="not JSONL"):
        read_rows(str(tmp_path / "reward.py"))
    with pytest.raises(ValueError, match="no function 'nope'"):
        load_compute_score(str(tmp_path / "reward.py"), "nope")
    with pytest.raises(ValueError, match="does not take data_source"):
        load_compute_score(str(tmp_path / "reward.py"), "wrong")
    with pytest.raises(ValueError, match="no file"):
        load_compute_score(str(tmp_path / "nope.py"))
    assert load_compute_score(str(tmp_path / "reward.py"), "plain")("", "abc", "", None) == 3


def test_scores_are_numbers() -> None:
    assert score_of(True) == (1.0, {})
    assert score_of({"score": 0.5, "acc": 1, "text": "x"}) == (0.5, {"acc": 1.0})
    for wrong in ({"acc": 1}, "much", [1]):
        with pytest.raises(RewardError):
            score_of(wrong)
