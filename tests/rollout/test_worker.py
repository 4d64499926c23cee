"""The worker: many tickets at once, weights in flight, revocation, and the process around it."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from envs import Message
from rollout.engine import EngineError
from rollout.episode import Stage
from rollout.link import LinkError, LinkServer
from rollout.link_client import LinkClient
from rollout.wire import Group, Weights
from rollout.worker import CANNOT_START, TRAINER_GONE, Worker, WorkerConfig
from tests.fakes import Dice, FakeChat, FakeEngine, make_ticket

WAIT_S = 15.0


class Run:
    """A server and, in this event loop, one worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.groups: queue.Queue[Group] = queue.Queue()
        self.server = LinkServer(f"ipc://{folder}/link", b"{}", self.groups.put)
        self.server.start()

    def publish(self, version: int) -> None:
        path = self.folder / f"w{version}"
        path.write_text(str(version))
        self.server.publish(Weights(version, str(path)))

    async def work(self, engine: FakeEngine, capacity: int = 16, max_episodes: int = 128) -> str:
        link = LinkClient(self.server.address, "w0", capacity)
        try:
            welcome = await link.connect(WAIT_S)
            self.worker = Worker(link, Stage(engine, FakeChat), max_episodes)
            return await self.worker.run(welcome.weights)
        finally:
            await link.aclose()

    async def group(self) -> Group:
        return await asyncio.to_thread(self.groups.get, timeout=WAIT_S)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.server.close()


async def test_tickets_in_groups_out(run):
    run.publish(1)
    for id in range(40):
        run.server.grant(make_ticket(id, group_size=4))
    working = asyncio.create_task(run.work(engine := FakeEngine()))
    groups = [await run.group() for _ in range(40)]
    assert sorted(group.ticket.id for group in groups) == list(range(40))
    assert all(group.worker == "w0" and group.wall_s > 0 for group in groups)
    assert {version for group in groups for each in group.episodes for version in each.versions()} == {1}
    run.server.stop("that was all")
    assert await working == "that was all"
    assert engine.sessions == set()


async def test_tickets_that_follow_weights_are_played_with_them(run):
    class LoadsSlowly(FakeEngine):
        async def load(self, path, version):
            await asyncio.sleep(0.05)
            await super().load(path, version)

    working = asyncio.create_task(run.work(LoadsSlowly(pace_s=0.002)))
    for version in range(1, 8):
        run.publish(version)
        run.server.grant(make_ticket(version))
        group = await run.group()
        assert {v for each in group.episodes for v in each.versions()} == {version}
    run.server.stop("")
    await working


async def test_weights_change_in_the_middle_of_episodes(run):
    run.publish(1)
    engine = FakeEngine(pace_s=0.2)
    working = asyncio.create_task(run.work(engine))
    run.server.grant(make_ticket(0, group_size=1))
    while not engine.sessions:
        await asyncio.sleep(0.01)
    run.publish(2)
    (episode,) = (await run.group()).episodes
    assert set(episode.versions()) == {1, 2}
    assert episode.versions() == sorted(episode.versions())
    run.server.stop("")
    await working


async def test_only_the_newest_of_many_weights_is_loaded(run):
    class Slow(FakeEngine):
        def __init__(self):
            super().__init__()
            self.loads = []

        async def load(self, path, version):
            self.loads.append(version)
            await asyncio.sleep(0.2)
            await super().load(path, version)

    run.publish(1)
    working = asyncio.create_task(run.work(engine := Slow()))
    while not engine.loads:
        await asyncio.sleep(0.01)
    for version in range(2, 10):
        run.publish(version)
        (run.folder / f"w{version - 1}").unlink(missing_ok=True)  # pruned, as the trainer does; even the one in loading
    run.server.grant(make_ticket(0))
    group = await run.group()
    assert engine.loads[0] == 1
    assert engine.loads[-1] == 9
    assert len(engine.loads) <= 4
    assert {v for each in group.episodes for v in each.versions()} == {9}
    run.server.stop("")
    await working


@pytest.mark.parametrize("error", [EngineError("half of the tensors are missing"), None])
async def test_weights_that_cannot_be_loaded_end_the_worker(run, error):
    class Broken(FakeEngine):
        async def load(self, path, version):
            if error:
                raise error
            await super().load("/nonexistent", version)

    run.publish(1)
    with pytest.raises((EngineError, FileNotFoundError)):
        await run.work(Broken())


async def test_an_engine_that_breaks_ends_the_worker_and_none_of_its_groups_is_sent(run):
    class Breaks(FakeEngine):
        async def generate(self, token_ids, sampling, *, session):
            raise EngineError("out of memory")

        def check(self):
            raise EngineError("the engine failed: out of memory")

    run.publish(1)
    run.server.grant(make_ticket(0))
    with pytest.raises(EngineError, match="the engine failed: out of memory"):
        await run.work(Breaks())
    assert run.groups.empty()


async def test_episodes_in_play_are_bounded_and_waiting_tickets_start_as_soon_as_there_is_room(run):
    class Counts(FakeEngine):
        most = 0

        async def generate(self, token_ids, sampling, *, session):
            completion = await super().generate(token_ids, sampling, session=session)
            self.most = max(self.most, len(self.sessions))
            return completion

    for id in range(12):
        run.server.grant(make_ticket(id, group_size=4))
    working = asyncio.create_task(run.work(engine := Counts(pace_s=0.005), capacity=12, max_episodes=10))
    for _ in range(12):
        await run.group()
    assert engine.most == 8, "two groups of 4, a third does not fit"
    run.server.grant(make_ticket(99, group_size=40))
    assert len((await run.group()).episodes) == 40, "a group over the bound plays alone"
    run.server.stop("")
    await working


async def test_revoked_tickets_stop_and_make_room(run):
    Dice.opened = Dice.closed = 0
    engine = FakeEngine(pace_s=30)
    working = asyncio.create_task(run.work(engine, capacity=2, max_episodes=2))
    run.server.grant(make_ticket(0))
    run.server.grant(make_ticket(1))
    while len(engine.sessions) < 2:
        await asyncio.sleep(0.01)
    run.server.revoke(make_ticket(1))  # waiting in the worker
    run.server.revoke(make_ticket(0))  # in play
    while engine.sessions:
        await asyncio.sleep(0.01)
    engine.pace_s = 0
    run.server.grant(make_ticket(2))
    assert (await run.group()).ticket.id == 2
    assert Dice.opened == Dice.closed == 4
    run.server.stop("")
    await working


async def test_stop_ends_what_is_in_play(run):
    Dice.opened = Dice.closed = 0
    engine = FakeEngine(pace_s=30)
    working = asyncio.create_task(run.work(engine))
    run.server.grant(make_ticket(0, group_size=5))
    while len(engine.sessions) < 5:
        await asyncio.sleep(0.01)
    run.server.stop("enough")
    assert await asyncio.wait_for(working, WAIT_S) == "enough"
    assert Dice.opened == Dice.closed == 5


async def test_an_unknown_environment_is_refused(run):
    working = asyncio.create_task(run.work(FakeEngine()))
    run.server.grant(make_ticket(0, env="nope-v0"))

    async def check_until_it_raises():
        while True:
            run.server.check()
            await asyncio.sleep(0.01)

    with pytest.raises(LinkError, match="cannot play 'nope-v0': UnknownEnvironment"):
        await asyncio.wait_for(check_until_it_raises(), WAIT_S)
    run.server.stop("")
    await working


async def test_a_bug_in_the_worker_is_not_swallowed(run, monkeypatch):
    async def broken(ticket, stage):
        raise ZeroDivisionError

    monkeypatch.setattr("rollout.worker.play_group", broken)
    run.server.grant(make_ticket(0))
    with pytest.raises(ZeroDivisionError):
        await run.work(FakeEngine())


async def test_what_the_worker_did_is_reported(run):
    working = asyncio.create_task(run.work(FakeEngine(pace_s=0.05)))
    for id in range(8):
        run.server.grant(make_ticket(id))
    for _ in range(8):
        await run.group()
    beat = run.worker.observe()
    assert beat.counters["episodes"] == 16
    assert beat.counters["groups"] == 8
    assert beat.counters["sampled_tokens"] > 16 * 3
    assert {span.what for span in beat.spans} <= {"generate", "tool", "load", "idle"}
    busy = sum(span.end - span.start for span in beat.spans if span.what == "generate")
    assert 0.1 < busy < 1.0
    run.server.stop("")
    await working


# The process


class Process:
    """A worker process against a server of the test."""

    def __init__(self, folder: Path, config: WorkerConfig | bytes) -> None:
        welcome = config if isinstance(config, bytes) else msgspec.json.encode(config)
        self.groups: queue.Queue[Group] = queue.Queue()
        self.server = LinkServer(f"ipc://{folder}/link", welcome, self.groups.put)
        self.server.start()
        self.process: subprocess.Popen[str] | None = None

    def start(self, *more: str, module: str = "tests.fakes") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, "--connect", self.server.address, "--name", "w0", *more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        return self.process

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        _, said = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, said

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self.server.close()


@pytest.fixture
def start(tmp_path):
    made = []

    def build(config: WorkerConfig | bytes) -> Process:
        made.append(Process(tmp_path, config))
        return made[-1]

    yield build
    for process in made:
        process.close()


def config(**changes) -> WorkerConfig:
    return WorkerConfig(**{"model": "", "engine": "tests.fakes:FakeEngine", "sandbox": ""} | changes)


def test_a_worker_process_plays_and_ends_with_the_run(start):
    run = start(config())
    run.server.grant(make_ticket(0, group_size=3))
    run.start("--parent", str(os.getpid()))
    group = run.groups.get(timeout=60)
    assert len(group.episodes) == 3
    run.server.stop("done")
    assert run.end() == (0, "")


def test_sigterm_ends_a_worker_in_order(start):
    run = start(config(engine_options={"pace_s": 30}))
    run.server.grant(make_ticket(0))
    process = run.start()
    deadline = time.monotonic() + 60
    while not any(worker.held for worker in run.server.state().workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert run.end() == (0, "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "warp"}, "engine 'warp' cannot be used"),
        ({"engine": "tests.fakes:NoEngine"}, "no attribute 'NoEngine'"),
        ({"sandbox": "vacuum"}, "vacuum"),
        (b'{"model": "x", "sluts": 3}', "unknown field `sluts`"),
    ],
)
def test_a_worker_that_cannot_start_says_why(start, changes, said):
    run = start(changes if isinstance(changes, bytes) else config(**changes))
    run.start(module="rollout.worker")
    status, stderr = run.end()
    assert status == CANNOT_START
    assert stderr.startswith("worker w0: cannot start: ")
    assert said in stderr
    assert stderr.count("\n") == 1


def test_a_worker_without_a_trainer_says_so(start):
    run = start(b"{}")
    run.server.close()
    run.start("--hello-s", "0.3")
    status, stderr = run.end()
    assert status == TRAINER_GONE
    assert "no trainer answered" in stderr


def test_conversations_are_with_the_configured_model(tmp_path):
    from tests.rollout import tiny_models

    tokenizer = tiny_models.tokenizer()
    tokenizer.save_pretrained(tmp_path)
    chat = config(model=str(tmp_path)).make_new_chat()(())
    chat.add(Message("user", "hello world"))
    assert "hello world" in tokenizer.decode(chat.prompt())


def test_an_engine_is_made_as_configured():
    engine = config(engine_options={"pace_s": 3.5}).find_engine()()
    assert isinstance(engine, FakeEngine)
    assert engine.pace_s == 3.5
    with pytest.raises(TypeError):
        config(engine="asyncio:Lock").find_engine()()


def test_a_model_without_a_chat_template_cannot_be_used():
    with pytest.raises(ValueError, match="/nonexistent"):
        config(model="/nonexistent").make_new_chat()


def test_a_worker_does_not_outlive_its_parent(start):
    run = start(config(engine_options={"pace_s": 30}))
    run.server.grant(make_ticket(0))
    script = (
        "import os, subprocess, sys\n"
        f"command = [sys.executable, '-m', 'tests.fakes', '--connect', '{run.server.address}', '--name', 'w0',"
        " '--parent', str(os.getpid())]\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    try:
        deadline = time.monotonic() + 60
        while not any(each.held for each in run.server.state().workers):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        parent.kill()
        parent.communicate()
        deadline = time.monotonic() + 5
        while alive(worker):
            assert time.monotonic() < deadline, "the worker lives on"
            time.sleep(0.02)
    finally:
        parent.kill()
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
