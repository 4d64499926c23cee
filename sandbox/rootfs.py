"""What a program may see of this machine: its Python, the libraries that Python loads, and nothing else."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = "/usr/local/bin/python3"
PACKAGES = "/packages"  # where asked-for third-party packages appear
HARNESS = "/opt/sandbox"  # the sandbox's own modules
OWN_MODULES = tuple(f"{n}.py" for n in ("agent", "frames", "linux", "program", "stream", "supervisor", "warden"))
_UNWANTED_EXTENSIONS = ("_tkinter", "_test", "_xx", "xx", "_ctypes_test")
ETC = {
    "etc/passwd": "root:x:0:0::/:/none\nsandbox:x:65534:65534::/tmp:/none\n",
    "etc/group": "root:x:0:\nsandbox:x:65534:\n",
}


@dataclass(slots=True)
class Root:
    """Paths of the host, by where they appear inside (without a leading slash)."""

    directories: dict[str, str] = field(default_factory=dict)  # shown whole, read-only
    files: dict[str, str] = field(default_factory=dict)  # copied
    hidden: list[str] = field(default_factory=list)  # shown empty


def _load(paths: list[Path]) -> None:
    """Let the dynamic loader map these and what they need, without running any module's code."""
    for path in paths:
        if not path.name.startswith(_UNWANTED_EXTENSIONS):
            try:
                ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
            except OSError:
                continue  # it needs a library that this machine lacks: not importable here either


class _LoadedObject(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def _loaded_libraries() -> set[str]:
    """The path of every library in this process, by the name that the loader looks for (not a link's target)."""
    found: set[str] = set()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    def note(loaded, _size, _data) -> int:
        name = os.fsdecode(loaded.contents.name or b"")
        if name.startswith("/") and os.path.exists(name):
            found.add(name)
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return found


def describe(packages: tuple[str, ...] = ()) -> Root:
    """The root for this interpreter, with these import packages added. `ModuleNotFoundError` for one that is missing.

    Loads libraries into the calling process: meant for a short-lived one.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    stdlib = sysconfig.get_path("stdlib")
    library = f"usr/local/{sys.platlibdir}/{version}"
    root = Root(directories={library: stdlib})
    root.hidden = [f"{library}/{name}" for name in ("site-packages", "dist-packages") if Path(stdlib, name).is_dir()]
    root.files[f"usr/local/bin/{version}"] = os.path.realpath(sys.executable)
    extensions = sorted(Path(stdlib, "lib-dynload").glob("*.so"))
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"the package {name!r} is not installed")
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            root.files[f"{PACKAGES[1:]}/{origin.name}"] = str(origin)
            continue
        for folder in (origin.parent, origin.parent.with_name(f"{name}.libs")):
            if folder.is_dir():
                root.directories[f"{PACKAGES[1:]}/{folder.name}"] = str(folder)
                extensions += sorted(folder.rglob("*.so*"))
    _load(extensions)
    shown = tuple(f"{path}/" for path in root.directories.values())
    libraries = {path for path in _loaded_libraries() if not path.startswith(shown)}
    loader_folder = next(os.path.dirname(path) for path in libraries if os.path.basename(path).startswith("libc."))
    for path in libraries:
        system = path.startswith(("/lib", "/usr/lib"))
        inside = path if system else f"{loader_folder}/{os.path.basename(path)}"
        root.files[inside.lstrip("/")] = path
    interpreter = _elf_interpreter(os.path.realpath(sys.executable))
    root.files[interpreter.lstrip("/")] = os.path.realpath(interpreter)
    return root


def _elf_interpreter(executable: str) -> str:
    """The program loader that a 64-bit ELF file names, e.g. /lib64/ld-linux-x86-64.so.2."""
    with open(executable, "rb") as file:
        head = file.read(64)
        at, size = int.from_bytes(head[32:40], "little"), int.from_bytes(head[54:56], "little")
        for index in range(int.from_bytes(head[56:58], "little")):
            file.seek(at + index * size)
            entry = file.read(size)
            if int.from_bytes(entry[:4], "little") == 3:  # PT_INTERP
                file.seek(int.from_bytes(entry[8:16], "little"))
                return file.read(int.from_bytes(entry[32:40], "little")).rstrip(b"\0").decode()
    raise OSError(f"{executable} names no program loader")
