from __future__ import annotations

import asyncio

import pytest

import envs
import sandbox
from envs import call
from envs.code_exec.env import CodeExec
from envs.code_exec.expressions import BOX_CALLS, Memo, is_pure, shared_expressions
from rewards.code import CallTest
from sandbox.protocol import Limits


@pytest.mark.parametrize(
    "code",
    [
        "sum([v*2 for v in x if v%2==0])",
        " max(x)\n",
        "x[::-1]",
        "[(a, b) for a, b in zip(x, x[1:])]",
        "list(map(abs, x))",
        "sorted(x, reverse=True)[0] if x else None",
        "[*x, -1]",
        "1/0",
        "len('ab')",
    ],
)
def test_pure_expressions(code: str) -> None:
    assert is_pure(code)


@pytest.mark.parametrize(
    "code",
    [
        "", "sum(x", "y", "nonlocal", "x.sort()", "x.__class__", "(y := 1)", "__import__('os')", "open('a')", "input()",
        "id(x)", "hash('a')", "eval('1')", "[].append(x)", "lambda: x", "f'{x}'", "x = 1", "{1, 2}", "globals()",
        "print(x)",
        "[sum for sum in x][0].real", "await x", "(yield)", "x" + "+1" * 400, "exec('sum = max')",
        "[[0 for exec in []], exec('import sys; sys.HIT = 1'), x][2]", "[[0 for type in []], type(1)]",
        "[[0 for __builtins__ in []], __builtins__]", "[[0 for __import__ in []], __import__('os')]",
        "[sum for sum in x]",
        "[0 for x[0] in [9]]", "[0 for x[0:2] in [[]]]", "[v for v.a in x]", "[[0 for _ in []], _]",
    ],
)  # fmt: skip
def test_everything_else_may_depend_on_the_session_or_change_it(code: str) -> None:
    assert not is_pure(code)


async def test_those_who_ask_together_share_one_run() -> None:
    memo, runs = Memo(), 0

    async def run() -> str:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.01)
        return "done"

    waiting = [asyncio.create_task(memo.find("key", run, lambda found: True)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await asyncio.gather(*waiting[1:]) == ["done"] * 4
    assert await memo.find("key", run, lambda found: True) == "done"
    assert (runs, memo.hits) == (1, 5)


async def test_a_failure_of_one_episode_is_not_that_of_those_who_wait() -> None:
    memo, runs = Memo(), []

    async def run(number: int) -> str:
        runs.append(number)
        await asyncio.sleep(0.01)
        if number == 0:
            raise sandbox.SandboxError("its box was closed")
        return "done"

    def found(number: int) -> asyncio.Task[str]:
        return asyncio.create_task(memo.find("key", lambda: run(number), lambda found: True))

    first, *others = await asyncio.gather(*map(found, range(4)), return_exceptions=True)
    assert isinstance(first, sandbox.SandboxError)
    assert others == ["done"] * 3
    assert runs == [0, 1]


async def test_failures_and_unkept_outcomes_are_not_remembered() -> None:
    memo, runs = Memo(), 0

    async def fail() -> str:
        nonlocal runs
        runs += 1
        raise sandbox.SandboxError("gone")

    async def give() -> str:
        return "slow"

    for _ in range(2):
        with pytest.raises(sandbox.SandboxError):
            await memo.find("key", fail, lambda found: True)
    assert runs == 2
    assert await memo.find("key", give, lambda found: False) == "slow"
    assert memo.get("key") is None


async def episode(codes: list[str]) -> tuple[CodeExec, list[str], float]:
    env = envs.make("code_exec?max_turns=9")
    assert isinstance(env, CodeExec)
    await env.begin("train", 4)
    said = []
    for code in codes:
        (reply,) = await env.act(call("run_code", code=code.replace("SOLUTION", env.task.payload["solution"])))
        said.append(reply.content)
    await env.act(call("submit"))
    score = await env.score()
    await env.aclose()
    return env, said, score.reward


async def test_what_is_remembered_equals_what_was_run() -> None:
    first = await episode(["1/0", "x[99]", "SOLUTION"])
    hits = shared_expressions().memo.hits
    second = await episode(["1/0", "x[99]", "SOLUTION"])
    assert shared_expressions().memo.hits == hits + 4
    assert second[0]._box is None
    assert (
        (second[1], second[2])
        == (first[1], first[2])
        == (["fail: ZeroDivisionError", "fail: IndexError", "pass"], first[2])
    )
    assert second[0].isolation == first[0].isolation != ""
    await sandbox.close_shared()


async def test_a_session_that_was_changed_is_asked_itself() -> None:
    _, said, _ = await episode(["sum([1])", "sum = max", "sum([1, 2])"])
    known = shared_expressions().memo.hits
    _, changed, _ = await episode(["all = lambda v: SOLUTION", "all(x)"])
    assert said[1:] == ["no output", "fail: wrong"]
    assert changed[1] == "pass"
    assert shared_expressions().memo.hits == known
    await sandbox.close_shared()


async def test_a_name_of_a_comprehension_means_nothing_outside_it() -> None:
    _, said, _ = await episode(["[v for v in x] + [v]", "[[0 for given in []], given]", "SOLUTION"])
    assert said == ["fail: NameError", "fail: NameError", "pass"]
    await sandbox.close_shared()


async def test_what_goes_wrong_in_a_used_box_is_judged_in_a_fresh_child() -> None:
    expressions, tests = shared_expressions(), [CallTest(([1, 2],), 3)]
    assert (await expressions.judge("sum(x)", tests, Limits())).passed == (True,)
    box = expressions._box
    slow = "sum(1 for v in range(4 * 10**7)) - 4 * 10**7 + sum(x)"  # over the box's limit, within the program's own
    found = await expressions.judge(slow, tests, Limits(cpu_s=60, wall_s=100))
    assert (found.passed, found.error) == ((True,), "")
    assert expressions._box is not box
    for number in range(BOX_CALLS + 1):
        assert (await expressions.judge(f"sum(x) + {number} - {number}", tests, Limits())).passed == (True,)
    assert expressions._calls == 1  # a box is replaced before it is worn out
    await sandbox.close_shared()


async def test_one_that_hits_a_limit_spoils_no_other() -> None:
    _, said, reward = await episode(["[0] * 10**12", "sum(1 for v in range(10**12))", "SOLUTION"])
    assert said == ["fail: MemoryError", "fail: cpu limit", "pass"]
    assert reward > 0
    await sandbox.close_shared()


async def test_a_call_that_was_given_up_or_a_new_sandbox_costs_the_box_only() -> None:
    expressions, tests = shared_expressions(), [CallTest(([1, 2],), 3)]
    slow = asyncio.create_task(expressions.judge("sum([1 for v in range(10**9)])", tests, Limits(cpu_s=60, wall_s=60)))
    await asyncio.sleep(0.3)
    [running] = expressions.memo._running.values()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert (await expressions.judge("sum(x)", tests, Limits())).passed == (True,)
    await sandbox.close_shared()
    assert (await expressions.judge("sum(x) + 0", tests, Limits())).passed == (True,)
    await sandbox.close_shared()
