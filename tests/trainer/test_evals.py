"""When evaluations begin, how their tasks are handed out, and what a resumed run does about them."""

from __future__ import annotations

import pytest

from rollout.wire import Group
from tests.trainer.conftest import episode, sequence, ticket
from trainer.evals import PARTS, ROUND, Evaluations


class Inbox:
    """Plays whatever is asked at once, or when it is waited for. `kept` are ids of tickets whose group is there."""

    def __init__(self, kept=()):
        self.kept = kept
        self.asked = []
        self.held = []
        self.on_group = None

    def has(self, ticket):
        return ticket.id in self.kept

    def evaluate(self, tickets, on_group):
        self.asked.append([t.id for t in tickets])
        self.held += tickets
        self.on_group = on_group

    def play(self):
        while self.held:
            self.on_group(Group(self.held.pop(), [episode(1.0, sequence(9, version=5))], "w0"))

    def serve_evaluations(self, pending):
        while pending():
            assert self.held, "waits for what nobody was asked to play"
            self.play()


def make(inbox, **more) -> Evaluations:
    settings = {"every": 10, "tasks": 8, "last": 25} | more
    return Evaluations(inbox, lambda id_, index: ticket(id_, purpose="eval", group_size=1), **settings)


def test_the_first_and_the_last_are_waited_for():
    inbox = Inbox()
    evals = make(inbox)
    for version in (0, 25):
        evals.wait(version)
    assert sorted(f["eval/step"] for f in evals.finished()) == [0, 25]  # those in between had not begun
    assert evals.finished() == []


def test_one_in_between_is_handed_out_in_parts():
    inbox = Inbox()
    evals = make(inbox, recorded=[0])
    for version in range(10, 10 + PARTS):
        evals.after(version)
    assert inbox.asked == [[10 * ROUND + i for i in part] for part in ((0, 1), (2, 3), (4, 5), (6, 7))]
    inbox.play()
    [figures] = evals.finished()
    assert (figures["eval/step"], figures["eval/success"], figures["eval/lag"]) == (10, 1.0, -5.0)


def test_a_resumed_run_finishes_what_was_not_recorded_and_nothing_else():
    inbox = Inbox(kept=[10 * ROUND + 3])
    evals = make(inbox, recorded=[0])
    evals.wait(24)
    assert [f["eval/step"] for f in evals.finished()] == [10]
    assert len(inbox.asked[0]) == 8
    evals.wait(14)
    assert evals.finished() == []


def test_evaluations_that_come_often_do_not_pile_up():
    inbox = Inbox()
    evals = make(inbox, recorded=[0], every=2)
    for version in range(1, 9):
        evals.after(version)
    assert [ids[0] // ROUND for ids in inbox.asked if ids] == [2, 2, 4, 4, 6, 6, 8]


@pytest.mark.parametrize("off", [{"every": 0}, {"tasks": 0}])
def test_switched_off(off):
    inbox = Inbox()
    evals = make(inbox, **off)
    evals.wait(0)
    evals.after(10)
    evals.wait(25)
    assert inbox.held == []
    assert evals.finished() == []
