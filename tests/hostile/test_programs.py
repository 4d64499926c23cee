"""Every attack earns nothing, is labelled, breaks nothing and leaves nothing: as root, as a user, and in Docker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.hostile.play import LIMITS, Verdict, load_attacks, play_all
from tests.sandbox.engine import cannot, docker_host  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ATTACKS = [attack.name for attack in load_attacks()]


def _python_for_everybody() -> str:
    """A Python that an unprivileged user may run; the one that runs this may be in somebody's home."""
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(python):
            check = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            try:
                ran = subprocess.run(check, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=False)
                if ran.returncode == 0:
                    return python
            except OSError:
                continue
    cannot("no Python of 3.11 or later that an unprivileged user may run")
    raise AssertionError


def _play_as_user() -> dict[str, Verdict]:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("sandbox", "rewards", "tests/hostile"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        played = subprocess.run(
            [_python_for_everybody(), "-B", "-m", "tests.hostile.play"],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd=folder, env={"PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    assert played.returncode == 0, played.stderr[-2000:]
    verdicts = json.loads(played.stdout.splitlines()[-1])
    return {name: Verdict(**{**fields, "labels": tuple(fields["labels"])}) for name, fields in verdicts.items()}


@pytest.fixture(scope="module")
def as_root() -> dict[str, Verdict]:
    if os.geteuid() != 0:
        pytest.skip("not root")
    return asyncio.run(play_all("local"))


@pytest.fixture(scope="module")
def as_user() -> dict[str, Verdict]:
    return _play_as_user() if os.geteuid() == 0 else asyncio.run(play_all("local"))


@pytest.fixture(scope="module")
def in_docker(docker_host: str) -> dict[str, Verdict]:  # noqa: F811
    return asyncio.run(play_all("docker", host=docker_host, limits=LIMITS))


def test_there_are_enough_attacks():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("name", ATTACKS)
def test_local_as_root(as_root: dict[str, Verdict], name: str):
    assert as_root[name].fault == ""
    assert as_root[name].fraction == 0.0


@pytest.mark.parametrize("name", ATTACKS)
def test_local_as_user(as_user: dict[str, Verdict], name: str):
    assert as_user[name].fault == ""
    assert as_user[name].fraction == 0.0


@pytest.mark.parametrize("name", ATTACKS)
def test_docker(in_docker: dict[str, Verdict], name: str):
    assert in_docker[name].fault == ""
    assert in_docker[name].fraction == 0.0
