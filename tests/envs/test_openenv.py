"""Episodes on a real OpenEnv server, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

import envs
from envs import InfrastructureError, RewardError, Status, ToolEnv, call
from envs.check import check_gymnasium, check_tasks
from tests.servers import served

SERVER = Path(__file__).parent / "openenv_server.py"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with served(SERVER) as (url, _):
        yield url


async def said(env: ToolEnv, name: str, **arguments: object) -> str:
    (reply,) = await env.act(call(name, **arguments))
    return reply.content


async def test_an_episode_is_played_on_the_server(address: str) -> None:
    """Seeds are the tasks, the action's fields the tool's arguments, the rewards add up, and `done` terminates."""
    first, second = envs.make(f"openenv?url={address}"), envs.make(f"openenv?url={address}")
    assert [m.content for m in await first.begin("train", 3)] == ["Guess."]
    await second.begin("train", 4)  # a session of its own
    (spec,) = first.tools
    assert (spec.name, spec.description) == ("step", "Guess a number from 0 to 9.")
    assert list(spec.parameters["properties"]) == ["number", "why"]
    right = first.task.payload["seed"] % 10
    assert await said(first, "step", number=(right + 1) % 10) == "wrong"
    assert await said(first, "step", number="many") == (
        "format_error: number: Input should be a valid integer, unable to parse string as an integer"
    )
    assert await said(first, "step", number=99) == "tool_error: ActionFailure: 99 breaks it"
    assert await first.act(call("step", number=right, why="sure")) == []
    assert first.status is Status.TERMINATED
    score = await first.score()
    assert score.reward == pytest.approx(0.9)
    assert second.status is Status.RUNNING
    assert await said(second, "step", number=(second.task.payload["seed"] + 1) % 10) == "wrong"

    third, fourth = envs.make(f"openenv?url={address}"), envs.make(f"openenv?url={address}")
    await third.begin("train", 0)
    with pytest.raises(InfrastructureError, match="larger max_concurrent_envs"):
        await fourth.begin("train", 0)  # the server allows three
    for env in (first, second, third, fourth):
        await env.aclose()


async def test_the_checks_of_an_author_pass(address: str) -> None:
    findings = [*check_tasks(f"openenv?url={address}")]
    findings += await asyncio.to_thread(check_gymnasium, f"openenv?url={address}")
    assert [f for f in findings if f.verdict == "fail"] == []


async def test_a_connection_that_is_cut_is_a_fault_of_the_infrastructure(address: str) -> None:
    env = envs.make(f"openenv?url={address}")
    await env.begin("heldout", 0)
    with pytest.raises(InfrastructureError, match="the connection broke"):
        await env.act(call("step", number=100))
    await env.aclose()
    with pytest.raises(InfrastructureError, match="OpenEnv server"):
        await env.begin("heldout", 0)
    await env.aclose()


async def test_tools_that_a_server_lists_are_the_tools() -> None:
    async with served(SERVER, "tools") as (url, _):
        env = envs.make(f"openenv?url={url}")
        await env.begin("train", 0)
        (spec,) = env.tools
        assert (spec.name, spec.description) == ("add", "Add two numbers.")
        assert spec.parameters["required"] == ["a", "b"]
        assert await said(env, "add", a=2, b=3) == "5"
        assert (await said(env, "add", a="x", b=3)).startswith("tool_error: ActionFailure")
        await env.aclose()


class Odd:
    """What a server may do wrong, by the path it is asked at. It is no OpenEnv server."""

    def __init__(self) -> None:
        self.app = web.Application()
        self.app.router.add_get("/fails/schema", self.fails)
        for place in ("closes", "unscored"):
            self.app.router.add_get(f"/{place}/schema", self.schema)
            self.app.router.add_get(f"/{place}/ws", getattr(self, place))

    async def fails(self, request: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": {"properties": {"x": {"type": "integer"}}}})

    async def closes(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.close()
        return socket

    async def unscored(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            done = message.json()["type"] == "step"
            data = {"observation": {"board": [0, 1], "won": None}, "reward": None, "done": done}
            await socket.send_json({"type": "observation", "data": data})
        return socket


async def test_faults_of_a_server_are_never_a_reward() -> None:
    runner = web.AppRunner(Odd().app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        for place, fault in (("fails", "500"), ("closes", "the connection broke"), ("nowhere", "404")):
            env = envs.make(f"openenv?url={url}/{place}")
            with pytest.raises(InfrastructureError, match=fault):
                await env.begin("train", 0)
            await env.aclose()
        env = envs.make(f"openenv?url={url}/unscored")
        assert [m.content for m in await env.begin("train", 0)] == ['{"board": [0, 1]}']
        await env.act(call("step", x=1))
        assert env.status is Status.TERMINATED
        with pytest.raises(RewardError, match="without a reward"):
            await env.score()
        await env.aclose()
    finally:
        await runner.cleanup()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="url must be"):
        envs.make("openenv?url=localhost:8000")


async def test_an_illegal_move_does_not_let_the_model_out(address: str) -> None:
    """The server ends the session over a validator's refusal: the episode ends with what was earned."""
    env = envs.make(f"openenv?url={address}")
    await env.begin("train", 3)
    wrong = (env.task.payload["seed"] + 1) % 10
    assert await said(env, "step", number=wrong) == "wrong"
    await env.act(call("step", number=-1))
    assert env.status is not Status.RUNNING or env.counts["format_error"]
    assert (await env.score()).reward == pytest.approx(-0.1)
    await env.aclose()
