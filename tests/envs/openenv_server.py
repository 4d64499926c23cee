"""A real OpenEnv server for the tests, on the port that is its argument: `tools` as second argument hosts MCP tools."""

from __future__ import annotations

import os
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator


class Guess(Action):
    """Guess a number from 0 to 9."""

    number: int
    why: str = ""

    @field_validator("number")
    @classmethod
    def is_a_guess(cls, number: int) -> int:
        if number < 0:
            raise ValueError("below 0")
        return number


class Seen(Observation):
    text: str


class Guessing(Environment):
    """The number comes from the seed; a guess of 99 raises, one of 100 ends the server's process."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Seen:
        self.number = (seed or 0) % 10
        self.count = 0
        return Seen(text="Guess.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Seen:
        self.count += 1
        if action.number == 99:
            raise RuntimeError("99 breaks it")
        if action.number == 100:
            os._exit(1)
        right = action.number == self.number
        return Seen(text="right" if right else "wrong", reward=1.0 if right else -0.1, done=right)

    @property
    def state(self) -> State:
        return State(step_count=self.count)


def with_tools() -> Any:
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    class Tools(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = FastMCP("tools")

            @server.tool
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            super().__init__(server)

        def reset(self, seed: int | None = None, **more: Any) -> Observation:
            return Observation(metadata={})

        def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
            raise NotImplementedError

        @property
        def state(self) -> State:
            return State()

    return create_fastapi_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=8)


if __name__ == "__main__":
    app = with_tools() if "tools" in sys.argv else create_fastapi_app(Guessing, Guess, Seen, max_concurrent_envs=3)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
