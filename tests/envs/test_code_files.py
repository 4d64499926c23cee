from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import envs
import sandbox
from envs import call
from envs.code_exec.files import load, read_row

MBPP = {
    "task_id": 2,
    "text": "Write a function to find the shared elements.",
    "code": "def similar(a, b):\n  return sorted(set(a) & set(b))",
    "test_list": [
        "assert similar((3, 4), [4, 3]) == (3, 4)",
        "assert similar([1], [2]) == []",
        "assert set(similar([1], [1])) == {1}",
        "assert not similar([], [])",
        "assert similar([5], [5, 6]) == [5]",
    ],
}
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def near(x: list, t: float) -> bool:\n    """ Are two numbers nearer than t? """\n',
    "entry_point": "near",
    "test": "METADATA = {}\ndef check(candidate):\n    assert candidate([1.0, 2.0], 0.5) == False\n"
    "    assert candidate([1.0, 1.2], 0.5) == True\n    assert abs(candidate([1], 2) - 1) < 1e-6\n"
    "    assert candidate([1.0, 1.1], 1)\n",
}
LIVE_CODE = {
    "question_content": "Add two numbers.",
    "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 5", "output": "10", "testtype": "stdin"}]),
    "starter_code": "",
}
LIVE_CODE_CALL = {
    "question_content": "Add.",
    "starter_code": "class Solution: ...",
    "metadata": json.dumps({"func_name": "add"}),
    "public_test_cases": json.dumps([{"input": "1\n[2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "4\n[5]", "output": "9", "testtype": "functional"}]),
}
APPS = {
    "question": "Echo.",
    "input_output": json.dumps({"inputs": ["a\n", ["b", "c"]], "outputs": ["a\n", ["b", "c"]]}),
}
TACO_CALL = {"question": "Twice.", "input_output": {"fn_name": "twice", "inputs": [[1], [2]], "outputs": [[2], [4]]}}


@pytest.mark.parametrize(
    ("row", "entry", "cases"),
    [
        (MBPP, "similar", [[[[3, 4], [4, 3]], [3, 4]], [[[1], [2]], []], [[[5], [5, 6]], [5]]]),
        (HUMAN_EVAL, "near", [[[[1.0, 2.0], 0.5], False], [[[1.0, 1.2], 0.5], True]]),
        (LIVE_CODE, "", [["1 2", "3"], ["5 5", "10"]]),
        (LIVE_CODE_CALL, "add", [[[1, [2]], 3], [[4, [5]], 9]]),
        (APPS, "", [["a\n", "a\n"], ["b\nc", "b\nc"]]),
        (TACO_CALL, "twice", [[[1], 2], [[2], 4]]),
    ],
)
def test_rows_of_every_format(row: dict[str, Any], entry: str, cases: list[Any]) -> None:
    task = read_row(row)
    assert task["entry"] == entry
    assert [task["public"], *task["hidden"]] == cases
    assert not any(
        json.dumps(case[1]) in task["prompt"] and case[0] != cases[0][0] for case in task["hidden"] if case[1]
    )


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"a": 1}, "no known format"),
        ({**MBPP, "test_list": ["assert similar([1], [1]) == [1]"]}, "fewer than two"),
        ({**MBPP, "test_list": ["assert f(open('x')) == 1", "import os"]}, "fewer than two"),
        ({**LIVE_CODE, "private_test_cases": "eJxrYJ=="}, "not JSON"),
    ],
)
def test_rows_that_are_refused(row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_row(row)


def write(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_files_that_hold_nothing_say_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 × ValueError: a row of no known format"):
        load(write(tmp_path / "a.jsonl", {"a": 1}, {"a": 2}))
    with pytest.raises(ValueError, match="empty"):
        load(write(tmp_path / "b.jsonl").removesuffix("\n"))
    with pytest.raises(ValueError, match="no file"):
        envs.make("code_exec?file=/no/such.jsonl")
    assert len(load(write(tmp_path / "c.jsonl", MBPP, {"a": 2}, 5, APPS))) == 2


async def test_tasks_of_a_file_are_played_and_graded(tmp_path: Path) -> None:
    rows = [{**MBPP, "text": f"Variant {i}. {MBPP['text']}"} for i in range(20)]
    env = envs.make(f"code_exec?file={write(tmp_path / 'mbpp.jsonl', *rows)}&feedback=full")
    (first,) = await env.begin("heldout", 0)
    assert "Define `similar`. Example: similar([3, 4], [4, 3]) is [3, 4]." in first.content
    assert env.kind == "mbpp"
    (reply,) = await env.act(call("run_code", code="def similar(a, b):\n    return 0"))
    assert reply.content == "fail: got 0, want [3, 4]"
    (reply,) = await env.act(call("run_code", code="def similar(a, b):\n    return sorted(set(a) & set(b))"))
    assert reply.content == "pass"
    await env.act(call("submit"))
    score = await env.score()
    assert score.components["tests"] == 1.0
    await env.aclose()
    await sandbox.close_shared()
    train = {env.make_task("train", i).payload["prompt"] for i in range(60)}
    assert not train & {env.make_task("heldout", i).payload["prompt"] for i in range(60)}
