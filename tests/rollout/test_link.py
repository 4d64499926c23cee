"""Both ends of the link over real sockets."""

from __future__ import annotations

import asyncio
import queue
import stat
import time
from pathlib import Path

import pytest
import zmq

from envs.types import Status
from rollout import link_client, wire
from rollout.keys import Keys
from rollout.link import LinkError, LinkServer
from rollout.link_client import LinkClient, TrainerLost
from rollout.wire import Episode, Group, Revoke, Stop, Ticket, Weights
from tests.fakes import make_ticket

WAIT_S = 10.0


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/link"


@pytest.fixture
def groups() -> queue.Queue[Group]:
    return queue.Queue()


@pytest.fixture
def serve(address, groups):
    """Start servers; whatever the test leaves open is closed."""
    servers = []

    def start(*tickets: Ticket, on_group=groups.put, **settings) -> LinkServer:
        server = LinkServer(settings.pop("address", address), b"{}", on_group, **settings)
        for ticket in tickets:
            server.grant(ticket)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def join(address):
    """Connect workers that are ready for tickets."""
    clients = []

    async def connect(name: str = "w", capacity: int = 4, **settings) -> LinkClient:
        client = LinkClient(settings.pop("address", address), name, capacity, **settings)
        clients.append(client)
        await client.connect(WAIT_S)
        client.send_loaded(0)
        return client

    yield connect
    for client in clients:
        await client.aclose()


def group_of(ticket: Ticket, worker: str = "w", size: int = 0) -> Group:
    sequence = wire.Sequence([1] * size, [True] * size, [-0.5] * size, [0] * size)
    return Group(ticket, [Episode(Status.TERMINATED, [sequence], [], 1.0, {})] * ticket.group_size, worker)


async def receive(client: LinkClient) -> link_client.Work:
    async with asyncio.timeout(WAIT_S):
        return await client.receive()


async def until(condition) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_ticket_goes_out_and_its_group_comes_back_and_is_acknowledged(serve, join, groups):
    server = serve(make_ticket(3))
    server.publish(Weights(5, "/w5"))
    client = await join()
    ticket = await receive(client)
    assert ticket == make_ticket(3)
    assert client.holding == [("train", 3, 0)]
    client.send_group(group_of(ticket))
    assert await asyncio.to_thread(groups.get, timeout=WAIT_S) == group_of(ticket)
    await until(lambda: not client.holding)
    await until(lambda: server.state().counts == {"accepted": 1})
    server.publish(Weights(6, "/w6"))
    server.stop("enough")
    assert await receive(client) == Weights(6, "/w6")
    assert await receive(client) == Stop("enough")


async def test_the_welcome_carries_configuration_and_weights(serve, address):
    server = serve()
    server.publish(Weights(5, "/w5"))
    client = LinkClient(address, "w", 1)
    assert await client.connect(WAIT_S) == wire.Welcome(b"{}", Weights(5, "/w5"))
    await client.aclose()


async def test_beats_carry_spans_and_counters(serve, join, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)
    server = serve()
    beat = wire.Beat([wire.Span("tool", 1.0, 2.0)], {"episodes": 2.0})
    await join(observe=lambda: beat)
    await until(lambda: server.state().workers and server.state().workers[0].counters)
    assert server.state().workers[0].counters == {"episodes": 2.0}
    assert server.take_spans()[0] == ("w", wire.Span("tool", 1.0, 2.0))


async def test_a_worker_comes_back_to_a_restarted_trainer_with_all_that_it_holds(serve, join, groups, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)

    def full(group):
        raise OSError("No space left on device")

    first = serve(make_ticket(0), make_ticket(1), make_ticket(2), on_group=full)
    client = await join()
    tickets = [await receive(client) for _ in range(3)]
    client.send_group(group_of(tickets[0]))
    client.send_group(group_of(tickets[1]))
    await until(lambda: first._error)
    with pytest.raises(LinkError, match="No space left"):
        first.check()
    first.close()
    second = serve(make_ticket(0), make_ticket(2))  # ticket 1 is not wanted any more
    assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 0
    await until(lambda: client.holding == [("train", 2, 0)])
    await until(lambda: second.state().workers and second.state().workers[0].held == 1)
    client.send_group(group_of(tickets[2]))
    assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 2
    await until(lambda: not client.holding)
    assert groups.empty()
    assert second.state().workers[0].loaded == 0


async def test_a_group_without_an_ack_is_sent_again(serve, join, groups, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)
    server = serve(make_ticket(0))
    client = await join(resend_s=0.2)
    ticket = await receive(client)
    dropped = []
    real_send = client._send
    monkeypatch.setattr(client, "_send", lambda f: dropped.append(f) if len(dropped) < 1 else real_send(f))
    client.send_group(group_of(ticket))
    assert len(dropped) == 1
    assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 0
    await until(lambda: not client.holding)
    await until(lambda: server.state().counts == {"accepted": 1})


async def test_a_revoked_ticket_is_forgotten_and_its_group_is_not_sent(serve, join, groups):
    server = serve(make_ticket(0))
    client = await join()
    ticket = await receive(client)
    server.revoke(ticket)
    assert await receive(client) == Revoke("train", 0, 0)
    client.send_group(group_of(ticket))
    server.grant(make_ticket(1))
    client.send_group(group_of(await receive(client)))
    assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 1
    await until(lambda: server.state().counts == {"accepted": 1})


async def test_a_silent_trainer_is_given_up(serve, join, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)
    server = serve()
    client = await join(silence_s=0.5)
    server.close()
    with pytest.raises(TrainerLost, match=r"silent for .* s"):
        await receive(client)


async def test_no_trainer_at_all(address):
    client = LinkClient(address, "w", 1)
    began = time.monotonic()
    with pytest.raises(TrainerLost, match=r"no trainer answered at ipc://.* within 0.3 s"):
        await client.connect(0.3)
    await client.aclose()
    assert time.monotonic() - began < 3


async def test_the_trainers_reason_for_turning_a_worker_away(serve, address, monkeypatch):
    serve()
    monkeypatch.setattr(link_client.wire, "PROTOCOL", 99)
    client = LinkClient(address, "w", 1)
    original = wire.Hello
    monkeypatch.setattr(link_client.wire, "Hello", lambda w, p, *rest: original(w, 98, *rest))
    with pytest.raises(TrainerLost, match="speaks protocol 99, the worker 98"):
        await client.connect(WAIT_S)
    await client.aclose()


async def test_rubbish_from_the_trainer_ends_the_worker(address):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(address)
        client = LinkClient(address, "w", 1)
        connecting = asyncio.create_task(client.connect(WAIT_S))
        identity, _ = await asyncio.to_thread(router.recv_multipart)
        router.send_multipart([identity, b"\xc1"])
        with pytest.raises(TrainerLost, match="not a frame of protocol"):
            await connecting
        await client.aclose()


async def test_a_worker_goes_on_beating_for_a_trainer_that_may_come_back(address, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(address)
        client = LinkClient(address, "w", 1, observe=lambda: wire.Beat(counters={"seen": 1.0}))
        connecting = asyncio.create_task(client.connect(WAIT_S))
        identity, _ = await asyncio.to_thread(router.recv_multipart)
        router.send_multipart([identity, wire.encode(wire.Welcome(b"{}", None))])
        await connecting
        await asyncio.sleep(0.6)
        beats = []
        while router.poll(0):
            beats.append(wire.decode_to_trainer(router.recv_multipart()[1]))
        await client.aclose()
    assert beats[0] == wire.Beat(counters={"seen": 1.0})
    assert beats[-1] == wire.Beat(), "nothing of worth goes to a trainer that may be gone"
    assert len(beats) >= 6, "it is silent after three beats without an answer"


async def test_another_configuration_after_a_restart_ends_the_worker(serve, join, address, monkeypatch):
    monkeypatch.setattr(link_client, "BEAT_S", 0.05)
    serve().close()
    first = serve()
    client = await join()
    first.close()
    second = LinkServer(address, b'{"model": "other"}', lambda group: None)
    second.start()
    with pytest.raises(TrainerLost, match="another configuration"):
        await receive(client)
    second.close()


async def test_a_worker_that_never_reads_does_not_hold_up_the_others(serve, join, groups, address):
    server = serve(outbox=20_000)
    with zmq.Context() as context, context.socket(zmq.DEALER) as slow:
        slow.linger = 0
        slow.rcvhwm = 1
        slow.connect(address)
        slow.send(wire.encode(wire.Hello("slow", wire.PROTOCOL, 60_000, 1)))
        slow.send(wire.encode(wire.Loaded(0)))
        await until(lambda: server.state().workers and server.state().workers[0].loaded == 0)
        padding = "x" * 2000  # an ipc socket's buffers hold some 200 kB
        for id in range(6000):
            server.grant(make_ticket(id, env=padding))
        await until(lambda: server.state().out == 6000)
        client = await join("quick", 4)
        await until(lambda: [w.loaded for w in server.state().workers] == [0, 0])  # it may be given tickets now
        server.grant(make_ticket(10_000))
        ticket = await receive(client)
        assert ticket.id == 10_000
        client.send_group(group_of(ticket, "quick"))
        assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 10_000
        assert server._dispatch.behind(), "the slow one has not read its tickets"
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 3


async def test_large_groups_arrive_whole(serve, join, groups):
    serve(make_ticket(0, group_size=4))
    client = await join()
    sent = group_of(await receive(client), size=200_000)
    client.send_group(sent)
    came = await asyncio.to_thread(groups.get, timeout=WAIT_S)
    same = came == sent  # apart: a failure would print both
    assert same


async def test_a_group_over_the_frame_limit_stops_the_run_with_its_size(serve, join, monkeypatch):
    server = serve(make_ticket(0))
    client = await join()
    ticket = await receive(client)
    monkeypatch.setattr(link_client.wire, "MAX_FRAME_BYTES", 1000)
    client.send_group(group_of(ticket, size=1000))
    await until(lambda: server._error)
    with pytest.raises(LinkError, match=r"its group has \d+ bytes, over 1000"):
        server.check()


async def test_errors_reach_the_callback(serve, join):
    seen: queue.Queue[LinkError] = queue.Queue()
    serve(make_ticket(0), on_error=seen.put)
    client = await join()
    client.send_refused(await receive(client), "no such environment")
    assert "no such environment" in str(await asyncio.to_thread(seen.get, timeout=WAIT_S))


def test_close_is_quick_leaves_no_file_and_may_come_twice(serve, address):
    server = serve()
    path = Path(address.removeprefix("ipc://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    began = time.monotonic()
    server.close()
    server.close()
    server.grant(make_ticket())  # ignored, not an error: the run ends in any order
    assert time.monotonic() - began < 3
    assert not path.exists()


def test_a_server_that_never_started_closes(address):
    LinkServer(address, b"{}", lambda group: None).close()
    assert not Path(address.removeprefix("ipc://")).exists()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("tcp://0.0.0.0:0", "needs keys"),
        ("tcp://*:5555", "needs keys"),
        ("tcp://192.0.2.1:5555", "needs keys"),
        ("inproc://x", "ipc:// or tcp://"),
        ("/tmp/x", "ipc:// or tcp://"),
        ("ipc:///nonexistent/folder/link", "cannot listen at"),
        ("ipc://" + "/x" * 100, "cannot listen at"),
    ],
)
def test_addresses_that_are_refused(bad, said):
    with pytest.raises(ValueError, match=said):
        LinkServer(bad, b"{}", lambda group: None)


async def test_curve_lets_in_the_runs_workers_and_nobody_else(serve, join, groups, tmp_path):
    keys = Keys.generate()
    server = serve(make_ticket(0), address="tcp://127.0.0.1:0", keys=keys)
    keys.write_for_workers(tmp_path / "keys.json")
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    given = Keys.read(tmp_path / "keys.json")
    assert given.trainer_secret == ""

    other = Keys.generate()
    strangers = [None, other, Keys(keys.trainer_public, other.worker_public, other.worker_secret)]
    for stranger in strangers:
        client = LinkClient(server.address, "stranger", 1, keys=stranger)
        with pytest.raises(TrainerLost, match="no trainer answered"):
            await client.connect(0.5)
        await client.aclose()
    assert server.state().workers == ()

    client = await join(address=server.address, keys=given)
    client.send_group(group_of(await receive(client)))
    assert (await asyncio.to_thread(groups.get, timeout=WAIT_S)).ticket.id == 0


def test_a_file_without_keys(tmp_path):
    (tmp_path / "keys").write_text('{"trainer_public": 3}')
    with pytest.raises(ValueError, match="does not hold a worker's keys"):
        Keys.read(tmp_path / "keys")
