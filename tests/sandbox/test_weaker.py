"""Where namespaces are forbidden the start fails and says what to do; weaker modes need to be asked for by name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sandbox
from sandbox import linux
from tests.sandbox.as_user import run_as_user

ROOT = Path(__file__).resolve().parents[2]
START = """
import asyncio, sandbox
try:
    asyncio.run(sandbox.create("local").start())
except sandbox.SandboxError as error:
    print(error)
"""
PLAY = """
import asyncio, json, os, sandbox
TRIES = '''
import json, os, socket, sys
seen = []
for path in ("/etc/passwd", "/proc/1/cmdline", "/tmp", SECRET):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read()
        seen.append(path)
    except OSError:
        pass
for act in (lambda: socket.socket(), lambda: os.kill(os.getppid(), 0), lambda: open(SECRET + "2", "w")):
    try:
        act()
        seen.append("acted")
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(60)
    os._exit(0)
os.wait()
print(json.dumps(seen))
'''
def mine(folder, prefix):
    return {name for name in os.listdir(folder) if name.startswith(prefix) and owner(f"{folder}/{name}") == os.getuid()}
def owner(path):
    try:
        return os.stat(path).st_uid
    except OSError:
        return None
async def main():
    folders, processes = mine("/tmp", "slipstream-"), mine("/proc", "")
    with open("/tmp/secret-of-a-test", "w") as file:
        file.write("secret")
    box = sandbox.create("local", isolation=ISOLATION)
    await box.start()
    tries = await box.run(TRIES.replace("SECRET", "'/tmp/secret-of-a-test'"))
    loop = await box.run("while True: pass", limits=sandbox.Limits(wall_s=0.5))
    memory = await box.run("x = [bytearray(1 << 20) for _ in range(900)]", limits=sandbox.Limits(memory_bytes=64 << 20))
    state = await box.open()
    await state.run("x = 1")
    kept = await state.run("print(x)")
    await box.aclose()
    print(json.dumps({
        "isolation": tries.isolation, "seen": json.loads(tries.stdout), "loop": loop.limits_hit,
        "memory": memory.limits_hit, "kept": kept.stdout.decode(),
        "folders": sorted(mine("/tmp", "slipstream-") - folders), "processes": sorted(mine("/proc", "") - processes),
    }))
    for name in ("", "2"):
        if os.path.exists("/tmp/secret-of-a-test" + name):
            os.remove("/tmp/secret-of-a-test" + name)
asyncio.run(main())
"""


def test_a_machine_without_namespaces_is_told_what_to_set():
    script = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {sys.executable} -c '{START}'"
    ran = subprocess.run(
        ["unshare", "-U", "-r", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "the embedded sandbox cannot start" in ran.stdout, ran.stderr
    assert "sysctl -w user.max_user_namespaces=10000" in ran.stdout
    assert 'backend="docker"' in ran.stdout


def test_an_unknown_isolation_is_refused():
    with pytest.raises(ValueError, match="unknown isolation 'weak'; known: namespaces, landlock, none"):
        sandbox.create("local", isolation="weak")


@pytest.mark.parametrize("isolation", ["landlock", "none"])
def test_a_weaker_mode_says_so_in_every_result(isolation: str):
    if isolation == "landlock" and not linux.landlock_version():
        pytest.skip("this kernel has no Landlock")
    found = json.loads(run_as_user("-c", f"ISOLATION = {isolation!r}\n{PLAY}").splitlines()[-1])
    assert found["isolation"] == isolation
    assert found["loop"] == ["wall"]
    assert found["memory"] == ["memory"]
    assert found["kept"] == "1\n"
    assert found["folders"] == []
    assert found["processes"] == []
    if isolation == "landlock":
        assert found["seen"] == [] if linux.landlock_version() >= 6 else ["acted"]
    else:
        assert "/etc/passwd" in found["seen"]


def test_the_probe_prints_a_table():
    ran = subprocess.run(
        [sys.executable, "-m", "sandbox", "probe"], cwd=ROOT, env={**os.environ, "COLUMNS": "160", "DOCKER_HOST": "unix:///nowhere"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {line.split("│")[2].strip(): line for line in ran.stdout.splitlines() if line.count("│") >= 5}
    assert {"machine", "namespaces", "seccomp", "landlock", "memory bound", "process bound"} <= rows.keys()
    assert "yes" in rows["backend local"].split("│")[1]
    assert "no" in rows["backend docker"].split("│")[1]
    assert "DOCKER_HOST" in rows["backend docker"]
    usage = subprocess.run(
        [sys.executable, "-m", "sandbox"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (usage.returncode, usage.stderr) == (2, "usage: python -m sandbox probe\n")


def test_findings_name_a_fix_exactly_where_something_is_wrong():
    from sandbox.probe import probe

    for finding in asyncio.run(probe()):
        assert bool(finding.fix) != finding.works, finding
