"""What to set on a machine that does not let this process make namespaces."""

from __future__ import annotations

import os
from pathlib import Path


def _setting(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def namespace_fix() -> str:
    """The first known reason that this machine shows, as what to do about it."""
    if _setting("/proc/sys/user/max_user_namespaces") == "0":
        return "sysctl -w user.max_user_namespaces=10000"
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04 and later)"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return "start this container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    return "`python -m sandbox probe` shows more"
