"""Any process may get SIGKILL or SIGSTOP at any moment: no ticket is lost, and none counts twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout.engine import Sampling
from rollout.episode import Stage, play_group
from rollout.link import LinkServer
from rollout.wire import Group
from tests.chaos import processes
from tests.fakes import FakeChat, FakeEngine, make_ticket

DEADLINE_S = 60.0


class Trainer:
    """The trainer's end of the link in this process, with workers in their own."""

    def __init__(self, folder: Path, pace_s: float = 0.01, **settings) -> None:
        self.groups: list[Group] = []
        self.server = LinkServer(f"ipc://{folder}/link", processes.config(pace_s), self.groups.append, **settings)
        self.server.start()
        self.workers: dict[str, processes.BaseProcess] = {}

    def start(self, name: str, *options: str) -> None:
        self.workers[name] = processes.start_worker(self.server.address, name, *options)

    def held(self) -> dict[str, int]:
        return {worker.name: worker.held for worker in self.server.state().workers}

    def counters(self, name: str) -> dict[str, float]:
        return next((worker.counters for worker in self.server.state().workers if worker.name == name), {})

    def arrived(self) -> Counter[int]:
        return Counter(group.ticket.id for group in self.groups)

    def close(self) -> None:
        self.server.stop("the test is over")
        self.server.close()
        for process in self.workers.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
                process.join(10)
                if process.is_alive():
                    processes.kill(process)


@pytest.fixture
def start(tmp_path):
    made: list[Trainer] = []

    def build(**settings) -> Trainer:
        made.append(Trainer(tmp_path, **settings))
        return made[-1]

    yield build
    for trainer in made:
        trainer.close()


def until(condition: Callable[..., bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def content(groups: list[Group]) -> dict[int, list]:
    return {group.ticket.id: [(each.sequences, each.reward) for each in group.episodes] for group in groups}


@pytest.mark.parametrize("noticed", [True, False], ids=["the supervisor tells", "only silence tells"])
def test_workers_are_killed_at_random_moments(start, noticed):
    rng, kills, tickets = random.Random(noticed), 10, 240
    trainer = start(silence_s=1.5)
    names = ["w0", "w1", "w2"]
    for name in names:
        trainer.start(name, "--capacity", "6")
    for id in range(tickets):
        trainer.server.grant(make_ticket(id))
    for kill in range(kills):
        wanted = min(len(trainer.groups) + 1, tickets)
        until(lambda wanted=wanted: len(trainer.groups) >= wanted, "nothing arrives any more")
        time.sleep(rng.uniform(0, 0.1))
        name = rng.choice(names)
        processes.kill(trainer.workers[name])
        if noticed:
            trainer.server.worker_gone(name)
            trainer.start(name, "--capacity", "6")
        else:  # another takes its place
            names[names.index(name)] = f"n{kill}"
            trainer.start(f"n{kill}", "--capacity", "6")
    until(lambda: len(trainer.groups) >= tickets, f"only {len(trainer.groups)} of {tickets} arrived")
    time.sleep(0.3)
    assert trainer.arrived() == Counter(range(tickets))
    assert trainer.server.state().counts["regranted"] > 0

    sample = rng.sample(range(tickets), 20)
    alone = Stage(FakeEngine(), FakeChat)
    for id in sample:
        episodes = asyncio.run(play_group(make_ticket(id), alone))
        assert content(trainer.groups)[id] == [(each.sequences, each.reward) for each in episodes]


def test_trainer_and_workers_are_killed_at_random_moments(tmp_path):
    rng, tickets = random.Random(3), 400
    trainer = processes.start_trainer(tmp_path, tickets, 0.004)
    options = ("--capacity", "6", "--silence-s", "30")
    workers = [processes.start_worker(f"ipc://{tmp_path}/link", f"w{i}", *options) for i in range(2)]
    kills = 0
    try:
        for _ in range(12):
            wanted = min(len(processes.ledger(tmp_path)) + 1, tickets)
            until(lambda wanted=wanted: len(processes.ledger(tmp_path)) >= wanted, "nothing arrives any more")
            time.sleep(rng.uniform(0, 0.15))
            if not trainer.is_alive():
                break
            kills += 1
            if rng.random() < 0.75:
                processes.kill(trainer)
                trainer = processes.start_trainer(tmp_path, tickets, 0.004)
            else:
                i = rng.randrange(2)
                processes.kill(workers[i])
                workers[i] = processes.start_worker(f"ipc://{tmp_path}/link", f"w{i}", *options)
        trainer.join(DEADLINE_S)
        assert trainer.exitcode == 0
        for worker in workers:
            worker.join(3)
            if worker.is_alive():  # it was on its way back to a trainer that had ended by then: as a supervisor ends it
                worker.terminate()
            worker.join(10)
            assert worker.exitcode == 0, "the worker ends in order"
    finally:
        for process in (trainer, *workers):
            if process.is_alive():
                processes.kill(process)
    assert kills >= 5
    assert Counter(processes.ledger(tmp_path)) == Counter(range(tickets))


def test_a_stalled_worker_is_given_up_and_welcomed_back(start):
    trainer = start(pace_s=0.2, silence_s=1.5)
    trainer.start("stalls", "--capacity", "4")
    for id in range(4):
        trainer.server.grant(make_ticket(id))
    until(lambda: trainer.held().get("stalls") == 4, "it took no tickets")
    os.kill(trainer.workers["stalls"].pid, signal.SIGSTOP)
    trainer.start("steady", "--capacity", "4")
    until(lambda: len(trainer.groups) == 4, "its tickets were not played by the other")
    assert "stalls" not in trainer.held()
    for id in range(4, 12):
        trainer.server.grant(make_ticket(id))
    os.kill(trainer.workers["stalls"].pid, signal.SIGCONT)
    until(lambda: trainer.held().get("stalls", 0) > 0, "it got no tickets after its return")
    until(lambda: len(trainer.groups) == 12, "not all arrived")
    time.sleep(0.5)
    assert trainer.arrived() == Counter(range(12))
    assert {group.worker for group in trainer.groups if group.ticket.id < 4} == {"steady"}
    assert {group.worker for group in trainer.groups if group.ticket.id >= 4} == {"stalls", "steady"}


def test_a_late_group_that_arrives_first_counts_and_the_other_copy_does_not(start):
    trainer = start(pace_s=0.5, silence_s=3.0)
    trainer.start("late", "--capacity", "1")
    trainer.server.grant(make_ticket(0, group_size=1))
    until(lambda: trainer.held().get("late") == 1, "it took no ticket")
    os.kill(trainer.workers["late"].pid, signal.SIGSTOP)
    until(lambda: "late" not in trainer.held(), "it was not given up")
    trainer.start("second", "--capacity", "1")
    until(lambda: trainer.held().get("second") == 1, "nobody else took it")
    os.kill(trainer.workers["second"].pid, signal.SIGSTOP)
    os.kill(trainer.workers["late"].pid, signal.SIGCONT)
    until(lambda: len(trainer.groups) == 1, "it did not arrive")
    assert trainer.groups[0].worker == "late"
    os.kill(trainer.workers["second"].pid, signal.SIGCONT)
    until(lambda: trainer.counters("second").get("revoked") == 1, "the other copy was not revoked")
    trainer.server.grant(make_ticket(1, group_size=1))
    until(lambda: len(trainer.groups) == 2, "the next did not arrive")
    time.sleep(0.3)
    assert trainer.arrived() == Counter([0, 1])


def test_a_slow_worker_keeps_its_tickets_and_the_fast_ones_do_the_rest(start):
    trainer = start(pace_s=0.002, silence_s=3.0)
    trainer.start("fast", "--capacity", "4")
    trainer.start("slow", "--capacity", "4")
    until(lambda: len(trainer.held()) == 2, "they did not come")
    long = Sampling(max_tokens=16, seed=7)
    for id in range(60):
        trainer.server.grant(make_ticket(id, sampling=long))
    until(lambda: trainer.held()["slow"] > 0, "it got no ticket")
    pid = trainer.workers["slow"].pid
    while len(trainer.groups) < 60:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
    assert trainer.arrived() == Counter(range(60))
    assert trainer.server.state().counts.get("regranted", 0) == 0
