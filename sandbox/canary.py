"""A known-good program that every sandbox runs at start: a broken one fails loudly, instead of scoring 0 for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.protocol import SandboxError

if TYPE_CHECKING:
    from sandbox.protocol import Sandbox

SOURCE = b"""
import json, os, sys
number = int(sys.stdin.read())
with open("canary", "w") as file:
    file.write(str(number * 2))
with open("canary") as file:
    os.write(3, json.dumps({"twice": int(file.read())}).encode())
print("alive", number)
print("noted", file=sys.stderr)
sys.exit(7)
"""


async def check_canary(sandbox: Sandbox) -> None:
    """Raises `SandboxError` where output, result, exit code or the file system are not as they should be."""
    result = await sandbox.run(SOURCE, stdin=b"21")
    found = (result.exit_code, result.stdout, result.stderr, result.result, result.limits_hit)
    expected = (7, b"alive 21\n", b"noted\n", b'{"twice": 42}', ())
    if found != expected:
        raise SandboxError(f"the {sandbox.backend} sandbox does not run a known-good program: {found!r}")
