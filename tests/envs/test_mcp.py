"""Tools of real MCP servers, in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs import InfrastructureError, ToolEnv, call, reward
from envs.mcp import mcp_tools
from tests.servers import served

SERVER = Path(__file__).parent / "mcp_server.py"
COMMAND = (sys.executable, str(SERVER))


class Counting(ToolEnv):
    """Counts on a server; started for each episode, or at an address."""

    def __init__(self, server: Any = COMMAND) -> None:
        self.server = server

    def sample_task(self, rng: Any) -> dict[str, Any]:
        return {"n": int(rng.integers(1 << 30))}

    async def start(self, task: dict[str, Any]) -> str:
        self.add_tools(*await self.hold(mcp_tools(self.server, env={"COLOUR": "red"})))
        return "Count."

    @reward
    def nothing(self) -> float:
        return 0.0


async def said(env: ToolEnv, name: str, **arguments: Any) -> str:
    (reply,) = await env.act(call(name, **arguments))
    return reply.content


async def test_a_server_of_its_own_for_each_episode() -> None:
    env, pids = Counting(), []
    for index in range(2):
        await env.begin("train", index)
        spec = env.tools[0]
        assert [each.name for each in env.tools] == ["count_up", "divide", "die"]
        assert spec.description == "Count up, from where this server was."
        assert spec.parameters["properties"]["by"]["description"] == "how far"
        assert (await said(env, "count_up", by=2)).startswith("2 of ")
        number, _, pid, colour = (await said(env, "count_up")).split()
        assert (number, colour) == ("3", "red")
        pids.append(int(pid))
    await asyncio.create_task(env.aclose())  # in another task than the one that began
    assert pids[0] != pids[1]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_what_the_model_does_wrong_is_told_to_it() -> None:
    env = Counting()
    await env.begin("train", 0)
    assert await said(env, "divide", a=1, b=4) == "0.25"
    assert (await said(env, "divide", a=1, b=0)).startswith("tool_error: ToolFailure: Error executing tool divide")
    assert "valid" in await said(env, "divide", a="much", b=1)
    assert (await said(env, "divide", a=1e308, b=1e-10)).startswith("tool_error: ToolFailure")  # not what it promised
    assert await said(env, "multiply") == "format_error: no tool 'multiply', call one of: count_up, divide, die"
    assert env.counts["ok"] == 1
    assert env.counts["tool_error"] + env.counts["format_error"] == 4
    await env.aclose()


async def test_a_server_that_dies_is_a_fault_of_the_infrastructure() -> None:
    env = Counting()
    await env.begin("train", 0)
    with pytest.raises(InfrastructureError, match=r"MCP server .*mcp_server.py' "):
        await env.act(call("die"))
    with pytest.raises(InfrastructureError, match="MCP server"):
        await env.act(call("count_up"))
    await env.aclose()


async def test_a_listening_server_is_shared() -> None:
    async with served(SERVER) as (address, process):
        first, second = Counting(f"{address}/mcp"), Counting(f"{address}/mcp")
        await first.begin("train", 0)
        await second.begin("train", 1)
        assert (await said(first, "count_up")).startswith(f"1 of {process.pid}")
        assert (await said(second, "count_up")).startswith(f"2 of {process.pid}")
        process.kill()
        await process.wait()
        with pytest.raises(InfrastructureError, match="MCP server 'http"):
            await first.act(call("count_up"))
        await first.aclose()
        await second.aclose()


async def test_servers_that_do_not_start_are_named() -> None:
    for server in ([sys.executable, "-c", "pass"], ["/nonexistent/server"]):
        env = Counting(server)
        with pytest.raises(InfrastructureError, match="MCP server"):
            await env.begin("train", 0)
        await env.aclose()
    with pytest.raises(ValueError, match="give a command as a list"):
        await Counting("python server.py").begin("train", 0)


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ValueError, match=r"slipstream-rl\[mcp\]"):
        await Counting().begin("train", 0)
