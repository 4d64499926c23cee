from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from envs import (
    FormatError,
    InfrastructureError,
    Message,
    RewardError,
    Score,
    Status,
    ToolCall,
    ToolEnv,
    call,
    reward,
    score_group,
    tool,
)
from sandbox import SandboxError


class Lab(ToolEnv):
    """An environment whose tools do everything that a tool may do."""

    max_turns = 6

    def sample_task(self, rng: Any) -> dict[str, Any]:
        return {"n": int(rng.integers(1 << 30)), "kind": "lab"}

    async def start(self, task: dict[str, Any]) -> str:
        self.n, self.seen, self.stopped, self.worth = task["n"], [], 0, 1.0
        return "go"

    async def stop(self) -> None:
        self.stopped += 1

    @tool
    async def echo(self, text: str, times: int = 1) -> str:
        self.seen.append(text)
        return text * times

    @tool
    async def end(self) -> str:
        return self.finish("over")

    @tool
    async def crash(self) -> str:
        raise KeyError("gone")

    @tool
    async def refuse(self) -> str:
        raise FormatError("not like this")

    @tool
    async def no_sandbox(self) -> str:
        raise SandboxError("slot died")

    @tool
    async def no_database(self) -> str:
        raise InfrastructureError("database died")

    @tool(timeout_s=0.05)
    async def hang(self) -> str:
        await asyncio.sleep(60)
        return ""

    @tool(timeout_s=0.05)
    def block(self) -> str:
        time.sleep(0.3)
        return "late"

    @tool
    def thread(self) -> str:
        return threading.current_thread().name

    @tool
    async def data(self) -> Any:
        return {"a": [1, None]}

    @tool
    async def rubbish(self) -> str:
        return "\ud800" + "x" * 100_000

    def helper(self) -> str:
        raise AssertionError("the model must not reach this")

    @reward(weight=1.0, range=(0, 2))
    def worth_it(self) -> float:
        return self.worth


async def started() -> Lab:
    env = Lab()
    assert await env.begin("train", 0) == [Message("user", "go")]
    return env


async def said(env: ToolEnv, message: Message) -> str:
    (reply,) = await env.act(message)
    return reply.content


@pytest.mark.parametrize(
    ("message", "reply", "counted"),
    [
        (call("echo", text="ab", times=2), "abab", "ok"),
        (call("data"), '{"a":[1,null]}', "ok"),
        (call("crash"), "tool_error: KeyError: 'gone'", "tool_error"),
        (call("refuse"), "format_error: not like this", "format_error"),
        (call("hang"), "timeout: hang took longer than 0.05 s", "timeout"),
        (call("block"), "timeout: block took longer than 0.05 s", "timeout"),
        (call("echo"), "format_error: Object missing required field `text`", "format_error"),
        (call("echo", text=5), "format_error: Expected `str`, got `int` - at `$.text`", "format_error"),
        (call("echo", text="a", times=True), "format_error: Expected `int`, got `bool` - at `$.times`", "format_error"),
        (call("echo", text="a", self=1), "format_error: Object contains unknown field `self`", "format_error"),
        (
            Message("assistant", "", tool_calls=(ToolCall("?", error="bad JSON"),)),
            "format_error: bad JSON",
            "format_error",
        ),
    ],
)
async def test_what_the_model_does_is_answered(message: Message, reply: str, counted: str) -> None:
    env = await started()
    assert await said(env, message) == reply
    assert env.counts == {counted: 1}
    assert env.status is Status.RUNNING


@pytest.mark.parametrize(
    "name", ["close", "reset", "aclose", "finish", "helper", "_call", "__init__", "worth_it", "nope"]
)
async def test_only_tools_can_be_called(name: str) -> None:
    env = await started()
    assert (await said(env, call(name))).startswith(f"format_error: no tool '{name}'")
    assert env.labels == (() if name == "nope" else ("called_a_method_that_is_no_tool",))
    assert env.status is Status.RUNNING
    assert env.stopped == 0


@pytest.mark.parametrize(("name", "error"), [("no_sandbox", SandboxError), ("no_database", InfrastructureError)])
async def test_faults_of_the_infrastructure_propagate(name: str, error: type[Exception]) -> None:
    env = await started()
    with pytest.raises(error, match="died"):
        await env.act(call(name))


async def test_sync_tools_leave_the_event_loop_free() -> None:
    env = await started()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await env.act(call("block"))
    ticking.cancel()
    assert ticks >= 3
    assert (await said(env, call("thread"))).startswith("tool ")


async def test_a_reply_without_a_call_is_told_so() -> None:
    env = await started()
    (reply,) = await env.act(Message("assistant", "I think it is 5."))
    assert reply.role == "user"
    assert reply.content.startswith("format_error: call a tool: echo, end")
    assert env.counts["format_error"] == 1


async def test_what_answers_text_is_guarded_too() -> None:
    class Chatty(Lab):
        async def on_text(self, text: str) -> str:
            return {"hi": "hello"}[text]

    env = Chatty()
    await env.begin()
    assert [await said(env, Message("assistant", text)) for text in ("hi", "ho")] == [
        "hello",
        "tool_error: KeyError: 'ho'",
    ]
    assert env.counts == {"ok": 1, "tool_error": 1}


async def test_calls_run_in_order_until_the_end() -> None:
    env = await started()
    calls = (ToolCall("echo", {"text": "a"}, "1"), ToolCall("end", id="2"), ToolCall("echo", {"text": "b"}, "3"))
    assert await env.act(Message("assistant", "", tool_calls=calls)) == []
    assert env.seen == ["a"]
    assert [(reply.content, reply.tool_call_id) for reply in env.closing] == [("a", "1"), ("over", "2")]
    assert (env.status, env.num_turns, env.num_moves) == (Status.TERMINATED, 1, 2)
    with pytest.raises(ValueError, match="over"):
        await env.act(call("echo", text="c"))


async def test_too_many_calls_in_one_reply_are_refused() -> None:
    env = await started()
    replies = await env.act(Message("assistant", "", tool_calls=(ToolCall("echo", {"text": "a"}),) * 20))
    assert [reply.content for reply in replies[:16]] == ["a"] * 16
    assert all(reply.content.startswith("format_error: more than 16 calls") for reply in replies[16:])


async def test_results_are_valid_unicode_of_bounded_length() -> None:
    text = await said(await started(), call("rubbish"))
    text.encode()
    assert len(text) < 17_000
    assert "characters left out" in text


def area(width: float, height: float = 1.0) -> float:
    """The area of a rectangle.

    Args:
        width: in metres.
    """
    return width * height


class Handed(Lab):
    """Its tools are functions: one for good, and one of each episode."""

    def __init__(self) -> None:
        self.add_tools(area)

    async def start(self, task: dict[str, Any]) -> str:
        async def secret(again: bool = False) -> str:
            return f"{task['n']}{again}"

        self.add_tools(secret)
        return await super().start(task)


async def test_functions_with_type_hints_are_tools() -> None:
    env = Handed()
    assert "secret" not in [spec.name for spec in env.tools]
    for index in range(2):
        await env.begin("train", index)
        area_spec, secret_spec = env.tools[-2:]
        assert (area_spec.description, secret_spec.name) == ("The area of a rectangle.", "secret")
        assert area_spec.parameters["required"] == ["width"]
        assert area_spec.parameters["properties"]["width"] == {"type": "number", "description": "in metres."}
        assert await said(env, call("area", width=2.5)) == "2.5"
        assert await said(env, call("area", width="wide")) == "format_error: Expected `float`, got `str` - at `$.width`"
        assert await said(env, call("secret", again=True)) == f"{env.n}True"
    assert "area" not in [spec.name for spec in Lab().tools]
    with pytest.raises(TypeError, match="two tools called 'area'"):
        env.add_tools(area)
    with pytest.raises(TypeError, match="not a tool name"):
        env.add_tools(lambda x: x)


async def test_start_may_not_replace_what_is_kept() -> None:
    class Counting(Lab):
        async def start(self, task: dict[str, Any]) -> str:
            self.counts = [1, 2]  # type: ignore[assignment]
            return "go"

    with pytest.raises(TypeError, match=r"Counting.start sets self\.counts"):
        await Counting().begin()


async def test_truncation_is_not_termination() -> None:
    env = await started()
    env.truncate("tokens")
    assert env.status is Status.TRUNCATED
    env.finish()
    assert env.status is Status.TRUNCATED
    assert (await env.score()).reward == 1.0


async def test_an_episode_is_stopped_once() -> None:
    env = await started()
    await env.aclose()
    await env.aclose()
    assert env.stopped == 1
    await env.begin("train", 1)
    first, env.stopped = env.stopped, 0
    assert first == 0  # `start` set it anew
    await env.begin("train", 2)
    await env.aclose()
    assert env.stopped == 1


@pytest.mark.parametrize("name", ["close", "score", "act", "status", "values"])
def test_a_tool_or_reward_may_not_replace_what_runners_call(name: str) -> None:
    with pytest.raises(TypeError, match=f"Bad.{name} is a method of ToolEnv"):
        type("Bad", (ToolEnv,), {name: reward(lambda self: 1.0)})


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), -float("inf"), 2.5, -1, "much", None])
async def test_an_impossible_reward_is_an_error_and_not_zero(worth: Any) -> None:
    env = await started()
    await env.act(call("end"))
    env.worth = worth
    with pytest.raises(RewardError, match="worth_it"):
        await env.score()


async def test_a_running_episode_has_no_score() -> None:
    env = await started()
    with pytest.raises(RewardError, match="running"):
        await env.score()


class Scopes(Lab):
    @reward(weight=0.5, scope="step", range=(0, 1))
    async def spoke(self) -> float:
        return float(len(self.seen) == self.num_turns)

    @reward(weight=1.0, scope="group", range=(-1, 1))
    def above_mean(group: list[Scopes]) -> list[float]:  # type: ignore[misc]
        mean = sum(each.num_turns for each in group) / len(group)
        return [each.num_turns - mean for each in group]

    @reward(weight=0.0)
    def broken_metric(self) -> float:
        return 1 / (self.num_turns - 4)


async def play(env: ToolEnv, turns: int) -> ToolEnv:
    await env.begin("train", 5)
    for _ in range(turns - 1):
        await env.act(call("echo", text="x"))
    await env.act(call("end"))
    return env


async def test_step_rewards_add_up_and_group_rewards_compare() -> None:
    group = [await play(Scopes(), 2), await play(Scopes(), 3), await play(Scopes(), 4)]
    first, second, third = await score_group(group)
    assert isinstance(third, RewardError)  # its metric divides by zero; it leaves the group
    assert isinstance(first, Score)
    assert isinstance(second, Score)
    assert first.components == {"worth_it": 1.0, "spoke": 1.0, "above_mean": -0.5, "broken_metric": -0.5}
    assert first.reward == pytest.approx(1.0 + 0.5 * 1.0 - 0.5)
    assert second.reward == pytest.approx(1.0 + 0.5 * 2.0 + 0.5)
    assert "above_mean" not in (await group[0].score()).components


async def test_a_failing_group_reward_takes_every_score() -> None:
    class Failing(Lab):
        @reward(scope="group")
        def ranks(group: list[Failing]) -> list[float]:  # type: ignore[misc]
            return [1.0]

    scores = await score_group([await play(Failing(), 2), await play(Failing(), 2)])
    assert [type(score) for score in scores] == [RewardError, RewardError]


async def test_the_gymnasium_rewards_add_up_to_the_score() -> None:
    env = Scopes()

    def episode() -> tuple[float, dict[str, float]]:
        env.reset(seed=3)
        steps = [env.step("echo('x')"), env.step("echo('x')"), env.step("end()")]
        env.close()
        assert [step[2] for step in steps] == [False, False, True]
        return sum(step[1] for step in steps), steps[-1][4]["components"]

    total, components = await asyncio.to_thread(episode)
    assert total == pytest.approx(1.0 + 0.5 * 2)
    assert components["spoke"] == 2.0
