"""Tools of an MCP server (Model Context Protocol) as an environment's tools.

In `start`: `self.add_tools(*await self.hold(mcp_tools([sys.executable, "server.py"])))`. The names, descriptions and
schemas are the server's. What a tool of the server reports as its error is a `tool_error:` that the model reads; a
server that is gone, or that breaks the protocol, is an `InfrastructureError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from envs.tool_env import FormatError, InfrastructureError
from envs.tools import DEFAULT_TIMEOUT_S, Tool, foreign_tool

if TYPE_CHECKING:
    from mcp import ClientSession

CONNECT_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
MAX_PAGES = 100  # of a server's list of tools
_CLOSED = -32000  # what the library calls a connection that is gone
_BAD_CALL = (-32601, -32602)  # JSON-RPC's "method not found" and "invalid params": what the model asked for


@asynccontextmanager
async def mcp_tools(
    server: str | Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
) -> AsyncIterator[list[Tool]]:
    """The tools of `server`: the address of one that listens (streamable HTTP), or the command that starts one (stdio).

    A command's process gets the variables `env` beside a few common ones, and ends with this context. Raises
    `ValueError` without the mcp package, `InfrastructureError` for a server that does not start or answer.
    """
    if isinstance(server, str) and not server.startswith(("http://", "https://")):
        raise ValueError(f"{server!r} is not an address; give a command as a list: {server.split()}")
    connection = _Connection(server, dict(env or {}))
    try:
        yield await connection.tools(timeout_s)
    finally:
        await connection.aclose()


class _Connection:
    """A session with a server, in a task of its own: the library must be closed in the task that opened it."""

    def __init__(self, server: str | Sequence[str], env: dict[str, str]) -> None:
        try:
            import mcp
        except ImportError as error:
            raise ValueError("MCP tools need the mcp package: pip install 'slipstream-rl[mcp]'") from error
        self._mcp = mcp
        self._server, self._env = server, env
        self._name = server if isinstance(server, str) else " ".join(server)
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            streams = await stack.enter_async_context(self._transport())
            session = await stack.enter_async_context(self._mcp.ClientSession(*streams[:2]))
            await session.initialize()
            self._session.set_result(session)
            await self._closing.wait()

    def _transport(self) -> Any:
        if isinstance(self._server, str):
            from mcp.client.streamable_http import streamable_http_client

            return streamable_http_client(self._server)
        command, *arguments = self._server
        return self._mcp.stdio_client(
            self._mcp.StdioServerParameters(command=command, args=arguments, env=self._env or None)
        )

    async def tools(self, timeout_s: float) -> list[Tool]:
        started: set[asyncio.Future[Any]] = {self._session, self._task}
        await asyncio.wait(started, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._session.done():
            raise self._gone("did not start" if self._task.done() else f"was silent for {CONNECT_TIMEOUT_S:g} s")
        found: list[Tool] = []
        cursor = None
        for _ in range(MAX_PAGES):
            params = self._mcp.types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._ask(self._session.result().list_tools(params=params), CONNECT_TIMEOUT_S)
            except _Answered as error:
                raise self._gone(f"does not list its tools ({error})") from error
            found += [self._tool(each, timeout_s) for each in page["tools"]]
            cursor = page.get("nextCursor")
            if not cursor:
                return found
        raise InfrastructureError(f"MCP server {self._name!r} lists its tools on more than {MAX_PAGES} pages")

    def _tool(self, described: dict[str, Any], timeout_s: float) -> Tool:
        name = described["name"]

        async def run(**arguments: Any) -> str:
            try:
                result = await self._ask(self._session.result().call_tool(name, arguments), timeout_s)
            except _Answered as error:
                raise ToolFailure(str(error)) from error
            text = _text(result)
            if result.get("isError"):
                raise ToolFailure(text)
            return text

        return foreign_tool(name, described.get("description") or "", described["inputSchema"], run, timeout_s)

    async def _ask(self, request: Any, timeout_s: float) -> dict[str, Any]:
        """The answer to `request` as JSON data. Raises `FormatError`, `_Answered`, `InfrastructureError`,
        `TimeoutError`."""
        asking = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asking, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result().model_dump(mode="json", by_alias=True, exclude_none=True)
            if self._task.done():
                raise self._gone("closed the connection")
            raise TimeoutError(f"MCP server {self._name!r} did not answer within {timeout_s:g} s")
        except (InfrastructureError, TimeoutError):
            raise
        except Exception as error:  # the boundary to the library, whose errors differ between its versions
            fault = getattr(error, "error", None)  # what the server answered
            if getattr(fault, "code", 0) in _BAD_CALL:
                raise FormatError(str(error)) from error
            alive = not self._task.done() and getattr(fault, "code", 0) != _CLOSED
            if alive and (fault is not None or isinstance(error, RuntimeError)):
                raise _Answered(str(error)) from error
            raise self._gone(f"failed ({type(error).__name__}: {error})") from error
        finally:
            asking.cancel()

    def _gone(self, why: str) -> InfrastructureError:
        cause = ""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()):
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            cause = f": {type(error).__name__}: {error}"
        return InfrastructureError(f"MCP server {self._name!r} {why}{cause}")

    async def aclose(self) -> None:
        """End the session, and the server's process. What goes wrong then changes nothing about the episode."""
        self._closing.set()
        await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S if self._session.done() else 0)
        self._task.cancel()
        await asyncio.wait({asyncio.gather(self._task, return_exceptions=True)}, timeout=CLOSE_TIMEOUT_S)


class _Answered(RuntimeError):
    """The server lives, and answered with an error, or with a result that is not what it promised."""


class ToolFailure(RuntimeError):
    """A tool of the server says that it failed: the model reads why."""


def _text(result: dict[str, Any]) -> Any:
    """What the model reads: the texts, else the structured result, with a word for content that is no text."""
    parts = [part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in result.get("content", [])]
    return "\n".join(parts) if parts else result.get("structuredContent", "")
