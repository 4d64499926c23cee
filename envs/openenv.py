"""`openenv`: an environment that an OpenEnv server plays, over its WebSocket protocol; no package is needed for that.

A session is one WebSocket at `/ws`. Requests are `{"type": "reset" | "step" | "close", "data": ...}`, answered with
`{"type": "observation", "data": {"observation", "reward", "done"}}` or with `{"type": "error", "data": {"code",
"message"}}`; `/schema` describes the actions. A server that hosts MCP tools lists them through an action of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np

from envs.registry import register
from envs.scoring import reward
from envs.tool_env import FormatError, InfrastructureError, ToolEnv
from envs.tools import Tool, foreign_tool
from rewards.compose import RewardError

ANSWER_TIMEOUT_S = 60.0
MAX_MESSAGE_BYTES = 100 << 20
REWARD_RANGE = (-1000.0, 1000.0)
SEEDS = 2**31


@register("openenv-v0", max_turns=32)
class OpenEnv(ToolEnv):
    """Play what the OpenEnv server at `url` plays: its actions are the tools, the sum of its rewards is the reward.

    A task is the seed that the server's `reset` gets: episodes of a group are the same only if it heeds the seed.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must be the server's http:// or https:// address, got {url!r}")
        self.url = url.rstrip("/")

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"seed": int(rng.integers(SEEDS))}

    async def start(self, task: dict[str, Any]) -> str:
        self.earned: list[float] = []
        self.done = False
        self._session = await self.hold(_connect(self.url))
        first = await self._session.ask("reset", {"seed": task["seed"]})
        self.add_tools(*await self._actions())
        self._note(first)
        if self.done:
            raise InfrastructureError(f"OpenEnv server {self.url}: the episode is over before it begins")
        return _text(first["observation"])

    async def _actions(self) -> list[Tool]:
        schema = self._session.action_schema
        fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        if "tool_name" in fields or not fields:
            listed = await self._session.ask("step", {"type": "list_tools"})
            return [self._mcp_tool(each) for each in listed["observation"]["tools"]]

        async def step(**action: Any) -> str:
            return await self._play(action)

        parameters = {key: value for key, value in schema.items() if key != "description"} | {"properties": fields}
        return [foreign_tool("step", schema.get("description", ""), parameters, step, 2 * ANSWER_TIMEOUT_S)]

    def _mcp_tool(self, described: dict[str, Any]) -> Tool:
        name = described["name"]

        async def run(**arguments: Any) -> str:
            return await self._play({"type": "call_tool", "tool_name": name, "arguments": arguments})

        return foreign_tool(name, described["description"], described["input_schema"], run, 2 * ANSWER_TIMEOUT_S)

    async def _play(self, action: dict[str, Any]) -> str:
        try:
            answer = await self._session.ask("step", action)
        except SessionEnded as error:
            return self.finish(str(error))  # with what was earned until then
        self._note(answer)
        text = _text(answer["observation"])
        return self.finish(text) if self.done else text

    def _note(self, answer: dict[str, Any]) -> None:
        if answer.get("reward") is not None:
            self.earned.append(float(answer["reward"]))
        self.done = bool(answer.get("done"))

    @reward(weight=1.0, range=REWARD_RANGE, name="reward")
    def sum_of_rewards(self) -> float:
        """What the server gave, step by step. An episode that it ended without ever saying a reward has none."""
        if self.done and not self.earned:
            raise RewardError(f"OpenEnv server {self.url} ended the episode without a reward")
        return sum(self.earned)


class _Session:
    """One session with a server."""

    def __init__(self, url: str, socket: aiohttp.ClientWebSocketResponse, action_schema: dict[str, Any]) -> None:
        self._url, self._socket = url, socket
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        self.action_schema = action_schema
        # Somebody must always read: pings are answered then, also while the model thinks.
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            self._answers.put_nowait(message.data if message.type is aiohttp.WSMsgType.TEXT else None)
        self._answers.put_nowait(None)

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The server's observation. Raises `FormatError` for an action that it refuses, `ActionFailure` for one whose
        execution raised there, and `InfrastructureError` for everything else."""
        try:
            await self._socket.send_json({"type": kind, "data": data})
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                text = await self._answers.get()
            if text is None:
                raise aiohttp.ClientError("closed")
            answer = json.loads(text)
            code, told = answer["type"], answer["data"]
        except TimeoutError as error:
            raise InfrastructureError(f"OpenEnv server {self._url}: silent for {ANSWER_TIMEOUT_S:g} s") from error
        except (aiohttp.ClientError, OSError, TypeError, ValueError, KeyError) as error:
            raise InfrastructureError(f"OpenEnv server {self._url}: the connection broke ({error})") from error
        if code == "observation" and "observation" in told:
            return told
        code, message = told.get("code", code), told.get("message", "")
        if kind == "step" and code == "VALIDATION_ERROR":
            raise FormatError(_complaints(told.get("errors")) or message)
        if kind == "step" and code == "EXECUTION_ERROR":
            raise ActionFailure(message)
        if kind == "step" and code == "SESSION_ERROR" and "serialize" in message:
            raise SessionEnded("the action was refused")  # by a validator, whose error the server cannot write
        hint = ": start it with a larger max_concurrent_envs" if code == "CAPACITY_REACHED" else ""
        raise InfrastructureError(f"OpenEnv server {self._url}: {code} {message}{hint}")


class SessionEnded(RuntimeError):
    """The server ended the session over what the model did."""


class ActionFailure(RuntimeError):
    """The server's environment raised while it executed an action: the model reads what."""


@asynccontextmanager
async def _connect(url: str) -> AsyncIterator[_Session]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        try:
            async with client.get(f"{url}/schema") as response:
                response.raise_for_status()
                action_schema = (await response.json())["action"]
            socket = await client.ws_connect(f"{url}/ws", max_msg_size=MAX_MESSAGE_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise InfrastructureError(f"OpenEnv server {url}: {type(error).__name__}: {error}") from error
        session = _Session(url, socket, action_schema)
        try:
            yield session
        finally:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await socket.send_json({"type": "close"})
                    await session.reading  # the server ends the session, and then the connection
                    await socket.close()
            except (aiohttp.ClientError, OSError, TimeoutError):  # it is gone already
                pass
            session.reading.cancel()


def _complaints(errors: Any) -> str:
    """Pydantic's list of errors as one line."""
    if not isinstance(errors, list):
        return ""
    return "; ".join(f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}" for each in errors)


def _text(observation: dict[str, Any]) -> str:
    """An observation as the model reads it: its only text, the result of an MCP tool, or JSON of what it says."""
    if isinstance(observation.get("error"), dict) and "tool_name" in observation:
        raise ActionFailure(str(observation["error"].get("message", observation["error"])))
    if "tool_name" in observation:
        return _result(observation.get("result"))
    said = {key: value for key, value in observation.items() if key != "metadata" and value is not None}
    values = list(said.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(said, ensure_ascii=False)


def _result(result: Any) -> str:
    """What an MCP tool returned, out of the form in which the server's library wraps it."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        texts = [part["text"] for part in result["content"] if isinstance(part, dict) and "text" in part]
        if texts:
            return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
