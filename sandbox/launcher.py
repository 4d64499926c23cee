"""Builds the isolated place and starts the zygote in it; then waits, outside, to clean up whatever happens.

Run by `sandbox.zygote` as a process of its own: `python launcher.py CHANNEL_FD OPTIONS_JSON`. As root, programs run as
an otherwise unused uid of the host; as a user, as that user. Either way uid 65534 inside, in a user namespace where
nothing else exists.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from pathlib import Path

from sandbox import agent, frames, linux, rootfs, seccomp

INSIDE_UID = 65534
_UNUSED_UID = 1_900_065_534  # beyond every range that distributions hand out
_NAMESPACES = (
    linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ROOT_BYTES = 256 << 20


def outside_uid() -> int:
    """The uid of this machine that programs run as."""
    if os.geteuid():
        return os.geteuid()
    with open("/proc/self/uid_map") as file:  # inside a container only some uids may exist
        for line in file:
            first, _, count = (int(word) for word in line.split())
            if first <= _UNUSED_UID < first + count:
                return _UNUSED_UID
    return INSIDE_UID


def _mount_point(sources: list[str]) -> str:
    """An existing directory to build the root on. It must not cover a path that is still to be read."""
    for path in ("/mnt", "/srv", "/media", "/opt", "/var/tmp", "/tmp", "/home"):
        if os.path.isdir(path) and not any(source.startswith(f"{path}/") for source in sources):
            return path
    raise OSError("no directory to build the sandbox's root on")


def _build_root(root: rootfs.Root) -> None:
    """Make and enter the new root. Sources are opened first: the new uid may not reach them by name."""
    folders = {inside: os.open(path, os.O_PATH) for inside, path in root.directories.items()}
    files = {inside: os.open(path, os.O_RDONLY) for inside, path in root.files.items()}
    own = {name: Path(__file__).with_name(name).read_text() for name in rootfs.OWN_MODULES}
    target = _mount_point([*root.directories.values(), *root.files.values()])
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
    os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
    linux.die_with_parent()
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("root", target, "tmpfs", flags, f"size={_ROOT_BYTES},mode=0755")
    for inside, fd in files.items():
        path = Path(target, inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fd, "rb") as source, open(path, "wb") as copy:
            while os.sendfile(copy.fileno(), source.fileno(), None, 1 << 30):
                pass
        path.chmod(0o555)
    for inside, text in {**rootfs.ETC, **{f"{rootfs.HARNESS[1:]}/sandbox/{n}": t for n, t in own.items()}}.items():
        path = Path(target, inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    Path(target, rootfs.HARNESS[1:], "sandbox", "__init__.py").touch()
    for name in ("tmp", "dev", "packages"):
        Path(target, name).mkdir(exist_ok=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    Path(target, "usr/local/bin/python3").symlink_to(version)
    Path(target, "usr/local/bin/python").symlink_to(version)
    for inside, fd in folders.items():
        path = Path(target, inside)
        path.mkdir(parents=True, exist_ok=True)
        linux.bind_read_only(f"/proc/self/fd/{fd}", str(path))
        os.close(fd)
    for inside in root.hidden:
        linux.mount("hidden", f"{target}/{inside}", "tmpfs", flags | linux.MS_RDONLY, "size=4k,mode=0755")
    for name in _DEVICES:
        Path(target, "dev", name).touch()
        linux.mount(f"/dev/{name}", f"{target}/dev/{name}", "", linux.MS_BIND)
    Path(target, "dev/shm").symlink_to("/tmp")
    linux.mount("", target, "", linux.MS_REMOUNT | linux.MS_RDONLY | flags, f"size={_ROOT_BYTES}")
    linux.pivot_root(target)


def _inside(channel_fd: int, root: rootfs.Root, mapped_fd: int) -> None:
    """In the new namespaces, as their pid 1: wait for the uid map, build the root, become the zygote."""
    linux.die_with_parent()
    if os.read(mapped_fd, 1) != b"m":
        raise OSError("the uid map was not written")
    pid_namespace_fd = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _build_root(root)
    linux.set_hostname("sandbox")
    linux.keep_capabilities(linux.CAP_SYS_ADMIN)
    for fd in (channel_fd, pid_namespace_fd):
        os.set_inheritable(fd, True)
    code = f"import sys; sys.path.insert(0, {rootfs.HARNESS!r}); from sandbox import agent; agent.run()"
    enclosure = json.dumps({"isolation": "namespaces", "pid_namespace_fd": pid_namespace_fd})
    arguments = [str(channel_fd), seccomp.filter_program().hex(), enclosure]
    os.execve(rootfs.PYTHON, [rootfs.PYTHON, "-s", "-B", "-P", "-c", code, *arguments], agent.ENVIRONMENT)


def _beside(channel_fd: int, root: rootfs.Root, isolation: str) -> None:
    """Without namespaces: become the zygote right here, as an unprivileged user."""
    if os.geteuid() == 0:
        uid = outside_uid()
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.die_with_parent(signal.SIGTERM)
    readable = {*root.directories.values(), *(os.path.dirname(path) for path in root.files.values())}
    enclosure = json.dumps({"isolation": isolation, "readable": sorted(readable)})
    os.set_inheritable(channel_fd, True)
    python, package = os.path.realpath(sys.executable), str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {package!r}); from sandbox import agent; sys.path.pop(0); agent.run()"
    arguments = [str(channel_fd), seccomp.filter_program().hex(), enclosure]
    os.execve(python, [python, "-s", "-B", "-P", "-c", code, *arguments], agent.ENVIRONMENT)


def _write_maps(pid: int) -> None:
    uid = outside_uid()
    gid = uid if os.geteuid() == 0 else os.getegid()
    if os.geteuid():
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"{INSIDE_UID} {uid} 1")
    Path(f"/proc/{pid}/gid_map").write_text(f"{INSIDE_UID} {gid} 1")


def _wait(pid: int, host_pidfd: int, end_signal: signal.Signals) -> None:
    """Until the zygote ends, or the host does: then end the zygote, and with it everything inside."""
    zygote_pidfd = os.pidfd_open(pid)
    poll = select.poll()
    for fd in (zygote_pidfd, host_pidfd):
        poll.register(fd, select.POLLIN)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, end_signal)
    os.waitpid(pid, 0)


def _remove_cgroups(folders: list[str]) -> None:
    for folder in folders:
        for path in sorted(Path(folder).glob("*/")) if os.path.isdir(folder) else []:
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _start(channel_fd: int, root: rootfs.Root, isolation: str) -> int:
    """The zygote's pid. Raises `OSError`."""
    if isolation != "namespaces":
        pid = os.fork()
        if pid == 0:
            _beside(channel_fd, root, isolation)
        return pid
    read_fd, write_fd = os.pipe()
    pid = linux.clone(_NAMESPACES)
    if pid == 0:
        os.close(write_fd)
        _inside(channel_fd, root, read_fd)
    _write_maps(pid)
    os.write(write_fd, b"m")
    return pid


def main() -> None:
    channel_fd, options = int(sys.argv[1]), json.loads(sys.argv[2])
    host_pidfd = os.pidfd_open(options["host_pid"])
    if os.getppid() != options["host_pid"]:
        return
    try:
        sys.path += [path for path in options["path"] if path not in sys.path]
        root = rootfs.describe(tuple(options["packages"]))
        if os.geteuid() == 0:
            os.setgroups([])
        pid = _start(channel_fd, root, options["isolation"])
    except (OSError, ImportError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        os.write(channel_fd, frames.Report(frames.BROKEN, text=text).pack())
        os._exit(1)
    os.close(channel_fd)
    # without namespaces the zygote ends its children itself, once it notices that the channel is closed
    _wait(pid, host_pidfd, signal.SIGKILL if options["isolation"] == "namespaces" else signal.SIGCONT)
    _remove_cgroups(options["cgroups"])


if __name__ == "__main__":
    main()
