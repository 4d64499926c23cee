from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

import sandbox
from sandbox import Sandbox
from tests.sandbox.engine import docker_host  # noqa: F401


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[Sandbox]:
    box = sandbox.create("local", slots=2)
    await box.start()
    yield box
    await box.aclose()
