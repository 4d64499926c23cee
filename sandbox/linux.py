"""The few Linux system calls that the standard library lacks, for the code that builds an isolated process.

Runs on the host and inside the sandbox, so it imports the standard library only. Every failure is an `OSError`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACE_FLAGS = 0x7E020080  # every CLONE_NEW* flag

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_ADMIN = 6, 7, 8, 21

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_MODE_FILTER = 2
_LAST_FD = 1 << 16
_CALLS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}

# PyDLL keeps the GIL during a call: `clone` returns twice, and only one of the two threads may take it again.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {what}")
    return result


def syscall(what: str, number: int, *args: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *args), what)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(result, f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show `source` at `target`, read-only, without set-user-id programs or devices.

    A remount may not clear a flag that the source's own mount has locked, so those are given again.
    """
    mount(source, target, "", MS_BIND | MS_REC)
    kept = os.statvfs(target).f_flag & (MS_NOEXEC | MS_NODEV | MS_NOSUID)
    mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root, and let go of the old one."""
    os.chdir(new_root)
    syscall("pivot_root", _CALLS[platform.machine()]["pivot_root"], b".", b".")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def clone(flags: int) -> int:
    """Fork into new namespaces: the pid, or 0 in the child, which should exec soon (libc does not know of the fork)."""
    number = _CALLS[platform.machine()]["clone"]
    return syscall("clone", number, ctypes.c_long(flags | signal.SIGCHLD), *(ctypes.c_long(0) for _ in range(4)))


def setns(fd: int, flags: int) -> None:
    _check(_libc.setns(fd, flags), "setns")


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def close_from(first: int) -> None:
    """Close every descriptor from this number on."""
    os.closerange(first, _LAST_FD)


def counts_processes_apart() -> bool:
    """Whether RLIMIT_NPROC in a new user namespace counts that namespace's processes only (Linux 5.14 and later)."""
    major, minor = (int("".join(filter(str.isdigit, word))) for word in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def cpu_s(pid: int) -> float:
    """CPU seconds that another process has used so far, by its clock; 0.0 once it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Get this signal when the parent's thread ends. A change of uid clears this: call it after, not before."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "PR_SET_PDEATHSIG")


def set_subreaper() -> None:
    """Orphaned descendants become this process's children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def set_undumpable() -> None:
    """Other processes of the same uid can neither trace this one nor read its memory."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
_OWN = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)


def drop_capabilities() -> None:
    """Hold none, for good."""
    _check(_libc.capset(ctypes.byref(_OWN), _NO_CAPABILITIES), "capset")


def keep_capabilities(*capabilities: int) -> None:
    """Hold only these, and keep them over an exec."""
    mask = sum(1 << capability for capability in capabilities)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(_OWN), data), "capset")
    _check(_libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0), "PR_CAP_AMBIENT_CLEAR_ALL")
    for capability in capabilities:
        _check(_libc.prctl(_PR_CAP_AMBIENT, 2, capability, 0, 0), "PR_CAP_AMBIENT_RAISE")


def no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class SeccompFilter:
    """A filter made by `sandbox.seccomp.filter_program`, laid out once so that applying it is one system call."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._header = _FilterProgram(len(program) // 8, ctypes.addressof(self._buffer))
        self._pointer = ctypes.byref(self._header)

    def apply(self) -> None:
        """For this process and what it starts, for good. Needs `no_new_privileges` first."""
        _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._pointer, 0, 0), "PR_SET_SECCOMP")


# -- Landlock -------------------------------------------------------------------------------------------------------

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_ACCESS_READ = 0b1101  # execute, read a file, read a directory
_ACCESS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # file accesses that a version of the interface knows


def landlock_version() -> int:
    """The kernel's Landlock interface; 0 where there is none."""
    try:
        return syscall("landlock", _LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    except OSError:
        return 0


def apply_landlock(readable: list[str], writable: list[str]) -> None:
    """Let this process read and execute below `readable` and do anything below `writable`; nothing else.

    Where the kernel can, also no TCP and no signals or abstract sockets to the outside. Needs `no_new_privileges`.
    """
    version = landlock_version()
    everything = (1 << _ACCESS_BITS.get(version, 16)) - 1
    attributes = [everything, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0]
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = (ctypes.c_uint64 * 3)(*attributes)
    fd = syscall("landlock", _LANDLOCK_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for paths, access in ((readable, _ACCESS_READ), (writable, everything)):
        for path in paths:
            allowed = access if os.path.isdir(path) else access & (0b111 | 1 << 14)  # what a file can have
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", allowed & everything, parent)
            arguments = (ctypes.c_int(fd), ctypes.c_int(_LANDLOCK_PATH_BENEATH), rule, ctypes.c_uint32(0))
            syscall(f"landlock {path}", _LANDLOCK_ADD, *arguments)
            os.close(parent)
    syscall("landlock", _LANDLOCK_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0))
    os.close(fd)
