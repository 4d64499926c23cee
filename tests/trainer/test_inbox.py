"""Grants, freshness, the ledger, and what a resumed inbox does."""

from __future__ import annotations

import contextlib
import threading
import time

import msgspec
import pytest

from rollout.wire import Group
from tests.trainer.conftest import episode, group, sequence, ticket
from trainer.inbox import ATTEMPTS, MOST_FLAT, Inbox, InboxState, StalledError
from trainer.ledger import Ledger, read_groups, read_steps


class Link:
    """Keeps what was granted."""

    def __init__(self):
        self.granted = []

    def grant(self, ticket):
        self.granted.append(ticket)

    def keys(self):
        return [(t.id, t.attempt) for t in self.granted]


@pytest.fixture
def link():
    return Link()


def inbox(folder, link, *, total=100, state=None, stall_s=0.3) -> Inbox:
    def make(id_, attempt):
        return ticket(id_, attempt=attempt)

    return Inbox(make, total, Ledger(folder), link, state=state, stall_s=stall_s)


def spanning(index, *versions, attempt=0) -> Group:
    """A group whose first episode was drawn at several versions."""
    mixed = sequence(12)
    drawn = iter(sorted(versions) * 12)
    mixed = type(mixed)(mixed.tokens, mixed.sampled, mixed.logprobs, [next(drawn) if s else -1 for s in mixed.sampled])
    return Group(ticket(index, attempt=attempt), [episode(1.0, mixed), episode(0.0, sequence(12, version=9))], "w0")


def test_grants_each_position_once_and_no_more_than_there_are(tmp_path, link):
    box = inbox(tmp_path, link, total=5)
    box.grant(2)
    box.grant(2)
    box.grant(50)
    assert link.keys() == [(i, 0) for i in range(5)]


def test_takes_in_order_of_arrival(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(4)
    for index in (2, 0, 3):
        box.receive(group(index, [0.0, 1.0]))
    assert [g.ticket.id for g in box.take(2, oldest=0)] == [2, 0]
    assert [g.ticket.id for g in box.take(1, oldest=0)] == [3]


def test_a_duplicate_counts_once(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(1)
    for _ in range(3):
        box.receive(group(0, [0.0, 1.0]))
    assert len(box.take(1, oldest=0)) == 1
    with pytest.raises(StalledError):
        box.take(1, oldest=0)
    assert len(list(read_groups(tmp_path))) == 1


def informative(box: Inbox) -> None:
    box.informative = lambda group: len({e.reward for e in group.episodes}) > 1


def test_groups_that_say_nothing_are_replaced_for_good(tmp_path, link):
    box = inbox(tmp_path, link, total=3)
    informative(box)
    box.grant(3)
    for index, rewards in enumerate(([1.0, 1.0], [0.0, 1.0], [0.5, 0.5])):
        box.receive(group(index, rewards))
    threading.Timer(0.05, lambda: box.receive(group(3, [0.0, 1.0]))).start()
    assert [g.ticket.id for g in box.take(2, oldest=0)] == [1, 3]
    assert link.keys() == [(i, 0) for i in range(5)]  # one more for each of the two
    assert box.dropped["groups/replaced"] == 2
    state = msgspec.json.decode(msgspec.json.encode(box.state), type=InboxState)
    again = inbox(tmp_path, link, total=3, state=state)
    informative(again)
    again.grant(3)
    assert link.keys()[5:] == [(4, 0)]  # what was replaced is not played again


def test_where_no_group_says_anything_a_step_ends_all_the_same(tmp_path, link):
    box = inbox(tmp_path, link, total=2)
    informative(box)
    box.grant(2)
    for index in range(MOST_FLAT * 2 + 2):
        box.receive(group(index, [1.0, 1.0]))
    assert len(box.take(2, oldest=0)) == 2
    assert box.dropped["groups/replaced"] == MOST_FLAT * 2


def broken(index, attempt=0) -> Group:
    return Group(ticket(index, attempt=attempt), [episode(None, error="boom"), episode(None, error="boom")], "w0")


def test_a_group_without_a_sound_episode_is_not_kept_and_its_task_comes_again(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(2)
    box.receive(broken(0))
    box.receive(broken(0))  # the worker sends it again
    box.receive(group(1, [0.0, 1.0]))
    assert [g.ticket.id for g in box.take(1, oldest=0)] == [1]
    assert link.keys() == [(0, 0), (1, 0), (0, 1)]
    assert (box.dropped, box.state.attempts) == ({"groups/errored": 1}, {0: 1})
    assert len(list(read_groups(tmp_path))) == 1
    box.receive(Group(ticket(0, attempt=1), group(0, [0.0, 1.0]).episodes, "w0"))
    assert [g.ticket.attempt for g in box.take(1, oldest=0)] == [1]


def test_an_outage_ends_the_run_with_its_cause_and_uses_up_no_task(tmp_path, link):
    box = inbox(tmp_path, link, total=4)
    box.grant(4)

    def fail():
        for number, granted in enumerate(link.granted):  # grows meanwhile
            if number > 40:
                return
            box.receive(broken(granted.id, granted.attempt))
            time.sleep(0.002)

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(StalledError, match=r"nothing arrived .* groups failed, the last with: boom"):
        box.take(1, oldest=0)
    thread.join()
    assert (box.state.steps, box.state.trained_below, list(read_groups(tmp_path))) == (0, 0, [])


def test_a_task_that_alone_fails_does_not_hold_up_the_run(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(2)
    for attempt in range(ATTEMPTS):
        box.receive(broken(0, attempt))
        box.receive(Group(ticket(1, attempt=attempt), group(1, [0.0, 1.0]).episodes, "w0"))
        with contextlib.suppress(StalledError):
            box.take(2, oldest=0)
    box.receive(broken(0, ATTEMPTS))
    assert [g.ticket.key for g in box.take(1, oldest=0)] == [("train", 0, ATTEMPTS)]


def test_a_group_that_spans_too_many_versions_is_dropped_whole_and_its_task_comes_again(tmp_path, link):
    """Versions 3 to 9 under a bound of 4 at version 9: the oldest token decides, before any advantage."""
    box = inbox(tmp_path, link)
    box.grant(2)
    box.receive(spanning(0, 3, 5, 9))
    box.receive(spanning(1, 5, 9))
    assert [g.ticket.id for g in box.take(1, oldest=9 - 4)] == [1]
    assert link.keys()[2:] == [(0, 1)]
    assert box.dropped["groups/dropped_stale"] == 1
    assert box.dropped["groups/dropped_stale/demo-v0"] == 1
    box.receive(spanning(0, 9, attempt=1))
    assert [(g.ticket.id, g.ticket.attempt) for g in box.take(1, oldest=5)] == [(0, 1)]


def test_nothing_arriving_ends_the_wait_with_what_it_waits_for(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(3)
    box.receive(group(0, [0.0, 1.0]))
    with pytest.raises(StalledError, match="2 more groups of 3"):
        box.take(3, oldest=0)


def test_a_failure_elsewhere_ends_the_wait(tmp_path, link):
    box = inbox(tmp_path, link, stall_s=60)

    def fail():
        raise RuntimeError("the worker is gone")

    box.check = fail
    with pytest.raises(RuntimeError, match="the worker is gone"):
        box.take(1, oldest=0)


def test_evaluation_groups_go_elsewhere(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(1)
    seen = []
    box.evaluate([ticket(7, purpose="eval", group_size=1)], seen.append)
    evaluated = Group(ticket(7, purpose="eval", group_size=1), [episode(1.0, sequence(9))], "w0")
    box.receive(evaluated)
    box.receive(group(0, [0.0, 1.0]))
    assert [g.ticket.id for g in box.take(1, oldest=0)] == [0]
    assert seen == [evaluated]


def test_waiting_for_evaluations_leaves_training_groups(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(2)
    seen = []
    box.evaluate([ticket(7, purpose="eval", group_size=1)], seen.append)
    box.receive(group(1, [0.0, 1.0]))
    box.receive(Group(ticket(7, purpose="eval", group_size=1), [episode(1.0, sequence(9))], "w0"))
    box.serve_evaluations(lambda: 1 - len(seen))
    box.receive(group(0, [0.0, 1.0]))
    assert [g.ticket.id for g in box.take(2, oldest=0)] == [1, 0]


def test_a_resumed_inbox_goes_through_the_same_groups(tmp_path, link):
    """Checkpoint after one take, two more takes, then a crash: the same takes come again without the workers."""
    box = inbox(tmp_path, link)
    box.grant(6)
    for index in (3, 1, 5, 0):
        box.receive(group(index, [0.0, 1.0]))
    box.receive(spanning(2, 0))
    first = [g.ticket.id for g in box.take(2, oldest=0)]
    saved = msgspec.convert(msgspec.to_builtins(box.state), InboxState)
    second = [g.ticket.id for g in box.take(2, oldest=0)]
    box.grant(7)
    box.receive(spanning(2, 4, attempt=1))
    box.ledger.close()

    again = Link()
    resumed = inbox(tmp_path, again, state=saved)
    assert first == [3, 1]
    assert again.keys() == [(4, 0)]  # of the six granted, only this one never arrived
    assert [g.ticket.id for g in resumed.take(2, oldest=0)] == second
    resumed.grant(7)
    assert again.keys() == [(4, 0), (6, 0)]
    # id 2 is too old now; its second attempt is in the ledger already, so nobody plays it again
    assert [(g.ticket.id, g.ticket.attempt) for g in resumed.take(1, oldest=4)] == [(2, 1)]
    assert again.keys() == [(4, 0), (6, 0)]
    assert read_steps(tmp_path) == {
        1: [("train", 3, 0), ("train", 1, 0)],
        2: [("train", 5, 0), ("train", 0, 0)],
        3: [("train", 2, 1)],
    }


def test_trained_positions_are_kept_compactly(tmp_path, link):
    box = inbox(tmp_path, link)
    box.grant(4)
    for index in (1, 0, 3):
        box.receive(group(index, [0.0, 1.0]))
    box.take(3, oldest=0)
    assert (box.state.trained_below, box.state.trained) == (2, [3])


def test_a_torn_ledger_loses_only_the_torn_group(tmp_path, link):
    ledger = Ledger(tmp_path)
    for index in range(3):
        ledger.append(group(index, [0.0, 1.0]))
    ledger.close()
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-5])
    again = Ledger(tmp_path)
    assert sorted(again.offsets) == [("train", 0, 0), ("train", 1, 0)]
    again.append(group(2, [0.5, 1.0]))
    assert [g.ticket.id for g in read_groups(tmp_path)] == [0, 1, 2]
    assert again.read(("train", 2, 0)) == group(2, [0.5, 1.0])


def test_a_flipped_bit_ends_the_ledger_there(tmp_path):
    ledger = Ledger(tmp_path)
    for index in range(2):
        ledger.append(group(index, [0.0, 1.0]))
    ledger.close()
    data = bytearray(ledger.path.read_bytes())
    data[-20] ^= 1
    ledger.path.write_bytes(data)
    assert [g.ticket.id for g in read_groups(tmp_path)] == [0]


def test_a_group_that_arrives_while_waiting_ends_the_wait(tmp_path, link):
    box = inbox(tmp_path, link, stall_s=20)
    box.grant(1)
    threading.Timer(0.05, lambda: box.receive(group(0, [0.0, 1.0]))).start()
    assert box.take(1, oldest=0)[0].ticket.id == 0
