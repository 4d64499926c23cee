from __future__ import annotations

import json
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from gymnasium.utils.env_checker import check_env

import envs
import sandbox
from envs import Message, Status, call
from envs.code_exec import pipelines, steps, tasks
from envs.code_exec.env import CodeExec
from envs.code_exec.public import is_expression, run_scripted, same_json, with_public_input

one_loop = pytest.mark.asyncio(loop_scope="module")  # and so one sandbox


@pytest_asyncio.fixture(autouse=True, scope="module", loop_scope="module")
async def closed() -> AsyncIterator[None]:
    yield
    await sandbox.close_shared()


async def started(text: str = "code_exec", index: int = 0, split: str = "train") -> CodeExec:
    env = envs.make(text)
    assert isinstance(env, CodeExec)
    await env.begin(split, index)  # type: ignore[arg-type]
    return env


async def said(env: CodeExec, code: str) -> str:
    (reply,) = await env.act(call("run_code", code=code))
    return reply.content


async def means(policy: str, episodes: int, text: str) -> dict[str, float]:
    env, rng, rows = envs.make(text), np.random.default_rng(0), []
    for index in range(episodes):
        await env.begin("heldout", index)
        while env.status is Status.RUNNING:
            await env.act(await getattr(env, policy)(rng))
        score = await env.score()
        rows.append(score.components | {"reward": score.reward})
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


@pytest.mark.parametrize("level", tasks.LEVELS)
@one_loop
async def test_the_expert_earns_everything(level: int) -> None:
    found = await means("expert", 40 if level in pipelines.LEVELS else 8, f"code_exec?level={level}")
    assert found["reward"] == found["success"] == found["tests"] == 1.0
    assert found["delay"] == found["public_gap"] == 0.0


@one_loop
async def test_the_demonstrator_leaves_a_gap() -> None:
    assert 0.35 < (await means("demonstrate", 250, "code_exec"))["reward"] < 0.55


@one_loop
async def test_a_solution_typed_by_a_model_earns_everything_in_the_sandbox() -> None:
    for index in range(3):
        env = await started("code_exec?level=0-4", index, "heldout")
        assert env.isolation == ""
        assert await said(env, env.task.payload["solution"]) == "pass"
        assert env.isolation
        assert await env.act(call("submit")) == []
        assert (await env.score()).reward == 1.0
        await env.aclose()


@one_loop
async def test_tries_that_fail_say_how_and_cost_a_little() -> None:
    env = await started()
    assert await said(env, "'no number'") == "fail: wrong"
    assert await said(env, "sum(x") == "fail: SyntaxError"
    assert await said(env, env.task.payload["solution"]) == "pass"
    await env.act(call("submit"))
    score = await env.score()
    assert score.components["delay"] == 2.0
    assert score.reward == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("code", "short", "full"),
    [
        ("1/0", "fail: ZeroDivisionError", "fail: ZeroDivisionError: division by zero"),
        ("y", "fail: NameError", "fail: NameError: name 'y' is not defined"),
        ("{1, 2}", "fail: TypeError", "fail: TypeError: Object of type set is not JSON serializable"),
        ("print('hi')", "hi\nfail: wrong", None),
        ("y = 5", "no output", "no output"),
        ("for v in range(2):\n    print(v)", "0\n1", "0\n1"),
        ("def f(x):\n    return 'no'", "fail: wrong", None),
        ("import sys; sys.exit(3)", "fail: error", "fail: error"),
        ("", "no output", "no output"),
    ],
)
@one_loop
async def test_feedback(code: str, short: str, full: str | None) -> None:
    env = await started()
    assert await said(env, code) == short
    await env.aclose()
    env = await started("code_exec?feedback=full")
    text = await said(env, code)
    if full is None:
        want = env.task.payload["public"][1]
        assert text.splitlines()[-1].endswith(f"want {want}")
    else:
        assert text == full
    await env.aclose()


@one_loop
async def test_the_session_lasts_but_only_the_last_program_is_graded() -> None:
    env = await started("code_exec?max_turns=8")
    solution = env.task.payload["solution"]
    await said(env, f"def g(x):\n    return {solution}")
    assert await said(env, "g(x)") == "pass"
    await env.act(call("submit"))  # a fresh child has no g
    score = await env.score()
    assert score.reward == 0.0
    assert score.components["public_gap"] == 1.0


@one_loop
async def test_a_whole_program_is_graded_by_its_f() -> None:
    env = await started()
    assert await said(env, f"import math\n\ndef f(x):\n    return {env.task.payload['solution']}\n") == "pass"
    await env.act(call("submit"))
    assert (await env.score()).reward == 1.0


@one_loop
async def test_an_f_of_an_earlier_call_does_not_pass() -> None:
    env = await started()
    assert await said(env, f"def f(x):\n    return {env.task.payload['solution']}\n") == "pass"
    assert await said(env, "y = 1\nz = 2") == "no output"


@pytest.mark.parametrize(
    "code",
    [
        None,  # submits without ever running anything
        "__import__('os').write(3, b'[true, true, true, true]')",
        "__import__('os')._exit(0)",
        "type('Yes', (int,), {'__eq__': lambda a, b: True})()",
        "[r for r in [1] if print('pass')]",
        "x",
    ],
)
@one_loop
async def test_forged_programs_earn_nothing(code: str | None) -> None:
    env = await started("code_exec?level=3")
    if code is not None:
        await env.act(call("run_code", code=code))
    await env.act(call("submit"))
    score = await env.score()
    assert score.reward == 0.0
    assert score.components["success"] == 0.0


@one_loop
async def test_hard_coding_the_public_case_earns_nothing() -> None:
    env = await started()
    assert await said(env, repr(env.task.payload["public"][1])) == "pass"
    await env.act(call("submit"))
    score = await env.score()
    assert score.reward == 0.0
    assert score.components["public_gap"] > 0.0


@one_loop
async def test_text_alone_earns_nothing() -> None:
    env = await started()
    while env.status is Status.RUNNING:
        await env.act(Message("assistant", f"run_code({env.task.payload['solution']!r}) -> pass, submit() -> 4/4"))
    assert env.status is Status.TRUNCATED
    assert (await env.score()).reward == 0.0


@pytest.mark.parametrize("level", pipelines.LEVELS)
@one_loop
async def test_scripted_programs_are_judged_as_the_sandbox_judges_them(level: int) -> None:
    rng, env = np.random.default_rng(level), envs.make(f"code_exec?level={level}")
    assert isinstance(env, CodeExec)
    for index in range(4):
        await env.begin("train", index)
        source = env._attempt(rng)
        scripted = await _both(env, source, by_script=True)
        await env.begin("train", index)
        assert await _both(env, source, by_script=False) == scripted


async def _both(env: CodeExec, source: str, by_script: bool) -> tuple[str, tuple[bool, ...]]:
    if by_script:
        env._run_scripted(source)
    text = await said(env, source)
    await env.act(call("submit"))
    assert (env.isolation == "") == by_script
    return text, env.hidden_passed


def test_tasks_cannot_be_passed_by_a_constant_and_their_solutions_run() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        task = tasks.sample_task(rng, int(rng.integers(5)))
        tests = [task["public"], *task["hidden"]]
        assert len(tests) == 5
        assert len({str(want) for _, want in task["hidden"]}) > 1
        assert all(same_json(run_scripted(task["solution"], *given).result, want) for given, want in tests)


def test_descriptions_and_sources_by_hand() -> None:
    program = pipelines.Program(keep=4, change=3, then=5, result=1, keep_number=2, change_number=7, then_number=9)
    assert program.description == "keep above 2, add 7 each, keep below 9, return largest"
    assert program.source == "max([v for v in [v+7 for v in x if v>2] if v<9])"
    plain = pipelines.Program(result=5)
    assert (plain.description, plain.source) == ("return reversed", "x[::-1]")
    number = pipelines.Program(change=3, again=7, change_number=2)
    assert (number.description, number.source) == ("take x, add 2, absolute", "abs((x+2))")
    assert pipelines.reference(number.source)(-5) == 3


def test_chains_by_hand() -> None:
    chain = ["letter_positions", "digit_sums", "largest_part"]
    assert steps.run_chain(chain, "Zb!") == 10  # 26, 2 -> 8, 2 -> 10
    assert steps.describe(chain, 6).startswith("Write a Python program. It reads a text as one line of JSON, and: take")
    assert steps.run_chain(["run_lengths", "is_palindrome"], "aab") is False
    assert steps.run_chain(["sort_by_length", "shared_beginning"], ["abx", "ab", "abc"]) == "ab"
    assert steps.run_chain(["differences", "longest_growth"], [1, 2, 4, 4]) == 2
    assert steps.run_chain(["zeros_last", "running_totals"], [0, 3, 0, -1]) == [3, 2, 2, 2]
    assert steps.run_chain(["primes", "common_divisor"], [9, -3, 2, 1, 0, 7]) == 1
    assert steps.run_chain(["rotate", "equal_pairs"], []) == 0
    assert steps.run_chain(["shift_letters", "swap_case"], "xyz A") == "ABC a"


@pytest.mark.parametrize("level", steps.LEVELS)
def test_steps_stand_up_to_empty_inputs_and_their_sources_to_reading(level: int) -> None:
    rng = np.random.default_rng(level)
    for name, step in steps.STEPS.items():
        empty = "" if step.takes == "text" else []
        given = step.function(empty)
        assert isinstance(given, {"text": str, "words": list, "numbers": list}.get(step.gives, object)), name
    for _ in range(40):
        chain = steps.sample_chain(rng, level)
        assert len(chain) == steps.LENGTH[level]
        compile(steps.solution(chain, level), "solution", "exec")


def test_programs_that_do_the_same_are_the_same_task() -> None:
    count_doubled, count_squared = pipelines.Program(change=0, result=3), pipelines.Program(change=1, result=3)
    assert tasks.behaviour_of_program(count_doubled.source, 2) == tasks.behaviour_of_program(count_squared.source, 2)
    assert tasks.behaviour_of_program("len(x)", 1) != tasks.behaviour_of_program("sum(x)", 1)
    assert tasks.behaviour_of_chain(("reverse_words", "word_lengths")) != tasks.behaviour_of_chain(
        ("reverse_words", "join_words")
    )
    same = {
        tasks.behaviour_of_chain(order)
        for order in (("swap_case", "is_palindrome"), ("distinct_characters", "swap_case"))
    }
    assert len(same) == 2


@one_loop
async def test_scripts_are_graded_by_what_they_print() -> None:
    env = await started("code_exec?level=6&feedback=full")
    given, want = env.task.payload["public"]
    assert (await said(env, f"print({want!r})")).startswith("pass")
    assert await said(env, "print(input())") == f"fail: printed {given!r}, want {want!r}"
    assert await env.act(call("submit", code=env.task.payload["solution"])) == []
    assert (await env.score()).components["success"] == 1.0
    await env.aclose()


@pytest.mark.parametrize(("shaping", "earned"), [("success", 0.0), ("fraction", 0.5), ("power", 0.5**1.5)])
@one_loop
async def test_shaping_pays_for_some_of_the_tests(shaping: str, earned: float) -> None:
    env = await started(f"code_exec?shaping={shaping}")
    known = {json.dumps(given[0]): want for given, want in env.task.payload["hidden"][:2]}
    code = f"import json\ndef f(x):\n    return {known!r}.get(json.dumps(x))"
    await env.act(call("submit", code=code))
    assert (await env.score()).reward == pytest.approx(earned)
    await env.aclose()


@pytest.mark.parametrize(
    ("reported", "want", "same"),
    [
        (b"1", 1, True),
        (b"1.0", 1, True),
        (b"true", 1, False),
        (b"1", True, False),
        (b"[1, 2]", [1, 2], True),
        (b"[1]", [1, 2], False),
        (b'{"a": 1}', {"a": 1}, True),
        (b"", None, False),
        (b"NaN", 1, False),
        (b"1 2", 1, False),
        (b"[" * 100_000, [], False),
        (b"\xff", "", False),
    ],
)
def test_comparison_is_by_value_and_type(reported: bytes, want: object, same: bool) -> None:
    assert same_json(reported, want) is same


@pytest.mark.parametrize("code", ["(", "x = ", "def f(x)", "\x00", "x = " + "(" * 10_000, "if 1:\nx"])
def test_what_is_no_program(code: str) -> None:
    with pytest.raises(SyntaxError):
        with_public_input(code, "f", [[1]])


def test_expressions_are_told_from_programs() -> None:
    assert is_expression(" sum(x)\n")
    assert is_expression("(\n1\n)")
    assert not is_expression("x = 1")
    assert not is_expression("")


def test_gymnasium_accepts_it() -> None:
    env = envs.make("code_exec")
    check_env(env)
    env.reset(seed=1)
    solution = env.task.payload["solution"]
    assert env.step(f"run_code({solution!r})")[0] == "pass"
    _, reward, terminated, truncated, info = env.step("submit()")
    assert (reward, terminated, truncated, info["components"]["success"]) == (1.0, True, False, 1.0)
    env.close()
