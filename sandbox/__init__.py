"""Runs untrusted programs: one Protocol, several backends. See `sandbox.protocol` for the error model."""

from sandbox.default import close_shared, configure, create, shared
from sandbox.protocol import Box, ExecResult, Limits, Sandbox, SandboxError

__all__ = [
    "Box", "ExecResult", "Limits", "Sandbox", "SandboxError", "close_shared", "configure", "create", "shared",
]  # fmt: skip
