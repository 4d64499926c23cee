"""One container and the stream to the warden in it, and the engine that they come from."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import sys
import uuid
from typing import Any

from sandbox import image as images
from sandbox import rootfs, seccomp, stream
from sandbox.agent import ENVIRONMENT
from sandbox.call import Outcome
from sandbox.frames import Done, Report
from sandbox.protocol import Limits, SandboxError

LABEL = "slipstream.sandbox.owner"
_API_S = 60
_START_S = 30.0
_GRACE_S = 10.0  # beyond a program's own wall time, until the warden must have answered
_AGENT_BYTES = 48 << 20  # memory of the warden and the supervisor
_AGENT_PIDS = 6
_INODES = 16384
_STDERR_BYTES = 4096
_STREAM_HEADER = struct.Struct(">BxxxI")
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


class Container:
    """A warden, and the stream to it. Not `usable` any more once anything unexpected has happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._id = ""
        self._attached: Any = None
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._stderr = bytearray()
        self.usable = False
        self.holds_state = False
        self._cleaning = True  # a READY is still to come

    async def start(self) -> None:
        """Raises `SandboxError` with what the container said last where there is no warden in it."""
        self._id, self._attached = await asyncio.to_thread(self._engine.create)
        self._socket = getattr(self._attached, "_sock", self._attached)
        self._socket.settimeout(None)
        self._socket.setblocking(False)
        try:
            async with asyncio.timeout(_START_S):
                await self._read_ready()
        except (EOFError, OSError, TimeoutError, stream.StreamError) as error:
            state = await asyncio.to_thread(self._engine.inspect, self._id)
            said = self._stderr.decode(errors="replace").strip().splitlines()
            why = said[-1] if said else state.get("Error") or repr(error)
            raise SandboxError(
                f"the container did not start a Python {sys.version_info[0]}.{sys.version_info[1]} warden: {why}"
            ) from error
        self.usable = True

    async def _read_ready(self) -> None:
        if (await self._read_reply()).kind != stream.READY:
            raise stream.StreamError("a reply where READY was due")
        self._cleaning = False

    async def clean(self) -> bool:
        """Wait until nothing of the last program is left; False where that failed, and the container must go."""
        if self._cleaning and self.usable:
            try:
                async with asyncio.timeout(_GRACE_S):
                    await self._read_ready()
            except (EOFError, OSError, TimeoutError, stream.StreamError):
                self.usable = False
        self.usable = self.usable and not self._has_ended()
        return self.usable

    def _has_ended(self) -> bool:
        assert self._socket is not None
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def run(self, source: bytes, stdin: bytes, limits: Limits, *, once: bool) -> Outcome:
        """Run one program. Raises `SandboxError`, and then the container is not usable any more."""
        if len(source) + len(stdin) > stream.MAX_REQUEST_BYTES:
            raise ValueError(f"program and stdin are over {stream.MAX_REQUEST_BYTES} bytes together")
        request = stream.Request(
            stream.RUN, once, limits.wall_s, limits.cpu_s, limits.memory_bytes, limits.pids, limits.file_bytes,
            limits.stdout_bytes, limits.stderr_bytes, limits.result_bytes, len(source), len(stdin),
        )  # fmt: skip
        self.usable = self.holds_state = False  # until it has answered
        try:
            async with asyncio.timeout(limits.wall_s + _GRACE_S):
                await self._send(request.pack() + source + stdin)
                reply = await self._read_reply()
                bounds = (limits.stdout_bytes, limits.stderr_bytes, limits.result_bytes)
                sizes = (reply.stdout_bytes, reply.stderr_bytes, reply.result_bytes)
                if any(size > bound for size, bound in zip(sizes, bounds, strict=True)):
                    raise stream.StreamError("more output than was allowed")
                blobs = [await self._read(size) for size in sizes]
        except (EOFError, OSError, TimeoutError, stream.StreamError) as error:
            return await self._explain(error)
        self.usable, self.holds_state, self._cleaning = True, not reply.ended, reply.ended
        hits: list[Any] = reply.limits_hit()
        return Outcome(
            done=None if reply.ended else Done(0, reply.status),
            report=Report(0, 0, reply.status, reply.cpu_s, reply.wall_s, reply.max_rss_bytes) if reply.ended else None,
            limits_hit=hits, stdout=blobs[0], stderr=blobs[1], result=blobs[2],
            truncated=bool({"stdout", "stderr", "result"} & set(hits)),
            wall_s=reply.wall_s, cpu_s=max(0.0, reply.cpu_s),
        )  # fmt: skip

    async def _explain(self, error: Exception) -> Outcome:
        """The warden is gone: the program's doing if memory ran out, else the sandbox's own fault."""
        state = await asyncio.to_thread(self._engine.inspect, self._id)
        if not state.get("OOMKilled"):
            what = f"{type(error).__name__} {error}".strip()
            raise SandboxError(f"the container failed: {what}, it is {state.get('Status', 'gone')}") from error
        return Outcome(None, Report(0, 0, 9), ["memory"], b"", b"", b"", False, 0.0, 0.0)

    async def reset(self) -> None:
        """End the child that holds a state. What follows finds the container clean."""
        if self.usable and self.holds_state:
            try:
                await self._send(stream.Request(stream.RESET).pack())
                self.holds_state, self._cleaning = False, True
            except OSError:
                self.usable = False

    async def aclose(self) -> None:
        self.usable = False
        if self._attached is not None:
            with contextlib.suppress(OSError):
                self._attached.close()
            self._attached = None
        if self._id:
            await asyncio.to_thread(self._engine.remove, self._id)

    async def _send(self, data: bytes) -> None:
        assert self._socket is not None
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _read_reply(self) -> stream.Reply:
        return stream.Reply.unpack(await self._read(stream.Reply.LAYOUT.size))

    async def _read(self, count: int) -> bytes:
        """Exactly `count` bytes of the container's stdout, out of the engine's multiplexed stream."""
        while len(self._buffer) < count:
            which, size = _STREAM_HEADER.unpack(await self._receive(_STREAM_HEADER.size))
            data = await self._receive(size)
            if which == 1:
                self._buffer += data
            else:
                self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def _receive(self, count: int) -> bytes:
        assert self._socket is not None
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < count:
            chunk = await loop.sock_recv(self._socket, min(count - len(data), 1 << 20))
            if not chunk:
                raise EOFError("the stream ended")
            data += chunk
        return bytes(data)
