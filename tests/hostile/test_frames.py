"""Frames that no honest worker sends: no crash, no growth, and the honest one does not notice."""

from __future__ import annotations

import asyncio
import queue
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator

import msgspec
import psutil
import pytest
import zmq

from envs.types import Message, Status
from rollout import wire
from rollout.dispatch import _CONNECTIONS, Dispatch
from rollout.link import LinkServer
from rollout.link_client import LinkClient
from rollout.wire import Episode, Group
from tests.fakes import make_ticket

NAN = float("nan")


def honest_frames() -> list[bytes]:
    sequence = wire.Sequence([1, 2, 300], [False, True, True], [0.0, -1.0, -2.0], [-1, 3, 3])
    episode = Episode(Status.TERMINATED, [sequence], [Message("user", "hello")], 0.5, {"a": 0.5})
    frames = [
        wire.Hello("w", wire.PROTOCOL, 4, 1, [("train", 1, 0)]),
        Group(make_ticket(1), [episode, episode], "w"),
        wire.Beat([wire.Span("tool", 1.0, 2.0)], {"a": 1.0}),
        wire.Refused(make_ticket(1), "no"),
        wire.Loaded(3),
    ]
    return [wire.encode(frame) for frame in frames]


def crafted() -> list[bytes]:
    """One of each kind of rubbish that was thought of."""
    pack = msgspec.msgpack.encode
    group = msgspec.msgpack.decode(honest_frames()[1])
    tag = b"\x82\xa4type\xa5group\xa8episodes"
    beat = b"\x82\xa4type\xa4beat"
    return [
        b"",
        b"\xc1",
        b"\0" * 1000,
        pack(None),
        pack([]),
        pack({}),
        pack({"type": "nothing"}),
        pack({"type": 5}),
        pack({"type": "stop", "reason": "you are the worker"}),
        pack({"type": "welcome", "config": b"", "weights": None}),
        pack({"type": "group"}),
        pack({"type": "loaded", "version": -1}),
        pack({"type": "loaded", "version": 2**64 - 1}) + b"trailing",
        pack({"type": "loaded", "version": "3"}),
        pack({"type": "loaded", "version": 3.5}),
        pack({"type": "hello", "worker": "", "protocol": 1, "capacity": 1, "pid": 1}),
        pack({"type": "hello", "worker": "x" * 10_000, "protocol": 1, "capacity": 1, "pid": 1}),
        pack({"type": "hello", "worker": "x", "protocol": 1, "capacity": 0, "pid": 1}),
        pack({"type": "hello", "worker": "x", "protocol": 1, "capacity": 10**9, "pid": 1}),
        pack({"type": "hello", "worker": "x", "protocol": 1, "capacity": 1, "pid": 1, "holding": [["train", -1, 0]]})
        + b"\0",
        pack({"type": "beat", "spans": [], "counters": {str(i): 1.0 for i in range(2000)}}),
        pack({**group, "episodes": group["episodes"][:1]}),
        pack({**group, "episodes": [{**group["episodes"][0], "reward": NAN}] * 2}),
        pack({**group, "episodes": [{**group["episodes"][0], "reward": None}] * 2}),
        pack({**group, "episodes": [{**group["episodes"][0], "status": "won"}] * 2}),
        pack({**group, "ticket": {**group["ticket"], "group_size": 10**6}}),
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        tag + b"\xdd\xff\xff\xff\xff",
        tag + b"\x91" * 100_000,
        b"\x91" * 1_000_000,
        b"\x81\xa1x" * 100_000,
        beat + b"\xa1x" + b"\x91" * 100_000,
        beat + b"\xa8counters\xdf\xff\xff\xff\xff",
        beat + b"\xa5spans\xdd\x00\xff\xff\xff",
        beat + b"\xa8counters\x81\xa3\xff\xfe\xfd\x01",  # a key that is not UTF-8
        b"\xc9\x00\x00\x00\x04\x01pick",  # an extension type
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",  # a pickle
    ]


def rubbish(count: int, seed: int = 0) -> Iterator[bytes]:
    """Crafted frames, and honest ones that were cut off or damaged."""
    rng = random.Random(seed)
    fixed, honest = [frame for frame in crafted() if len(frame) < 2000], honest_frames()
    for _ in range(count):
        match rng.randrange(4):
            case 0:
                yield rng.choice(fixed)
            case 1:
                frame = rng.choice(honest)
                yield frame[: rng.randrange(len(frame))]
            case 2:
                frame = bytearray(rng.choice(honest))
                for _ in range(rng.randrange(1, 6)):
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
                yield bytes(frame)
            case _:
                yield rng.randbytes(rng.randrange(200))


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("frame", crafted(), ids=range(len(crafted())))
def test_crafted_frames_are_refused_without_much_memory(frame):
    tracemalloc.start()
    try:
        with pytest.raises(wire.WireError):
            wire.decode_to_trainer(frame)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_malformed_frames_from_ever_new_connections():
    """None of them is ignored because of earlier ones, and still nothing grows."""
    groups: list[Group] = []
    dispatch = Dispatch(
        lambda connection, frame: "sent", b"{}", groups.append, groups.append, silence_s=20.0, strikes=16, outbox=64
    )
    honest = honest_frames()
    dispatch.grant(make_ticket(1))
    before = 0
    for i, frame in enumerate(rubbish(100_000)):
        dispatch.receive(b"connection %d" % i, [frame], now=i / 1000)
        if i % 1000 == 0:
            dispatch.tick(i / 1000)
        if i == 20_000:
            before = resident_bytes()
    assert resident_bytes() - before < 8 << 20
    assert len(dispatch._malformed) <= _CONNECTIONS
    assert dispatch.state(0.0).counts["malformed"] > 90_000
    assert groups == []
    dispatch.receive(b"honest", [honest[0]], 100.0)
    dispatch.receive(b"honest", [honest[1]], 100.0)
    assert len(groups) == 1


async def test_a_hundred_thousand_malformed_frames_while_an_honest_worker_works(tmp_path):
    groups: queue.Queue[Group] = queue.Queue()
    server = LinkServer(f"ipc://{tmp_path}/link", b"{}", groups.put)
    server.start()
    client = LinkClient(server.address, "honest", 4)
    await client.connect(10)
    client.send_loaded(0)

    def attack() -> None:
        with zmq.Context() as context:
            for number in range(10):
                with context.socket(zmq.DEALER) as dealer:
                    dealer.linger = 5000
                    dealer.connect(server.address)
                    for frame in rubbish(10_000, seed=number):
                        dealer.send_multipart([frame, b"x", b"y"] if frame.startswith(b"\0") else [frame])
                        while dealer.poll(0):  # the answers
                            dealer.recv_multipart()

    attacking = asyncio.create_task(asyncio.to_thread(attack))
    before = resident_bytes()
    played = 0
    async with asyncio.timeout(60):
        while not attacking.done() or played < 20:
            server.grant(make_ticket(played))
            ticket = await client.receive()
            assert isinstance(ticket, wire.Ticket)
            episode = Episode(Status.TERMINATED, [], [], 1.0, {})
            client.send_group(Group(ticket, [episode] * 2, "honest"))
            assert (await asyncio.to_thread(groups.get, timeout=10)).ticket.id == played
            played += 1
        await attacking
        while server.state().counts.get("malformed", 0) + server.state().counts.get("unknown", 0) < 99_000:
            await asyncio.sleep(0.01)
    server.check()
    assert [worker.name for worker in server.state().workers if worker.name == "honest"] == ["honest"]
    assert resident_bytes() - before < 64 << 20
    await client.aclose()
    server.close()


async def test_frames_over_the_limit_and_bytes_that_are_no_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1 << 20)
    groups: queue.Queue[Group] = queue.Queue()
    server = LinkServer(f"ipc://{tmp_path}/link", b"{}", groups.put)
    server.start()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(server.address)
        dealer.send(b"\0" * (8 << 20))
        rng = random.Random(1)
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(server.address.removeprefix("ipc://"))
                raw.sendall(rng.randbytes(rng.randrange(300)))
        with socket.socket(socket.AF_UNIX) as raw:  # a greeting, and then a header that promises 2**63 bytes
            raw.connect(server.address.removeprefix("ipc://"))
            raw.sendall(b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48 + b"\x06" + struct.pack(">Q", 2**63 - 1))
        client = LinkClient(server.address, "honest", 4)
        await client.connect(10)
        client.send_loaded(0)
        server.grant(make_ticket(0))
        ticket = await asyncio.wait_for(client.receive(), 10)
        client.send_group(Group(ticket, [Episode(Status.TERMINATED, [], [], 1.0, {})] * 2, "honest"))
        assert (await asyncio.to_thread(groups.get, timeout=10)).ticket == ticket
        server.check()
        await client.aclose()
    server.close()


async def test_a_flood_of_workers_that_never_read(tmp_path):
    groups: queue.Queue[Group] = queue.Queue()
    server = LinkServer(f"ipc://{tmp_path}/link", b"{}", groups.put, outbox=100)
    server.start()
    for id in range(500):
        server.grant(make_ticket(id, env="x" * 1000))
    with zmq.Context() as context:
        flood = [context.socket(zmq.DEALER) for _ in range(30)]
        for number, dealer in enumerate(flood):
            dealer.linger, dealer.rcvhwm = 0, 1
            dealer.connect(server.address)
            dealer.send(wire.encode(wire.Hello(f"mute {number}", wire.PROTOCOL, 65536, number)))
            dealer.send(wire.encode(wire.Loaded(0)))
        client = LinkClient(server.address, "honest", 4)
        await client.connect(10)
        for dealer in flood:
            dealer.close()
        client.send_loaded(0)
        for _ in range(500):
            ticket = await asyncio.wait_for(client.receive(), 20)
            client.send_group(Group(ticket, [Episode(Status.TERMINATED, [], [], 1.0, {})] * 2, "honest"))
        assert sorted(groups.get(timeout=10).ticket.id for _ in range(500)) == list(range(500))
        await client.aclose()
    server.close()
