"""Grades programs by tests: function calls, or stdin and stdout.

The child process sees inputs only. Expected values stay here and are compared here, on JSON values or bytes; whatever a
program says about its own success is never asked for.
"""

from __future__ import annotations

import base64
import binascii
import json
import marshal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox import Box, ExecResult, Limits, Sandbox


def _child_program() -> str:
    """`code_child.py`, compiled here where the interpreter inside is the same: that saves half of a short run."""
    source = Path(__file__).with_name("code_child.py").read_text()
    compiled = marshal.dumps(compile(source, "code_child.py", "exec", dont_inherit=True))
    same = f"sys.implementation.cache_tag == {sys.implementation.cache_tag!r}"
    return f"import marshal, sys\nexec(marshal.loads({compiled!r}) if {same} else {source!r})"


_CHILD = _child_program()
_MAX_LINES = 10_000


@dataclass(frozen=True, slots=True)
class StdioTest:
    """Run the program as a script with `stdin`; its stdout must be `expected`, but for whitespace at line ends."""

    stdin: str | bytes
    expected: str | bytes


@dataclass(frozen=True, slots=True)
class CallTest:
    """Call the program's function with `args`; what it returns must be `expected`, as JSON values.

    Tuples equal lists, 1 equals 1.0, but True does not equal 1; floats must be equal exactly.
    """

    args: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """What each test said, in order.

    `outputs` holds a JSON value or, for stdin tests, bytes; None where there is none. `error` is short and about the
    program as a whole ("" where it ran through), and `errors` say for each test why it has no output ("" where it has
    one). `labels` name what looks like an attack or an accident.
    """

    __test__ = False  # not for pytest to collect

    passed: tuple[bool, ...]
    outputs: tuple[Any, ...]
    errors: tuple[str, ...]
    labels: tuple[str, ...]
    isolation: str
    error: str = ""

    @property
    def fraction(self) -> float:
        """The share of tests passed, from 0 to 1."""
        return sum(self.passed) / len(self.passed)


def public_hidden_gap(public: TestOutcome, hidden: TestOutcome) -> float:
    """How much better the program does on the tests that it could see: near 0 where it is honest, -1 to 1."""
    return public.fraction - hidden.fraction


async def run_tests(
    sandbox: Sandbox | Box,
    source: str,
    tests: Sequence[StdioTest | CallTest],
    *,
    entry: str = "f",
    limits: Limits | None = None,
) -> TestOutcome:
    """Run every test of one program in one fresh child, or one call of a box, within one set of `limits`.

    A program that is a single expression of `x` is accepted where `entry` is "f": it means `f = lambda x: (expr)`.
    Raises `ValueError` for no tests, mixed kinds or values that are not JSON, and `SandboxError`.
    """
    if not tests:
        raise ValueError("no tests: a program cannot be graded without any")
    if len({type(test) for test in tests}) > 1:
        raise ValueError("the tests of one program must be of one kind")
    calls = isinstance(tests[0], CallTest)
    order = {"kind": "call" if calls else "stdio", "source": source, "entry": entry, "inputs": _inputs(tests)}
    result = await sandbox.run(_CHILD, stdin=_to_json(order), limits=limits)
    said = _read(result.result, len(tests))
    outputs = tuple(said.outputs.get(index) for index in range(len(tests)))
    if not calls:
        outputs = tuple(_decoded(output) for output in outputs)
    passed = tuple(
        index in said.outputs and _matches(test, output)
        for index, (test, output) in enumerate(zip(tests, outputs, strict=True))
    )
    error = _error(result, said)
    errors = tuple(
        "" if index in said.outputs else said.errors.get(index, error or "no output") for index in range(len(tests))
    )
    return TestOutcome(passed, outputs, errors, _labels(result, said, error), result.isolation, error)


def _to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"a test's values must be JSON: {error}") from error


def _inputs(tests: Sequence[StdioTest | CallTest]) -> list[Any]:
    return [
        list(test.args) if isinstance(test, CallTest) else base64.b64encode(_to_bytes(test.stdin)).decode()
        for test in tests
    ]


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


@dataclass(slots=True)
class _Said:
    """What came out of the child, as far as it made sense."""

    outputs: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    error: str = ""
    ended: bool = False
    nonsense: bool = False


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read(data: bytes, count: int) -> _Said:
    """Parse the result lines. The program may have written any of them: the first word on a test counts."""
    said = _Said()
    lines = data.split(b"\n", _MAX_LINES)
    for line in lines[:_MAX_LINES]:
        if not line:
            continue
        try:
            fields = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            said.nonsense = True
            continue
        if not isinstance(fields, dict) or said.ended:
            said.nonsense = True
            continue
        index = fields.get("test")
        if type(index) is int and 0 <= index < count and index not in said.outputs and index not in said.errors:
            if "value" in fields:
                said.outputs[index] = fields["value"]
            else:
                said.errors[index] = str(fields.get("error"))[:80]
        elif index is None and isinstance(fields.get("error"), str):
            said.error = fields["error"][:80]
        elif index is None and fields.get("end") is True:
            said.ended = True
        else:
            said.nonsense = True
    said.nonsense |= len(lines) > _MAX_LINES
    return said


def _decoded(output: Any) -> bytes | None:
    try:
        return base64.b64decode(output, validate=True) if isinstance(output, str) else None
    except (binascii.Error, ValueError):
        return None


def _matches(test: StdioTest | CallTest, output: Any) -> bool:
    if isinstance(test, CallTest):
        return same_value(json.loads(_to_json(test.expected)), output)
    return isinstance(output, bytes) and _lines(output) == _lines(_to_bytes(test.expected))


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def same_value(expected: Any, output: Any) -> bool:
    """Equality of JSON values; goes no deeper than `expected` does."""
    match expected:
        case bool():
            return expected is output
        case int() | float():
            return not isinstance(output, bool) and isinstance(output, int | float) and expected == output
        case list():
            same_size = isinstance(output, list) and len(expected) == len(output)
            return same_size and all(same_value(a, b) for a, b in zip(expected, output, strict=True))
        case dict():
            same_keys = isinstance(output, dict) and expected.keys() == output.keys()
            return same_keys and all(same_value(value, output[key]) for key, value in expected.items())
    return type(expected) is type(output) and expected == output


def _error(result: ExecResult, said: _Said) -> str:
    """The first thing that went wrong with the program as a whole: what is measured comes before what is said."""
    if result.limits_hit:
        return result.limits_hit[0]
    if said.error:
        return said.error
    if result.signal is not None:
        return f"signal {result.signal}"
    if not said.ended:
        return f"exit {result.exit_code} before the end"
    return ""


def _labels(result: ExecResult, said: _Said, error: str) -> tuple[str, ...]:
    labels = [f"limit:{name}" for name in result.limits_hit]
    if error.startswith("exit "):
        labels.append("early_exit")
    if said.nonsense:
        labels.append("forged_result")
    if said.error in ("SyntaxError", "IndentationError", "TabError"):
        labels.append("syntax_error")
    if any(text.startswith("not JSON") for text in said.errors.values()):
        labels.append("not_json")
    if "SystemExit" in said.errors.values() or said.error == "SystemExit":
        labels.append("exit_call")
    return tuple(labels)
