"""The Docker Engine backend, against a real engine."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
import pytest_asyncio

import sandbox
from sandbox import Limits, Sandbox, SandboxError
from sandbox.engine import LABEL, owner_is_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_bytes=128 << 20, pids=24)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(docker_host: str) -> AsyncIterator[Sandbox]:
    made = sandbox.create("docker", slots=2, host=docker_host, limits=LIMITS)
    await made.start()
    yield made
    await made.aclose()


def _containers(host: str) -> list:
    with closing(docker.DockerClient(host)) as client:
        return client.containers.list(all=True, filters={"label": LABEL})


async def test_streams_result_and_exit_code_come_back(box: Sandbox):
    source = """
import os, sys
print(sys.stdin.read().upper())
print("e", file=sys.stderr)
os.write(3, b"r")
sys.exit(5)
"""
    result = await box.run(source, stdin=b"abc")
    assert (result.exit_code, result.stdout, result.stderr, result.result) == (5, b"ABC\n", b"e\n", b"r")
    assert (result.backend, result.isolation) == ("docker", "container:runc")
    assert 0 < result.cpu_s < 2
    assert result.max_rss_bytes > 1 << 20


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("import time; time.sleep(20)", "wall"),
        ("while True: pass", "cpu"),
        ("data = bytearray(1 << 30)", "memory"),
        ("while True: print('x' * 999)", "stdout"),
        ("import os\nwhile True: os.write(3, b'x' * 999)", "result"),
    ],
)
async def test_a_limit_ends_the_program_and_is_named(box: Sandbox, source: str, limit: str):
    limits = Limits(
        wall_s=0.5 if limit == "wall" else 8.0, cpu_s=0.3 if limit == "cpu" else 6.0, memory_bytes=64 << 20, pids=24
    )
    result = await box.run(source, limits=limits)
    assert result.limits_hit == (limit,)
    assert len(result.stdout) <= limits.stdout_bytes
    assert len(result.result) <= limits.result_bytes


async def test_memory_in_many_processes_is_reported_as_memory(box: Sandbox):
    source = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        data = b"x" * (60 << 20)
        time.sleep(20)
os.wait()
time.sleep(20)
"""
    result = await box.run(source, limits=Limits(wall_s=3.0, memory_bytes=128 << 20, pids=24))
    assert "memory" in result.limits_hit
    assert (await box.run("print(1)")).stdout == b"1\n"


async def test_a_box_keeps_state_and_gives_its_container_back_clean(box: Sandbox):
    state = await box.open()
    assert (await state.run("x = 1\nopen('/tmp/note', 'w').write('kept')")).exit_code == 0
    assert (await state.run("print(x, open('/tmp/note').read())")).stdout == b"1 kept\n"
    assert (await state.run("1 / 0")).exit_code == 1
    assert (await state.run("import os; os._exit(3)")).exit_code == 3
    assert (await state.run("print('x' in globals(), __import__('os').listdir('/tmp'))")).stdout == b"False []\n"
    assert state.restarted is True
    await state.aclose()
    results = await asyncio.gather(*(box.run("import os; print(os.listdir('/tmp'))") for _ in range(4)))
    assert {result.stdout for result in results} == {b"['main.py']\n"}


async def test_the_container_is_hardened(box: Sandbox, docker_host: str):
    config = _containers(docker_host)[0].attrs["HostConfig"]
    assert config["NetworkMode"] == "none"
    assert config["ReadonlyRootfs"] is True
    assert config["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in config["SecurityOpt"]
    assert config["Memory"] == config["MemorySwap"] > 0
    assert config["PidsLimit"] > 0
    source = """
import os, socket
masked = ("/proc/keys", "/proc/kcore", "/proc/cmdline")
seen = [name for name in masked if os.access(name, os.R_OK) and open(name).read(1)]
for pid in (1, os.getppid()):
    for name in ("environ", "mem", "maps"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            seen.append((pid, name))
        except OSError:
            pass
for family in (socket.AF_INET, socket.AF_UNIX, 40, 16):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        seen.append(family)
    except OSError:
        pass
print(seen, os.getuid() >= 20000, os.getgroups())
"""
    assert (await box.run(source)).stdout == b"[] True []\n"


async def test_a_dead_container_is_replaced(box: Sandbox, docker_host: str):
    for container in _containers(docker_host):
        container.kill()
    assert (await box.run("print(1)")).stdout == b"1\n"


async def test_more_than_the_containers_have_is_refused(box: Sandbox):
    with pytest.raises(ValueError, match="memory_bytes is above"):
        await box.run("pass", limits=Limits(memory_bytes=1 << 30))


async def test_single_use_containers(docker_host: str):
    single = sandbox.create("docker", slots=1, host=docker_host, limits=LIMITS, warm=False)
    await single.start()
    before = len(_containers(docker_host))
    assert (await single.run("print(1)")).stdout == b"1\n"
    assert len(_containers(docker_host)) == before
    await single.aclose()


async def test_faults_of_the_engine_are_explained(docker_host: str):
    with pytest.raises(SandboxError, match="no Docker Engine at unix:///nowhere"):
        await sandbox.create("docker", host="unix:///nowhere").start()
    with pytest.raises(SandboxError, match="has no image 'nowhere/none:1'; it is not pulled"):
        await sandbox.create("docker", host=docker_host, image="nowhere/none:1").start()
    with pytest.raises(SandboxError, match="runsc-missing"):
        await sandbox.create("docker", host=docker_host, runtime="runsc-missing").start()


async def test_an_image_without_python_is_a_clear_error(docker_host: str):
    with closing(docker.DockerClient(docker_host)) as client:
        client.api.import_image_from_data(_empty_tar(), repository="slipstream-test-empty", tag="1")
    with pytest.raises(SandboxError, match="python3"):
        await sandbox.create("docker", host=docker_host, image="slipstream-test-empty:1").start()


def _empty_tar() -> bytes:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc/nothing"))
    return buffer.getvalue()


async def test_what_a_killed_owner_left_is_removed_by_the_next_start(docker_host: str):
    source = (
        "import asyncio, sandbox, sys\n"
        "async def main():\n"
        f"    box = sandbox.create('docker', slots=1, host={docker_host!r})\n"
        "    await box.start()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, cwd=ROOT, text=True)  # noqa: ASYNC220
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert any(owner_is_gone(container.labels[LABEL]) for container in _containers(docker_host))
    again = sandbox.create("docker", slots=1, host=docker_host, limits=LIMITS)
    await again.start()
    await again.aclose()
    assert not any(owner_is_gone(container.labels[LABEL]) for container in _containers(docker_host))


async def test_closing_removes_every_container(docker_host: str):
    made = sandbox.create("docker", slots=2, host=docker_host, limits=LIMITS)
    before = {container.id for container in _containers(docker_host)}
    await made.start()
    await (await made.open()).run("x = 1")
    await made.aclose()
    assert {container.id for container in _containers(docker_host)} <= before
