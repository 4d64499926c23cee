"""A Docker Engine for the tests: DOCKER_HOST's, the machine's own, or one that is started here and ended at exit."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "docker_engine.sh"
_OWN_SOCKET = "/var/run/docker.sock"


def cannot(reason: str) -> None:
    """Skip where a developer's machine lacks something; in CI nothing may be skipped."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@functools.cache
def _start() -> tuple[str, str]:
    """(DOCKER_HOST, why there is none)."""
    if os.environ.get("DOCKER_HOST"):
        return os.environ["DOCKER_HOST"], ""
    if os.access(_OWN_SOCKET, os.W_OK):
        return f"unix://{_OWN_SOCKET}", ""
    if os.geteuid() != 0:
        return "", "no Docker Engine, and only root can start one"
    if not os.environ.get("CI") and not shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin"):
        return "", "no Docker Engine is installed"
    folder = tempfile.mkdtemp(prefix="docker-engine-")
    atexit.register(subprocess.run, [_SCRIPT, "stop", folder], check=False, timeout=60)
    started = subprocess.run([_SCRIPT, "start", folder], capture_output=True, text=True, timeout=300, check=False)
    return started.stdout.strip(), started.stderr.strip()[-500:]


@pytest.fixture(scope="session")
def docker_host() -> str:
    host, why = _start()
    if not host:
        cannot(why)
    return host
