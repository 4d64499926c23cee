"""One sandbox for everything in a process, so that environments need no wiring."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from sandbox.local import LocalSandbox
from sandbox.protocol import Sandbox

BACKENDS = ("local", "docker")
_settings: dict[str, Any] = {}
_running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Sandbox]] = weakref.WeakKeyDictionary()


def create(backend: str = "local", slots: int = 2, **options: Any) -> Sandbox:
    """A sandbox, not yet started. `options` go to the backend. Raises `ValueError` for an unknown backend."""
    if backend == "local":
        return LocalSandbox(slots, **options)
    if backend == "docker":
        from sandbox.docker import DockerSandbox

        return DockerSandbox(slots, **options)
    raise ValueError(f"unknown sandbox backend {backend!r}; known: {', '.join(BACKENDS)}")


def configure(backend: str = "local", slots: int = 2, **options: Any) -> None:
    """What `shared` creates from now on. Sandboxes that already run stay as they are."""
    if backend not in BACKENDS:
        raise ValueError(f"unknown sandbox backend {backend!r}; known: {', '.join(BACKENDS)}")
    _settings.clear()
    _settings.update(options, backend=backend, slots=slots)


async def _started() -> Sandbox:
    sandbox = create(**_settings)
    await sandbox.start()
    return sandbox


async def shared() -> Sandbox:
    """The running event loop's sandbox, started on first use. Raises `SandboxError`; the next call tries again."""
    loop = asyncio.get_running_loop()
    task = _running.get(loop)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = _running[loop] = loop.create_task(_started())
    return await asyncio.shield(task)


async def close_shared() -> None:
    """End the running event loop's sandbox, if there is one."""
    task = _running.pop(asyncio.get_running_loop(), None)
    if task is None:
        return
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await task.result().aclose()
