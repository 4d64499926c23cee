"""Runs this project's code as an unprivileged user, with a Python that such a user may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sandbox.engine import cannot

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def python_for_everybody() -> str:
    """The Python that runs this may be in somebody's home."""
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


def run_as_user(*arguments: str, timeout_s: float = 110) -> str:
    """Standard output of `python ARGUMENTS` in a copy of the repository's packages. Fails the test where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("sandbox", "rewards", "tests/hostile"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        ran = subprocess.run(
            [python_for_everybody(), "-B", *arguments],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd=folder, env={"PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout
