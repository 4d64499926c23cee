"""The system calls that a program may not make: as a classic BPF filter, and as a Docker Engine profile.

A deny list: everything that reaches another process's memory, mounts, namespaces, kernel modules, clocks, keys, raw
events or other kernel surface that a Python program has no use for. Sockets are denied whole, but for connected stream
pairs (asyncio and multiprocessing use them): programs of one zygote share a network namespace, and a named or abstract
Unix socket would let one episode talk to another. `memfd_create` is denied because unmapped shared memory escapes
RLIMIT_AS where there is no memory cgroup.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Any

from sandbox.linux import NAMESPACE_FLAGS

# name: (x86_64, aarch64); None where the architecture has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # sockets
    "socket": (41, 198), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    # kernel surface
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "personality": (135, 92), "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    # System V and POSIX queues: objects that outlive their program
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
}  # fmt: skip
_CLONE, _CLONE3, _SOCKETPAIR = (56, 220), (435, 435), (53, 199)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_SOCK_TYPE_MASK, _SOCK_STREAM = 0xF, 1
_X32_BIT = 0x40000000

# classic BPF operations on struct seccomp_data
_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARG0_AT, _ARG1_AT = 0, 4, 16, 24
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _fail(code: int) -> int:
    return 0x00050000 | code


def filter_program(machine: str = platform.machine()) -> bytes:
    """The filter as an array of `struct sock_filter`. Raises `ValueError` for an architecture without a table."""
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system call table for {machine}; known: {', '.join(_ARCHITECTURES)}")
    column, audit_arch = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 1, 0, audit_arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in sorted(n for pair in _DENIED.values() if (n := pair[column]) is not None):
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _fail(errno.EPERM))]
    # libc falls back from clone3, whose flags a filter cannot see, to clone
    code += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _fail(errno.ENOSYS))]
    code += [
        (_JUMP_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _ARG0_AT),
        (_JUMP_BITS, 0, 1, NAMESPACE_FLAGS),
        (_RETURN, 0, 0, _fail(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 4, _SOCKETPAIR[column]),
        (_LOAD, 0, 0, _ARG1_AT),
        (_AND, 0, 0, _SOCK_TYPE_MASK),
        (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
        (_RETURN, 0, 0, _fail(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def docker_profile() -> dict[str, Any]:
    """The same list as a Docker Engine profile, for `security_opt=["seccomp=" + json.dumps(profile)]`."""

    def deny(names: list[str], code: int, **condition: Any) -> dict[str, Any]:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": code, **condition}

    # a container's supervisor uses memfd_create; the program itself also has the filter, which denies it
    rules = [deny(sorted(_DENIED.keys() - {"memfd_create"}), errno.EPERM), deny(["clone3"], errno.ENOSYS)]
    for bit in (1 << n for n in range(32) if NAMESPACE_FLAGS >> n & 1):
        match = {"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(deny(["clone"], errno.EPERM, args=[match]))
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    }
