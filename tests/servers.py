"""Servers in processes of their own, for tests of what talks to them."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

START_S = 60.0


@asynccontextmanager
async def served(program: Path, *arguments: str) -> AsyncIterator[tuple[str, Process]]:
    """Run a Python program that listens on the port that is its first argument; its address once it does so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), str(port), *arguments)
    try:
        async with asyncio.timeout(START_S):
            while not await _listens(port):
                assert process.returncode is None, f"{program.name} ended with status {process.returncode}"
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
