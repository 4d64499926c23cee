"""Nothing outlives a sandbox: not when it is closed, not when its process gets SIGKILL."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import sandbox
from sandbox import SandboxError
from sandbox.engine import owner, owner_is_gone

ROOT = Path(__file__).resolve().parents[2]
HOST = """
import asyncio, sandbox
async def main():
    box = await sandbox.shared()
    boxes = [await box.open() for _ in range(5)]
    daemon = "import os, time\\nfor _ in range(3):\\n  if os.fork() == 0:\\n    os.setsid()\\n    time.sleep(600)"
    await asyncio.gather(*(one.run(daemon) for one in boxes))
    running = asyncio.create_task(box.run("import time; time.sleep(600)", limits=sandbox.Limits(wall_s=600)))
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await running
asyncio.run(main())
"""


def _descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def _new(before: list[psutil.Process]) -> list[psutil.Process]:
    """This process's descendants apart from those that others had started `before`."""
    return [process for process in _descendants(os.getpid()) if process not in before]


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run. A zombie only waits for init to take note of its end."""
    alive = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def _groups(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/slipstream-{pid}-*"))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_one_second_after_the_host_is_killed_nothing_is_left(end: signal.Signals):
    mounts = Path("/proc/mounts").read_text()
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == "ready\n"
        left = _descendants(host.pid)
        assert len(left) >= 2 + 5 * 4  # launcher, zygote, and five boxes with three daemons each
    finally:
        host.send_signal(end)
        host.wait(10)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and _alive(left):
        time.sleep(0.02)
    assert _alive(left) == []
    while time.monotonic() < deadline + 1 and _groups(host.pid):
        time.sleep(0.02)
    assert _groups(host.pid) == []
    assert Path("/proc/mounts").read_text() == mounts


async def test_a_closed_sandbox_leaves_no_process_descriptor_or_group():
    before, groups = _descendants(os.getpid()), _groups(os.getpid())

    async def use() -> None:
        box = sandbox.create("local", slots=2)
        await box.start()
        state = await box.open()
        await state.run("import os, time\nif os.fork() == 0:\n    time.sleep(600)")
        await asyncio.gather(*(box.run("print(1)") for _ in range(6)))
        await box.aclose()
        await state.aclose()
        await box.aclose()
        with pytest.raises(SandboxError, match="closed"):
            await box.run("print(1)")

    await use()
    gc.collect()
    fds = len(os.listdir("/proc/self/fd"))
    await use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert _new(before) == []
    assert _groups(os.getpid()) == groups


async def test_closing_while_programs_run_ends_them():
    before = _descendants(os.getpid())
    box = sandbox.create("local", slots=2)
    await box.start()
    running = [asyncio.create_task(box.run("import time; time.sleep(600)")) for _ in range(4)]
    await asyncio.sleep(0.2)
    await box.aclose()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, SandboxError) for result in results), results
    assert _new(before) == []


async def test_the_shared_sandbox_is_one_and_starts_again_after_it_was_closed():
    sandbox.configure("local", slots=1)
    first, second = await asyncio.gather(sandbox.shared(), sandbox.shared())
    assert first is second
    assert (await first.run("print(1)")).stdout == b"1\n"
    await sandbox.close_shared()
    await sandbox.close_shared()
    third = await sandbox.shared()
    assert third is not first
    assert (await third.run("print(1)")).stdout == b"1\n"
    await sandbox.close_shared()


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="unknown sandbox backend 'dokcer'; known: local, docker"):
        sandbox.create("dokcer")
    with pytest.raises(ValueError, match="unknown sandbox backend"):
        sandbox.configure("nowhere")
    with pytest.raises(ValueError, match="wall_s must be above 0, got 0"):
        sandbox.Limits(wall_s=0)
    with pytest.raises(ValueError, match="slots must be at least 1"):
        sandbox.create("local", slots=0)


def test_owners_are_told_apart():
    assert not owner_is_gone(owner())
    host, pid, started = owner().split("/")
    assert pid == str(os.getpid())
    assert owner_is_gone(f"{host}/{pid}/{int(started) + 1}")
    assert owner_is_gone(f"{host}/4194399/1")
    assert not owner_is_gone("another-machine/1/1")
