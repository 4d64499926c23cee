"""A real MCP server for the tests, over stdio, or over streamable HTTP on the port that is its only argument."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from pydantic import Field

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # before version 2
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("counter")
count = 0


@server.tool(name="count-up")
def count_up(by: Annotated[int, Field(description="how far")] = 1) -> str:
    """Count up, from where this server was."""
    global count  # noqa: PLW0603
    count += by
    return f"{count} of {os.getpid()} {os.environ.get('COLOUR')}"


@server.tool()
def divide(a: float, b: float) -> float:
    """Divide a by b."""
    return a / b


@server.tool()
def die() -> str:
    """End the server's process."""
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run()
    else:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="error")
