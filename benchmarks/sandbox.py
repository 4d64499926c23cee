"""What do the sandboxes hold, and how fast are they?

Plays the hostile suite (tests/hostile) on every backend that this machine has; runs one program with 13 imports from
the standard library on the embedded backend, and the same under bubblewrap; on warm containers, and the same through
`docker exec`; then soaks the embedded backend in programs of which a quarter are hostile, and looks for what is left.

    python -m benchmarks.sandbox [--docker-host unix:///PATH] [--soak 3000] [--programs 300]

Prints one JSON line. `held`: {backend: [attacks that earned nothing, broke nothing and left nothing, attacks}.
`per_s`, `cpu_ms`: programs per second, two at a time, and CPU milliseconds of host, zygote and child for each.
`over_bwrap`, `docker_over_exec`: programs per second over the competitor's. `p95_ms`: of one run at two slots while a
busy process for each core competes. `soak_wrong`: benign programs of the soak with a wrong result. `leaked`:
processes, descriptors, mounts, cgroups and containers beyond those of the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # run as a file: "sandbox" is the package, not this file

import sandbox
from sandbox import Limits, Sandbox
from tests.hostile.play import LIMITS, load_attacks, play_all
from tests.sandbox.as_user import run_as_user

PROGRAM = """
import bisect, collections, datetime, decimal, fractions, functools, heapq, itertools, json, math, random, re, string
print(sum(n * n for n in range(100)))
"""
EXPECTED = b"328350\n"


async def _timed(run: Callable[[], Awaitable[Any]], count: int, at_once: int) -> tuple[float, list[float]]:
    """Run `count` times, `at_once` at a time: (seconds in all, seconds of each)."""
    each: list[float] = []

    async def work(share: int) -> None:
        for _ in range(share):
            started = time.perf_counter()
            await run()
            each.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(work(count // at_once) for _ in range(at_once)))
    return time.perf_counter() - started, each


def _checked(box: Sandbox, cpu_s: list[float]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        result = await box.run(PROGRAM, limits=Limits(wall_s=20))
        assert result.stdout == EXPECTED, result
        cpu_s.append(result.cpu_s)

    return run


def _process_cpu_s(pid: int) -> float:
    """What a process itself has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _zygote_pid(box: Any) -> int:
    launcher = box._zygote._process.pid
    return int(Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0])


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _busy_cores() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def local_speed(programs: int) -> dict[str, float]:
    box, child_cpu_s = sandbox.create("local", slots=2), []
    await box.start()
    zygote = _zygote_pid(box)
    try:
        run = _checked(box, child_cpu_s)
        await _timed(run, 20, 2)
        child_cpu_s.clear()
        before_s = _own_cpu_s() + _process_cpu_s(zygote)
        wall_s, each = await _timed(run, programs, 2)
        cpu_s = _own_cpu_s() + _process_cpu_s(zygote) - before_s + sum(child_cpu_s)
        with _busy_cores():
            _, busy_each = await _timed(run, programs // 2, 2)
    finally:
        await box.aclose()
    return {
        "per_s": len(each) / wall_s,
        "cpu_ms": cpu_s / len(each) * 1e3,
        "p95_ms": statistics.quantiles(busy_each, n=20)[-1] * 1e3,
    }


def _bubblewrap_command() -> list[str]:
    shown = [path for path in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix) if os.path.exists(path)]
    binds = [word for path in shown for word in ("--ro-bind", path, path)]
    return [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--uid", "65534",
        "--gid", "65534", *binds, "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp",
        os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", PROGRAM,
    ]  # fmt: skip


async def bubblewrap_speed(programs: int) -> float:
    """Programs per second under bwrap, which isolates as we do: all namespaces, a read-only root, an empty /tmp."""
    command = _bubblewrap_command()

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        stdout, _ = await asyncio.wait_for(process.communicate(), 30)
        assert stdout == EXPECTED, (process.returncode, stdout)

    await run()
    wall_s, each = await _timed(run, programs, 2)
    return len(each) / wall_s


async def docker_speed(host: str, programs: int) -> float:
    """Warm containers over `docker exec`, one program at a time, same image and program."""
    box: Any = sandbox.create("docker", slots=1, host=host)
    await box.start()
    try:
        run = _checked(box, [])
        await run()
        ours_s, ours = await _timed(run, programs, 1)
        container = box._idle[0]._id
        command = ["docker", "-H", host, "exec", container, "python3", "-I", "-S", "-B", "-c", PROGRAM]

        async def execute() -> None:
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            stdout, _ = await asyncio.wait_for(process.communicate(), 60)
            assert stdout == EXPECTED, stdout

        await execute()
        theirs_s, theirs = await _timed(execute, max(2, programs // 4), 1)
        return (theirs_s / len(theirs)) / (ours_s / len(ours))
    finally:
        await box.aclose()


def _counts(host: str | None) -> dict[str, int]:
    """What this machine holds of ours now."""
    own = str(os.getpid())
    children = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = path.read_text().rsplit(")", 1)[1].split()
            children += parent == own and state != "Z"
        except OSError:
            continue
    listed = ["docker", "-H", host or "", "ps", "-aq", "--filter", "label=slipstream.sandbox.owner"]
    containers = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split() if host else []
    return {
        "processes": children,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "cgroups": len(list(Path("/sys/fs/cgroup").glob(f"**/slipstream-{own}-*"))),
        "containers": len(containers),
    }


async def soak(count: int, seed: int = 0) -> int:
    """Benign programs with a wrong result among `count`, a quarter of which are attacks."""
    rng, attacks, wrong = random.Random(seed), [a for a in load_attacks() if a.kind == "call"], 0
    box = sandbox.create("local", slots=4)
    await box.start()
    gate = asyncio.Semaphore(8)
    quick = Limits(
        wall_s=0.5, cpu_s=0.3, memory_bytes=LIMITS.memory_bytes, pids=LIMITS.pids,
        tmp_bytes=LIMITS.tmp_bytes, file_bytes=LIMITS.file_bytes,
    )  # fmt: skip

    async def one(number: int) -> None:
        nonlocal wrong
        async with gate:
            if number % 4 == 0:
                await box.run(rng.choice(attacks).source, limits=quick)
                return
            source = f"import os\nassert os.listdir('/tmp') == ['main.py']\nprint({number} * int(input()))"
            result = await box.run(source, stdin=b"3\n", limits=Limits(wall_s=30, cpu_s=20))
            wrong += (result.stdout, result.exit_code) != (b"%d\n" % (3 * number), 0)

    try:
        await asyncio.gather(*(one(number) for number in range(count)))
    finally:
        await box.aclose()
    return wrong


def _held(verdicts: dict[str, Any]) -> list[int]:
    for name, verdict in verdicts.items():
        if verdict["fault"]:
            print(f"not held: {name}: {verdict['fault']}", file=sys.stderr)
    return [sum(not verdict["fault"] for verdict in verdicts.values()), len(verdicts)]


def held(host: str | None) -> dict[str, list[int]]:
    def played(backend: str, **options: Any) -> dict[str, Any]:
        return {name: {"fault": v.fault} for name, v in asyncio.run(play_all(backend, **options)).items()}

    found = {}
    if os.geteuid() == 0:
        found["local as root"] = _held(played("local"))
        found["local as user"] = _held(json.loads(run_as_user("-m", "tests.hostile.play").splitlines()[-1]))
    else:
        found["local as user"] = _held(played("local"))
    if host:
        found["docker"] = _held(played("docker", host=host, limits=LIMITS))
    return found


def _docker_host(named: str | None) -> tuple[str | None, Callable[[], None]]:
    """An engine, and what ends it: the named one, or one started here where dockerd is installed."""
    if named or os.environ.get("DOCKER_HOST"):
        return named or os.environ["DOCKER_HOST"], lambda: None
    if os.geteuid() or not shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin"):
        return None, lambda: None
    script, folder = (
        Path(__file__).resolve().parents[1] / ".ci/docker_engine.sh",
        tempfile.mkdtemp(prefix="docker-engine-"),
    )
    started = subprocess.run([script, "start", folder], capture_output=True, text=True, timeout=300, check=True)
    return started.stdout.strip(), lambda: subprocess.run([script, "stop", folder], check=False, timeout=60) and None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docker-host")
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--soak", type=int, default=3000)
    arguments = parser.parse_args()
    host, stop = _docker_host(arguments.docker_host)
    line: dict[str, Any] = {"benchmark": "sandbox", "cores": os.cpu_count()}
    try:
        before = _counts(host)
        line["held"] = held(host)
        line |= asyncio.run(local_speed(arguments.programs))
        if shutil.which("bwrap"):
            line["over_bwrap"] = line["per_s"] / asyncio.run(bubblewrap_speed(max(20, arguments.programs // 3)))
        if host:
            line["docker_over_exec"] = asyncio.run(docker_speed(host, max(8, arguments.programs // 6)))
        line["soak_programs"], line["soak_wrong"] = arguments.soak, asyncio.run(soak(arguments.soak))
        line["leaked"] = {name: max(0, now - before[name]) for name, now in _counts(host).items()}
    finally:
        stop()
    print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()}))


if __name__ == "__main__":
    main()
