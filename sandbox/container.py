"""One container and the stream to the warden in it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

from sandbox import stream
from sandbox.call import Outcome
from sandbox.frames import Done, Report
from sandbox.protocol import Limits, SandboxError

if TYPE_CHECKING:
    from sandbox.engine import Engine

_START_S = 30.0
_GRACE_S = 10.0  # beyond a program's own wall time, until the warden must have answered
_STDERR_BYTES = 4096
_STREAM_HEADER = struct.Struct(">BxxxI")


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
        hits: list[Any] = reply.limits_hit()
        # the engine remembers that memory ran out once, and would say so of whatever ends this container later
        self.usable, self.holds_state, self._cleaning = "memory" not in hits, not reply.ended, reply.ended
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
