"""Every attack earns nothing, is labelled, breaks nothing and leaves nothing: as root, as a user, and in Docker."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from tests.hostile.play import LIMITS, Verdict, load_attacks, play_all
from tests.sandbox.as_user import run_as_user
from tests.sandbox.engine import docker_host  # noqa: F401

ATTACKS = [attack.name for attack in load_attacks()]


def _play_as_user() -> dict[str, Verdict]:
    verdicts = json.loads(run_as_user("-m", "tests.hostile.play").splitlines()[-1])
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
