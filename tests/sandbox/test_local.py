"""The embedded backend: what a program gets, what ends it, and what is left of it."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time

import pytest

import sandbox
from sandbox import Limits, Sandbox, SandboxError

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_streams_result_and_exit_code_come_back(local: Sandbox):
    source = """
import os, sys
print(sys.stdin.read().upper())
print("e", file=sys.stderr)
os.write(3, b"r")
sys.exit(5)
"""
    result = await local.run(source, stdin=b"abc")
    assert (result.exit_code, result.signal, result.limits_hit) == (5, None, ())
    assert (result.stdout, result.stderr, result.result) == (b"ABC\n", b"e\n", b"r")
    assert (result.backend, result.isolation) == ("local", "namespaces")
    assert not result.ok


async def test_a_traceback_shows_the_program_only(local: Sandbox):
    result = await local.run("def f():\n    return 1 / 0\nf()")
    lines = result.stderr.decode().splitlines()
    assert result.exit_code == 1
    assert lines[1] == '  File "/tmp/main.py", line 3, in <module>'
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "sandbox" not in result.stderr.decode()


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("import time; time.sleep(20)", "wall"),
        ("while True: pass", "cpu"),
        ("data = bytearray(1 << 30)", "memory"),
        ("data = [bytearray(1 << 20) for _ in range(2000)]", "memory"),
        ("while True: print('x' * 999)", "stdout"),
        ("import sys\nwhile True: sys.stderr.write('x' * 999)", "stderr"),
        ("import os\nwhile True: os.write(3, b'x' * 999)", "result"),
    ],
)
async def test_a_limit_ends_the_program_and_is_named(local: Sandbox, source: str, limit: str):
    limits = Limits(wall_s=0.5 if limit == "wall" else 8.0, cpu_s=0.3 if limit == "cpu" else 6.0, memory_bytes=64 << 20)
    result = await local.run(source, limits=limits)
    assert result.limits_hit == (limit,)
    assert result.wall_s < 8.0
    assert result.truncated == (limit in ("stdout", "stderr", "result"))


async def test_files_are_bounded(local: Sandbox):
    source = """
try:
    open("/tmp/a", "wb").write(b"x" * (3 << 20))
except OSError as error:
    print(error.errno)
try:
    for number in range(9):
        open(f"/tmp/{number}", "wb").write(b"x" * (1 << 20))
except OSError as error:
    print(error.errno)
"""
    result = await local.run(source, limits=Limits(file_bytes=2 << 20, tmp_bytes=4 << 20))
    assert result.stdout == b"27\n28\n"  # EFBIG, ENOSPC


async def test_processes_are_bounded_for_each_program_alone(local: Sandbox):
    source = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(10)
        made += 1
except BlockingIOError:
    print(made)
"""
    both = await asyncio.gather(*(local.run(source, limits=Limits(pids=10)) for _ in range(2)))
    assert [result.stdout for result in both] == [b"9\n", b"9\n"]


async def test_a_program_that_is_not_utf8_is_an_ordinary_result(local: Sandbox):
    result = await local.run(b"print('\xff')")
    assert result.exit_code == 1
    assert b"SyntaxError" in result.stderr
    assert (await local.run("x = '\ud800'")).exit_code == 1


async def test_a_program_cannot_see_the_machine(local: Sandbox):
    source = """
import json, os
print(json.dumps({
    "root": sorted(os.listdir("/")), "env": sorted(os.environ), "uid": [os.getuid(), os.getgid(), os.getgroups()],
    "pid": os.getpid(), "parent": os.getppid(), "host": os.uname().nodename, "dev": sorted(os.listdir("/dev")),
    "packages": os.listdir("/packages"), "argv": __import__("sys").argv,
}))
"""
    seen = json.loads((await local.run(source)).stdout)
    assert set(seen["root"]) <= {"dev", "etc", "lib", "lib64", "opt", "packages", "tmp", "usr"}
    assert seen["env"] == ["HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"]
    assert seen["uid"][:2] == [65534, 65534]
    assert (seen["pid"], seen["parent"], seen["host"]) == (1, 0, "sandbox")
    assert seen["dev"] == ["full", "null", "random", "shm", "urandom", "zero"]
    assert seen["packages"] == []
    assert seen["argv"] == ["/tmp/main.py"]


async def test_the_root_cannot_be_written(local: Sandbox):
    source = """
import os
written = []
for folder, folders, names in os.walk("/"):
    if folder == "/tmp":
        continue
    try:
        open(os.path.join(folder, "new"), "w")
        written.append(folder)
    except OSError:
        pass
    for name in names:
        path = os.path.join(folder, name)
        try:
            if os.path.isfile(path) and not os.path.islink(path):
                open(path, "r+b")
                written.append(path)
        except OSError:
            pass
print(written)
"""
    assert (await local.run(source)).stdout == b"[]\n"


async def test_system_calls_that_reach_out_are_denied(local: Sandbox):
    source = """
import ctypes, errno, json, platform
libc = ctypes.CDLL(None, use_errno=True)
column = 0 if platform.machine() == "x86_64" else 1
calls = json.loads(open(0).read())
allowed = []
for name, numbers in calls.items():
    if numbers[column] is not None:
        if libc.syscall(numbers[column], 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            allowed.append(name)
print(json.dumps(allowed))
"""
    from sandbox.seccomp import _DENIED

    result = await local.run(source, stdin=json.dumps(_DENIED).encode())
    assert json.loads(result.stdout) == []


async def test_no_privilege_can_be_had(local: Sandbox):
    source = """
import ctypes, os
libc = ctypes.CDLL(None)
got = []
for number in range(41):
    if libc.prctl(24, number, 0, 0, 0) == 1 and libc.prctl(47, 2, number, 0, 0) == 0:
        got.append(number)
print(got, libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0))
"""
    assert (await local.run(source)).stdout == b"[] 1 2 0\n"  # no capability; no_new_privs; seccomp filter; undumpable


async def test_a_clone_into_new_namespaces_is_denied(local: Sandbox):
    source = """
import ctypes, platform
number = 56 if platform.machine() == "x86_64" else 220
libc = ctypes.CDLL(None, use_errno=True)
print([libc.syscall(number, 1 << bit | 17, 0, 0, 0, 0) for bit in (7, 17, 25, 26, 27, 28, 29, 30)])
"""
    assert (await local.run(source)).stdout == b"[-1, -1, -1, -1, -1, -1, -1, -1]\n"


async def test_a_box_keeps_variables_and_files_until_it_is_ended(local: Sandbox):
    box = await local.open()
    assert (await box.run("x = 1\nopen('note', 'w').write('kept')")).exit_code == 0
    assert (await box.run("x += 1\nprint(x, open('note').read())")).stdout == b"2 kept\n"
    failed = await box.run("print('before')\n1 / 0")
    assert (failed.exit_code, failed.stdout) == (1, b"before\n")
    assert b'File "<call 3>", line 2' in failed.stderr
    assert (await box.run("print(x)")).stdout == b"2\n"
    assert box.restarted is False
    assert (await box.run("import sys; sys.exit(4)")).exit_code == 4
    again = await box.run("print('x' in globals(), __import__('os').listdir('/tmp'))")
    assert again.stdout == b"False []\n"
    assert box.restarted is True
    assert (await box.run("pass")).exit_code == 0
    assert box.restarted is False
    await box.aclose()
    await box.aclose()
    with pytest.raises(SandboxError, match="closed"):
        await box.run("pass")


async def test_a_box_gets_each_calls_own_input_and_output(local: Sandbox):
    box = await local.open()
    first = await box.run("a = input()\nprint(a)\nimport sys; sys.stdout.write('tail')", stdin=b"one\nleft over\n")
    second = await box.run("print(input())", stdin=b"two\n")
    assert (first.stdout, second.stdout) == (b"one\ntail", b"two\n")
    await box.aclose()


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("import time; time.sleep(20)", "wall"),
        ("while True: pass", "cpu"),
        ("x = [0] * 10**10", "memory"),
        ("print('x' * 70_000)", "stdout"),
    ],
)
async def test_a_box_that_exceeds_a_limit_starts_afresh(local: Sandbox, source: str, limit: str):
    box = await local.open(limits=Limits(wall_s=0.6 if limit == "wall" else 8.0, cpu_s=0.3))
    await box.run("kept = 1")
    assert limit in (await box.run(source)).limits_hit
    assert (await box.run("print('kept' in globals())")).stdout == (b"True\n" if limit == "memory" else b"False\n")
    await box.aclose()


async def test_a_boxs_cpu_is_counted_call_by_call(local: Sandbox):
    box = await local.open(limits=Limits(cpu_s=0.4, wall_s=20))
    spin = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass"
    for _ in range(3):
        result = await box.run(spin)
        assert result.limits_hit == ()
        assert 0.2 < result.cpu_s < 0.4
    await box.aclose()


async def test_boxes_do_not_meet(local: Sandbox):
    boxes = [await local.open() for _ in range(12)]
    await asyncio.gather(*(box.run(f"x = {n}\nopen('/tmp/x', 'w').write('{n}')") for n, box in enumerate(boxes)))
    results = await asyncio.gather(*(box.run("print(x, open('/tmp/x').read())") for box in boxes))
    assert [result.stdout for result in results] == [f"{n} {n}\n".encode() for n in range(12)]
    await asyncio.gather(*(box.aclose() for box in boxes))


async def test_a_cancelled_run_frees_its_slot(local: Sandbox):
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(local.run("import time; time.sleep(20)", limits=Limits(wall_s=30)), 0.2)
    started = time.monotonic()
    assert (await local.run("print(1)")).stdout == b"1\n"
    assert time.monotonic() - started < 3


async def test_a_dead_zygote_is_replaced():
    box = sandbox.create("local", slots=1)
    await box.start()
    state = await box.open()
    await state.run("x = 1")
    box._zygote._process.kill()
    with pytest.raises(SandboxError):
        await box.run("import time; time.sleep(5)")
    assert (await box.run("print(1)")).stdout == b"1\n"
    assert (await state.run("print('x' in globals())")).stdout == b"False\n"
    assert state.restarted
    await box.aclose()


async def test_asked_for_packages_can_be_imported():
    box = sandbox.create("local", slots=1, packages=("numpy",))
    await box.start()
    result = await box.run("import numpy\nprint(numpy.arange(5).sum(), numpy.linalg.det(numpy.eye(3)))")
    assert result.stdout == b"10 1.0\n", result.stderr
    await box.aclose()
    with pytest.raises(SandboxError, match="no_such_package"):
        await sandbox.create("local", packages=("no_such_package",)).start()


async def test_more_orders_than_the_zygotes_channel_holds_wait_their_turn():
    box = sandbox.create("local", slots=2)
    await box.start()
    try:
        box._zygote._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # room for a few
        boxes = [await box.open() for _ in range(60)]
        results = await asyncio.gather(*(each.run(f"print({n})") for n, each in enumerate(boxes)))
        assert [result.stdout for result in results] == [f"{n}\n".encode() for n in range(60)]
    finally:
        await box.aclose()


async def test_no_descriptors_left_is_the_sandboxs_fault(local: Sandbox):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (await local.run("print(1)")).ok
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(SandboxError):
            await local.run("print(1)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await local.run("print(1)")).stdout == b"1\n"
