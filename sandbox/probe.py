"""What this machine can isolate, what it cannot, and how to fix it."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandbox import cgroup, linux, seccomp
from sandbox.advice import namespace_fix
from sandbox.default import create
from sandbox.protocol import SandboxError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table. `fix` is "" where nothing needs to be done."""

    what: str
    works: bool
    found: str
    fix: str = ""


def _succeeds_in_a_child(action: Callable[[], None]) -> str:
    """Run `action` in a fork; "" where it worked, else the error's text."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except OSError as error:
            os.write(write_fd, str(error).encode())
        finally:
            os._exit(1)
    os.close(write_fd)
    _, status = os.waitpid(pid, 0)
    with open(read_fd, "rb") as file:
        text = file.read().decode(errors="replace")
    return text or ("" if status == 0 else f"status {status}")


def _enter_namespaces() -> None:
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET)


def _apply_filter() -> None:
    linux.no_new_privileges()
    linux.SeccompFilter(seccomp.filter_program()).apply()
    try:
        os.open("/", os.O_RDONLY)
        linux.unshare(linux.CLONE_NEWNS)
    except PermissionError:
        return
    raise OSError("the filter lets a denied call through")


def _kernel() -> list[Finding]:
    error = _succeeds_in_a_child(_enter_namespaces)
    findings = [Finding("namespaces", not error, error or "can be made", namespace_fix() if error else "")]
    error = _succeeds_in_a_child(_apply_filter)
    findings.append(
        Finding("seccomp", not error, error or "filters apply", "a kernel with CONFIG_SECCOMP_FILTER" if error else "")
    )
    version = linux.landlock_version()
    found = f"version {version}" if version else "not in this kernel"
    findings.append(
        Finding("landlock", bool(version), found, "" if version else "only the weaker mode needs it: Linux 5.13")
    )
    groups = cgroup.available()
    fix = "" if groups else "run as root, or delegate the memory controller (systemd: Delegate=yes)"
    findings.append(Finding("memory bound", groups, "cgroup" if groups else "a watchdog measures instead", fix))
    apart = linux.counts_processes_apart()
    found = "counted for each program" if apart else "a watchdog counts instead"
    findings.append(Finding("process bound", apart, found, "" if apart else "Linux 5.14 or later"))
    return findings


async def _backend(name: str, fix: str, **options: str) -> Finding:
    """Whether a backend starts and runs its canary."""
    sandbox = create(name, slots=1, **options)
    started = time.monotonic()
    what = " ".join(("backend", name, *options.values()))
    try:
        await sandbox.start()
    except SandboxError as error:
        return Finding(what, False, str(error), fix)
    finally:
        await sandbox.aclose()
    return Finding(what, True, f"{sandbox.isolation}, starts in {time.monotonic() - started:.1f} s")


async def probe() -> list[Finding]:
    """Every finding, in the order of the table."""
    uid = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    machine = (
        f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}, {uid}"
    )
    linux_here = sys.platform == "linux"
    findings = [Finding("machine", linux_here, machine, "" if linux_here else 'use backend="docker"')]
    if linux_here:
        findings += await asyncio.to_thread(_kernel)
        findings.append(await _backend("local", "see namespaces and seccomp"))
        readable = "only where asked for: needs Landlock, and a Python that every user may read"
        findings.append(await _backend("local", readable, isolation="landlock"))
    findings.append(await _backend("docker", "start a Docker Engine, or point DOCKER_HOST to one"))
    return findings
