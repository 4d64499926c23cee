"""Code grading: what passes, what does not, and what cannot be graded at all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import sandbox
from rewards.code import CallTest, StdioTest, TestOutcome, public_hidden_gap, run_tests
from sandbox import Limits, Sandbox, SandboxError

SQUARES = [CallTest((n,), n * n) for n in range(4)]
DOUBLES = [StdioTest(f"{n}\n", f"{2 * n}\n") for n in range(4)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    made = sandbox.create("local", slots=2)
    await made.start()
    yield made
    await made.aclose()


@pytest.mark.asyncio(loop_scope="module")
class TestGrading:
    @pytest.mark.parametrize(
        ("source", "fraction"),
        [
            ("x * x", 1.0),
            ("  x * x  \n", 1.0),
            ("def f(x):\n    return x * x", 1.0),
            ("f = lambda x: x ** 2", 1.0),
            ("def f(x):\n    return float(x * x)", 1.0),
            ("def f(x):\n    return x + x", 0.5),
            ("def f(x):\n    assert x < 3\n    return x * x", 0.75),
            ("def f(x):\n    return str(x * x)", 0.0),
            ("def f(x):\n    return [x * x]", 0.0),
            ("def f(x):\n    return x == x * x", 0.0),
            ("def f():\n    return 0", 0.0),
        ],
    )
    async def test_the_fraction_of_calls_that_are_right(self, box: Sandbox, source: str, fraction: float):
        outcome = await run_tests(box, source, SQUARES)
        assert outcome.fraction == fraction
        assert outcome.error == ""
        assert outcome.isolation == "namespaces"

    async def test_what_each_call_returned(self, box: Sandbox):
        outcome = await run_tests(box, "def f(x):\n    return (x, None) if x else 1 / 0", SQUARES)
        assert outcome.outputs == (None, [1, None], [2, None], [3, None])
        assert outcome.passed == (False, False, False, False)

    async def test_another_entry_point_and_several_arguments(self, box: Sandbox):
        source = "def solve(a, b=2, *rest):\n    return {'sum': a + b, 'rest': rest}"
        tests = [CallTest((1,), {"sum": 3, "rest": []}), CallTest((1, 5, 6), {"rest": [6], "sum": 6})]
        assert (await run_tests(box, source, tests, entry="solve")).fraction == 1.0
        assert (await run_tests(box, source, tests)).error == "no such function"
        assert (await run_tests(box, "x * x", SQUARES, entry="solve")).error == "NameError"

    async def test_state_is_kept_between_calls_but_arguments_are_not_shared(self, box: Sandbox):
        source = "seen = []\ndef f(x):\n    x.append(len(seen))\n    seen.append(x)\n    return x"
        tests = [CallTest(([],), [0]), CallTest(([],), [1])]
        assert (await run_tests(box, source, tests)).fraction == 1.0

    @pytest.mark.parametrize(
        ("expected", "output", "same"),
        [
            (1, "1.0", True),
            (1, "True", False),
            (True, "1", False),
            (0.1, "0.1", True),
            (0.3, "0.1 + 0.2", False),
            (None, "None", True),
            ("é\ud800", "'é\\ud800'", True),
            ({"1": [2]}, "{1: (2,)}", True),
            ([1, 2], "[2, 1]", False),
            ([1, 2], "[1, 2, 3]", False),
            ({"a": 1}, "{'a': 1, 'b': 2}", False),
            (10**20, "10**20", True),
            (2**53, "2**53 + 1", False),
        ],
    )
    async def test_values_are_compared_as_json(self, box: Sandbox, expected: object, output: str, same: bool):
        outcome = await run_tests(box, f"def f():\n    return {output}", [CallTest((), expected)])
        assert outcome.passed == (same,)

    async def test_printing_does_not_disturb_calls(self, box: Sandbox):
        source = "print('import')\ndef f(x):\n    print('call', x)\n    return x * x"
        assert (await run_tests(box, source, SQUARES)).fraction == 1.0

    @pytest.mark.parametrize(
        ("source", "fraction"),
        [
            ("print(int(input()) * 2)", 1.0),
            ("import sys\nprint(int(sys.stdin.read()) * 2, end='')", 1.0),
            ("import sys\nsys.stdout.buffer.write(b'%d  \\n\\n' % (int(sys.stdin.buffer.readline()) * 2))", 1.0),
            ("def main():\n    print(int(open(0).read()) * 2)\nif __name__ == '__main__':\n    main()", 1.0),
            ("import sys\nn = int(input())\nprint(2 * n)\nsys.exit(1)", 1.0),
            ("print(int(input()) + 2)", 0.25),
            ("n = int(input())\nprint(2 * n if n < 2 else 1 / 0)", 0.5),
            ("print('0')\nprint('2')", 0.0),
        ],
    )
    async def test_the_fraction_of_scripts_that_are_right(self, box: Sandbox, source: str, fraction: float):
        assert (await run_tests(box, source, DOUBLES)).fraction == fraction

    async def test_scripts_do_not_share_variables(self, box: Sandbox):
        source = "import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + 1\nprint(n, 'seen' in globals())\nseen = 1"
        outcome = await run_tests(box, source, [StdioTest("", "1 False")] * 3)
        assert outcome.fraction == 1.0
        assert outcome.outputs == (b"1 False\n",) * 3

    @pytest.mark.parametrize(
        ("source", "error", "label"),
        [
            ("def f(x)\n    return", "SyntaxError", "syntax_error"),
            ("import nothing", "ModuleNotFoundError", None),
            ("def f(x):\n    while True: pass", "wall", "limit:wall"),
            ("import os\nos._exit(0)", "exit 0 before the end", "early_exit"),
            ("import sys\nsys.exit()", "SystemExit", "exit_call"),
            ("", "no such function", None),
        ],
    )
    async def test_what_went_wrong_is_said(self, box: Sandbox, source: str, error: str, label: str | None):
        outcome = await run_tests(box, source, SQUARES, limits=Limits(wall_s=0.6))
        assert (outcome.fraction, outcome.error) == (0.0, error)
        assert label is None or label in outcome.labels

    async def test_tests_before_a_timeout_count(self, box: Sandbox):
        source = "def f(x):\n    while x == 2: pass\n    return x * x"
        outcome = await run_tests(box, source, SQUARES, limits=Limits(wall_s=0.6))
        assert outcome.passed == (True, True, False, False)
        assert outcome.labels == ("limit:wall",)

    async def test_what_cannot_be_graded_is_an_error(self, box: Sandbox):
        with pytest.raises(ValueError, match="no tests"):
            await run_tests(box, "x", [])
        with pytest.raises(ValueError, match="one kind"):
            await run_tests(box, "x", [SQUARES[0], DOUBLES[0]])
        with pytest.raises(ValueError, match="must be JSON"):
            await run_tests(box, "x", [CallTest(({1},), 1)])
        with pytest.raises(ValueError, match="must be JSON"):
            await run_tests(box, "x", [CallTest((1,), float("nan"))])

    async def test_a_hard_coded_program_shows_in_the_gap(self, box: Sandbox):
        source = "def f(x):\n    return {0: 0, 1: 1, 2: 4}.get(x)"
        public = await run_tests(box, source, SQUARES[:3])
        hidden = await run_tests(box, source, [CallTest((n,), n * n) for n in (7, 8, 9)])
        assert public_hidden_gap(public, hidden) == 1.0
        assert public_hidden_gap(public, public) == 0.0


async def test_a_fault_of_the_sandbox_is_never_scored():
    made = sandbox.create("local", slots=1)
    await made.aclose()
    with pytest.raises(SandboxError):
        await run_tests(made, "x * x", SQUARES)


def test_the_fraction_of_an_outcome():
    assert TestOutcome((True, False, True, True), (1, 2, 3, 4), ("",) * 4, (), "none").fraction == 0.75
