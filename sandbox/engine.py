"""A Docker Engine: hardened containers from an image of this machine's Python, and whose they are."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import uuid
from typing import Any

from sandbox import image as images
from sandbox import rootfs, seccomp
from sandbox.agent import ENVIRONMENT
from sandbox.protocol import Limits, SandboxError

LABEL = "slipstream.sandbox.owner"
_API_S = 60
_AGENT_BYTES = 48 << 20  # memory of the warden and the supervisor
_AGENT_PIDS = 6
_INODES = 16384
_BOOT = f"import sys; sys.path.insert(0, {rootfs.HARNESS!r}); from sandbox import warden; warden.run()"


def _started_at(pid: int) -> str:
    """When a process started, in clock ticks since boot: a pid that is used again differs in it. "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


def owner() -> str:
    """This process, as containers name it."""
    return f"{socket.gethostname()}/{os.getpid()}/{_started_at(os.getpid())}"


def owner_is_gone(name: str) -> bool:
    host, _, rest = name.partition("/")
    pid, _, started = rest.partition("/")
    return host == socket.gethostname() and pid.isdigit() and _started_at(int(pid)) != started


class Engine:
    """A connection to a Docker Engine. Its methods block: call them in a thread."""

    def __init__(
        self, host: str | None, image: str | None, packages: tuple[str, ...], runtime: str | None, limits: Limits
    ) -> None:
        self._host, self._image, self._packages, self._runtime, self._limits = host, image, packages, runtime, limits
        self._client: Any = None

    def connect(self) -> str:
        """Reach the engine, remove what gone owners left, have the image. Returns the runtime's name."""
        try:
            import docker
        except ImportError as error:
            raise SandboxError('the docker backend needs the package: pip install "slipstream-rl[docker]"') from error
        where = self._host or os.environ.get("DOCKER_HOST") or "the default socket"
        try:
            if self._host:
                self._client = docker.DockerClient(self._host, timeout=_API_S)
            else:
                self._client = docker.from_env(timeout=_API_S)
            info = self._client.info()
            for container in self._client.containers.list(all=True, filters={"label": LABEL}):
                if owner_is_gone(container.labels.get(LABEL, "")):
                    container.remove(force=True)
            self._image = self._image or self._load_image()
        except (docker.errors.DockerException, OSError) as error:
            raise SandboxError(f"no Docker Engine at {where}: {error}. Start one, or set DOCKER_HOST") from error
        return self._runtime or info.get("DefaultRuntime", "runc")

    def _load_image(self) -> str:
        tag = images.tag(self._packages)
        if not self._client.images.list(name=tag):
            self._client.images.load(images.build(self._packages))
        return tag

    def create(self) -> tuple[str, Any]:
        """A started container with the warden in it: its id, and the attached stream."""
        import docker

        try:
            api = self._client.api
            made = api.create_container(
                self._image,
                ["python3", "-s", "-B", "-P", "-c", _BOOT, str(random.randrange(20_000, 60_000)),
                 seccomp.filter_program().hex()],
                stdin_open=True, user="0:0", network_disabled=True, environment=ENVIRONMENT, hostname="sandbox",
                labels={LABEL: owner()}, host_config=self._host_config(), name=f"slipstream-{uuid.uuid4().hex[:12]}",
            )["Id"]  # fmt: skip
        except docker.errors.ImageNotFound as error:
            raise SandboxError(f"the engine has no image {self._image!r}; it is not pulled for you") from error
        except (docker.errors.DockerException, OSError) as error:
            raise SandboxError(f"a container could not be created: {error}") from error
        try:
            attached = api.attach_socket(made, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            api.start(made)
        except (docker.errors.DockerException, OSError) as error:
            self.remove(made)
            raise SandboxError(f"a container could not be started: {error}") from error
        return made, attached

    def _host_config(self) -> Any:
        from docker.types import LogConfig, Ulimit

        limits = self._limits
        memory_bytes = limits.memory_bytes + _AGENT_BYTES
        config = self._client.api.create_host_config(
            network_mode="none", ipc_mode="none", read_only=True, init=False, runtime=self._runtime,
            cap_drop=["ALL"], cap_add=["SETUID", "SETGID", "KILL"],
            security_opt=["no-new-privileges", f"seccomp={json.dumps(seccomp.docker_profile())}"],
            mem_limit=memory_bytes, memswap_limit=memory_bytes, pids_limit=limits.pids + _AGENT_PIDS,
            nano_cpus=10**9, oom_kill_disable=False, log_config=LogConfig(type="none"),
            tmpfs={
                "/tmp": f"size={limits.tmp_bytes},nr_inodes={_INODES},mode=1777,nosuid,nodev,exec",
                "/dev/shm": f"size={16 << 20},nr_inodes=256,mode=1777,nosuid,nodev,noexec",
            },
            ulimits=[Ulimit(name="nofile", soft=1024, hard=1024), Ulimit(name="core", soft=0, hard=0)],
        )  # fmt: skip
        config["MaskedPaths"] = _MASKED_PATHS
        return config

    def inspect(self, container: str) -> dict[str, Any]:
        import docker

        with contextlib.suppress(docker.errors.DockerException, OSError):
            return self._client.api.inspect_container(container)["State"]
        return {}

    def remove(self, container: str) -> None:
        import docker

        with contextlib.suppress(docker.errors.DockerException, OSError):
            self._client.api.remove_container(container, force=True, v=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


_MASKED_PATHS = [
    "/proc/acpi", "/proc/asound", "/proc/bus", "/proc/cmdline", "/proc/config.gz", "/proc/consoles", "/proc/cpuinfo",
    "/proc/diskstats", "/proc/driver", "/proc/fs", "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/irq",
    "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/latency_stats",
    "/proc/loadavg", "/proc/locks", "/proc/modules", "/proc/pagetypeinfo", "/proc/partitions", "/proc/sched_debug",
    "/proc/schedstat", "/proc/scsi", "/proc/slabinfo", "/proc/softirqs", "/proc/swaps", "/proc/sys",
    "/proc/sysrq-trigger", "/proc/sysvipc", "/proc/timer_list", "/proc/timer_stats", "/proc/tty", "/proc/uptime",
    "/proc/version", "/proc/vmallocinfo", "/proc/vmstat", "/proc/zoneinfo", "/sys/firmware", "/sys/devices",
    "/sys/kernel", "/sys/class", "/sys/block", "/sys/bus",
]  # fmt: skip
