"""Trying a program on the public test: what is run in the episode's box, and what its outcome says.

The child gets the public input alone; the expected value stays here.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Literal

from envs.code_exec.pipelines import reference
from rewards.code import TestOutcome, same_value
from sandbox.protocol import ExecResult

MAX_OUTPUT_CHARS = 2_000
Feedback = Literal["short", "full"]

_REPORT_VALUE = """
import json as _json, os as _os
_os.write(3, _json.dumps(_value).encode())
"""
_REPORT_CALL = """
if callable(globals().get({entry!r})):
    import json as _json, os as _os
    _os.write(3, _json.dumps({entry}({arguments})).encode())
"""


def is_expression(code: str) -> bool:
    """Whether `code` is one expression. Raises `SyntaxError` for what is no program at all."""
    try:
        ast.parse(code.strip(), mode="eval")
        return True
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    try:
        ast.parse(code)
        return False
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error


def with_public_input(code: str, entry: str, arguments: list[Any]) -> str:
    """The program to run: `code`, then a report of what `entry` returns for the public arguments.

    `x` is set to the first argument, and where `code` is one expression, its own value is reported. An `entry` from an
    earlier call of the session does not count. Raises `SyntaxError`.
    """
    given = f"x = {arguments[0]!r}" if arguments else "pass"
    if is_expression(code):
        return f"{given}\n_value = (\n{code.strip()}\n)\n{_REPORT_VALUE}"
    report = _REPORT_CALL.format(entry=entry, arguments=", ".join(map(repr, arguments)))
    return f"{given}; globals().pop({entry!r}, None)\n{code}\n{report}"


def outcome(result: ExecResult, want: Any, feedback: Feedback) -> tuple[str, bool]:
    """What the model reads of a call's public test, and whether it passed.

    "short" is one verdict; "full" adds the value, and the line that an exception ended with. What was printed comes
    first in either.
    """
    printed = _text(result.stdout)
    lines = [printed] if printed else []
    passed = False
    if not result.ok:
        lines.append(_failure(result, feedback))
    elif result.result:
        passed = same_json(result.result, want)
        wrong = f"fail: got {result.result[:200].decode('utf-8', 'replace')}, want {json.dumps(want)}"
        lines.append("pass" if passed else wrong if feedback == "full" else "fail: wrong")
    elif not lines:
        lines.append("no output")
    return "\n".join(lines), passed


def verdict(found: TestOutcome) -> tuple[str, bool]:
    """As a short `outcome`, of a program whose tests were run together, the public one first."""
    if found.passed[0]:
        return "pass", True
    error = found.errors[0].rpartition(": ")[2]
    return f"fail: {error} limit" if f"limit:{error}" in found.labels else f"fail: {error or 'wrong'}", False


def outcome_of_script(result: ExecResult, want: str, feedback: Feedback) -> tuple[str, bool]:
    """As `outcome`, for a program whose stdout is compared: whitespace at line ends does not matter."""
    if not result.ok:
        return "\n".join(filter(None, [_text(result.stdout), _failure(result, feedback)])), False
    passed = _lines(result.stdout.decode("utf-8", "replace")) == _lines(want)
    wrong = f"fail: printed {_text(result.stdout)!r}, want {want!r}"
    return ("pass" if passed else wrong if feedback == "full" else "fail: wrong"), passed


def _failure(result: ExecResult, feedback: Feedback) -> str:
    if result.limits_hit:
        return f"fail: {result.limits_hit[0]} limit"
    errors = _text(result.stderr).splitlines()
    last = errors[-1][:200] if errors else ""
    return f"fail: {last if feedback == 'full' and last else _error_name(last)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()[-MAX_OUTPUT_CHARS:]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def same_json(reported: bytes, want: Any) -> bool:
    """Whether `reported` is the JSON of `want`, by the rules of `rewards.code.CallTest`: True is not 1, 1 is 1.0."""
    try:
        return same_value(json.loads(json.dumps(want)), json.loads(reported))
    except (ValueError, RecursionError):
        return False


def run_scripted(source: str, x: Any) -> ExecResult:
    """What the sandbox would say of an expression that *this package* wrote, without asking it.

    Demonstrations are played by the ten thousand; their programs are the task generator's own text, so that nothing
    has to be kept away from this process. A model's text never comes here.
    """
    try:
        error, value = "", json.dumps(reference(source)(x)).encode()
    except (ValueError, IndexError) as failure:
        error, value = f"{type(failure).__name__}: {failure}", b""
    return ExecResult(
        exit_code=int(bool(error)),
        signal=None,
        limits_hit=(),
        stdout=b"",
        stderr=error.encode(),
        truncated=False,
        result=value,
        wall_s=0.0,
        cpu_s=0.0,
        max_rss_bytes=0,
        queue_s=0.0,
        backend="none",
        isolation="",
    )


def _error_name(last_line: str) -> str:
    """The exception's name out of the last line of a traceback."""
    name = last_line.partition(":")[0].rpartition(".")[2].strip()
    return name if name.isidentifier() else "error"
