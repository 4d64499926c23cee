"""A container image made of this machine's own Python, so that nothing is ever pulled.

`python -c "from sandbox import image; image.main()" PACKAGES_JSON` writes the image to stdout, as the archive that
`docker load` and Podman take. It runs as a process of its own because it loads every library that Python may need.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from sandbox import rootfs
from sandbox.protocol import SandboxError

_UNWANTED = re.compile(
    r"(^|/)(test|tests|idlelib|lib2to3|turtledemo|ensurepip|tkinter|config-[^/]*)(/|$)|\.a$|\.opt-[12]\.pyc$"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BUILD_S = 120.0


class _Layer:
    """A tar file in which every parent directory has an entry of its own: an engine makes missing ones unreadable."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w")  # noqa: SIM115
        self.folders: set[str] = set()

    def folder(self, name: str, mode: int = 0o755) -> None:
        parent = os.path.dirname(name)
        if parent and parent not in self.folders:
            self.folder(parent)
        if name not in self.folders:
            self.folders.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            self.tar.addfile(info)

    def file(self, name: str, data: bytes, mode: int = 0o444) -> None:
        self.folder(os.path.dirname(name))
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), mode
        self.tar.addfile(info, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.tar.addfile(info)


def _layer(packages: tuple[str, ...]) -> bytes:
    root, layer = rootfs.describe(packages), _Layer()
    for name in ("dev", "etc", "proc", "sys", "packages"):
        layer.folder(name)
    for name in ("tmp", "dev/shm"):
        layer.folder(name, 0o1777)
    for inside, path in sorted(root.files.items()):
        layer.file(inside, Path(path).read_bytes(), 0o555)
    for inside, path in sorted(root.directories.items()):
        hidden = tuple(f"{name}/" for name in root.hidden)
        for file in sorted(Path(path).rglob("*")):
            name = f"{inside}/{file.relative_to(path)}"
            if file.is_file() and not name.startswith(hidden) and not _UNWANTED.search(str(file.relative_to(path))):
                layer.file(name, file.read_bytes(), 0o444 | (file.stat().st_mode & 0o111))
    for name, text in rootfs.ETC.items():
        layer.file(name, text.encode())
    own = f"{rootfs.HARNESS[1:]}/sandbox"
    for name in rootfs.OWN_MODULES:
        layer.file(f"{own}/{name}", Path(__file__).with_name(name).read_bytes())
    layer.file(f"{own}/__init__.py", b"")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("python", "python3"):
        layer.link(f"usr/local/bin/{name}", version)
    layer.tar.close()
    return layer.buffer.getvalue()


def _archive(layer: bytes, tag: str) -> bytes:
    """A one-layer image in the format of `docker save`."""
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {"Env": ["PATH=/usr/local/bin"], "WorkingDir": "/"},
        "history": [{"created_by": "slipstream"}],
    }
    config_bytes = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        files = ((f"{digest}/layer.tar", layer), (config_name, config_bytes), ("manifest.json", json.dumps(manifest)))
        for name, data in files:
            content = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tag(packages: tuple[str, ...]) -> str:
    """The image's name: another Python, another set of packages or another agent is another image."""
    digest = hashlib.sha256(f"{sys.version} {sys.base_prefix} {packages}".encode())
    for name in (*rootfs.OWN_MODULES, "rootfs.py", "image.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return f"slipstream-sandbox:{digest.hexdigest()[:16]}"


def build(packages: tuple[str, ...]) -> bytes:
    """The image as an archive. Raises `SandboxError` with what went wrong."""
    parent = str(Path(__file__).resolve().parent.parent)
    paths = [parent, *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}; from sandbox import image; image.main()"
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    made = subprocess.run(
        [python, "-s", "-P", "-B", "-c", code, json.dumps(packages)],
        capture_output=True, timeout=BUILD_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if made.returncode:
        lines = made.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the image could not be built: {lines[-1] if lines else made.returncode}")
    return made.stdout


def main() -> None:
    packages = tuple(json.loads(sys.argv[1]))
    sys.stdout.buffer.write(_archive(_layer(packages), tag(packages)))
