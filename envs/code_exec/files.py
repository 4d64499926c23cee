"""Programming tasks from the field's own JSONL files: MBPP, HumanEval, LiveCodeBench, APPS and TACO.

A row's format is told by its keys. Tests become data, inputs and expected values apart: an `assert` counts where it
compares one call with a literal, and is left out otherwise, as is a row with fewer than two usable tests.
"""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

Case = list[Any]  # [arguments, expected] or [stdin, stdout]


@lru_cache(maxsize=16)
def load(path: str) -> tuple[dict[str, Any], ...]:
    """The tasks of a JSONL file. Raises `ValueError` for a file that holds none, saying what is wrong with its rows."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    found: list[dict[str, Any]] = []
    reasons: dict[str, int] = {}
    for line in filter(str.strip, file.read_text(encoding="utf-8").splitlines()):
        try:
            found.append({"kind": file.stem, **read_row(json.loads(line))})
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # a row that is not what its keys promise
            reason = f"{type(error).__name__}: {error}"[:120]
            reasons[reason] = reasons.get(reason, 0) + 1
    if not found:
        told = "; ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items())[:3]) or "the file is empty"
        raise ValueError(f"{path!r} holds no usable task: {told}")
    return tuple(found)


def read_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row as a task: prompt, entry ("" for a script), a public case and hidden ones. Raises `ValueError`."""
    if "test_list" in row:
        entry, cases = _asserts("\n".join([*row["test_list"], *row.get("challenge_test_list", [])]))
        return _task(row.get("text") or row["prompt"], entry, cases)
    if "entry_point" in row:
        _, cases = _asserts(row["test"], called="candidate")
        return _task(f"Complete this function.\n\n{row['prompt']}", row["entry_point"], cases)
    if "public_test_cases" in row:
        return _live_code(row)
    if "input_output" in row:
        given = _json(row["input_output"])
        entry = given.get("fn_name") or ""
        pairs = list(zip(given["inputs"], given["outputs"], strict=True))
        cases = [[list(x), _unwrapped(y)] if entry else [_joined(x), _joined(y)] for x, y in pairs]
        return _task(row["question"], entry, cases)
    raise ValueError(f"a row of no known format, with the keys {sorted(row)[:8]}")


def _task(prompt: str, entry: str, cases: list[Case]) -> dict[str, Any]:
    (given, want), *hidden = cases or [["", ""]]
    hidden = [case for i, case in enumerate(hidden) if case != cases[0] and case not in hidden[:i]]
    if not hidden:
        raise ValueError("fewer than two usable tests")
    if all(answer == want for _, answer in hidden):
        raise ValueError("all tests have the same answer, which a constant would pass")
    if entry:
        example = f"Define `{entry}`. Example: {entry}({', '.join(map(repr, given))}) is {want!r}."
    else:
        example = f"Read standard input, write standard output. Example input:\n{given}\nExample output:\n{want}"
    return {"prompt": f"{prompt.strip()}\n\n{example}", "entry": entry, "public": cases[0], "hidden": hidden}


def _live_code(row: dict[str, Any]) -> dict[str, Any]:
    """LiveCodeBench. Private cases that are packed as a pickle are refused: nothing is unpickled here."""
    try:
        private = _json(row["private_test_cases"])
    except ValueError as error:
        raise ValueError("private_test_cases are not JSON: convert the file first") from error
    tests = [*_json(row["public_test_cases"]), *private]
    entry = ""
    if any(test.get("testtype") == "functional" for test in tests):
        entry = _json(row.get("metadata") or "{}")["func_name"]
        cases = [
            [[json.loads(line) for line in test["input"].splitlines()], json.loads(test["output"])] for test in tests
        ]
    else:
        cases = [[test["input"], test["output"]] for test in tests]
    starter = row.get("starter_code") or ""
    return _task(f"{row['question_content']}\n\n{starter}".strip(), entry, cases)


def _asserts(source: str, called: str = "") -> tuple[str, list[Case]]:
    """The function that the asserts of `source` call (or `called`), and its cases."""
    cases: list[Case] = []
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assert):
            continue
        test = node.test
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is))):
            continue
        call, expected = test.left, test.comparators[0]
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.keywords:
            continue
        try:
            case = [[ast.literal_eval(argument) for argument in call.args], ast.literal_eval(expected)]
            cases.append(json.loads(json.dumps(case)))
        except (ValueError, TypeError):  # no literal, or one that JSON cannot hold
            continue
        names.append(call.func.id)
    entry = called or (max(dict.fromkeys(names), key=names.count) if names else "")
    return entry, [case for case, name in zip(cases, names, strict=True) if name == entry]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _joined(value: Any) -> str:
    """Standard input or output that may be given as a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _unwrapped(value: Any) -> Any:
    """APPS gives the expected value of a call in a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
