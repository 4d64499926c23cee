"""The decisions of the trainer's end of the link, without sockets and with a clock of the test's own."""

from __future__ import annotations

from collections import defaultdict

import pytest

from envs.types import Status
from rollout import wire
from rollout.dispatch import LOST_S, Dispatch, LinkError
from rollout.wire import Episode, Group, Ticket, Weights
from tests.fakes import make_ticket


class Net:
    """A dispatch whose sockets are lists: `sent[connection]` is what each peer was told, Beats apart."""

    def __init__(self, **settings) -> None:
        self.now = 100.0
        self.sent: dict[bytes, list[wire.ToWorker]] = defaultdict(list)
        self.outcome: dict[bytes, str] = {}
        self.groups: list[Group] = []
        self.failures: list[LinkError] = []
        settings = {"silence_s": 20.0, "strikes": 3, "outbox": 100} | settings
        self.dispatch = Dispatch(self.put, b"{}", self.groups.append, self.failures.append, **settings)
        self.dispatch.tick(self.now)

    def put(self, connection: bytes, frame: bytes) -> str:
        outcome = self.outcome.get(connection, "sent")
        decoded = wire.decode_to_worker(frame)
        if outcome == "sent" and not isinstance(decoded, wire.Beat):
            self.sent[connection].append(decoded)
        return outcome

    def say(self, connection: bytes, *frames: wire.ToTrainer) -> None:
        for frame in frames:
            self.dispatch.receive(connection, [wire.encode(frame)], self.now)
        self.dispatch.hand_out()

    def join(self, name: str, capacity: int = 4, *, connection: bytes = b"", pid: int = 1, holding=()) -> None:
        hello = wire.Hello(name, wire.PROTOCOL, capacity, pid, list(holding))
        self.say(connection or name.encode(), hello, wire.Loaded(0))

    def wait(self, seconds: float, *beating: str) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for name in beating:
                self.say(name.encode(), wire.Beat())
            self.dispatch.tick(self.now)
        self.dispatch.hand_out()

    def grant(self, *ids: int) -> None:
        for id in ids:
            self.dispatch.grant(make_ticket(id))
        self.dispatch.hand_out()

    def ids(self, connection: str) -> list[int]:
        return [frame.id for frame in self.told(connection, Ticket)]

    def told(self, connection: str, kind: type) -> list:
        return [frame for frame in self.sent[connection.encode()] if isinstance(frame, kind)]

    def held(self) -> dict[str, int]:
        return {worker.name: worker.held for worker in self.dispatch.state(self.now).workers}

    def counts(self) -> dict[str, int]:
        return self.dispatch.state(self.now).counts


def group_of(id: int, worker: str, **changes) -> Group:
    ticket = make_ticket(id, **changes)
    episode = Episode(Status.TERMINATED, [], [], 1.0, {})
    return Group(ticket, [episode] * ticket.group_size, worker)


def test_tickets_follow_credit_and_are_shared_by_capacity():
    net = Net()
    net.join("big", 6)
    net.join("small", 2)
    net.grant(*range(20))
    assert net.held() == {"big": 6, "small": 2}
    assert net.ids("small")[0] < 4, "the small one was not served last"
    net.say(b"small", group_of(net.ids("small")[0], "small"))
    assert net.held() == {"big": 6, "small": 2}
    assert net.ids("small")[-1] == 8, "the next in order"
    assert sorted(net.ids("small") + net.ids("big")) == list(range(9))


def test_half_of_the_work_each_for_equal_workers():
    net = Net()
    net.join("a", 8)
    net.join("b", 8)
    net.grant(*range(6))
    assert net.held() == {"a": 3, "b": 3}


def test_no_ticket_before_the_weights_are_loaded():
    net = Net()
    net.dispatch.publish(Weights(4, "/w4"))
    net.say(b"a", wire.Hello("a", wire.PROTOCOL, 2, 1))
    net.grant(1)
    assert net.sent[b"a"] == [wire.Welcome(b"{}", Weights(4, "/w4"))]
    net.say(b"a", wire.Loaded(4))
    assert net.ids("a") == [1]


def test_the_group_reaches_the_caller_before_the_ack_and_only_once():
    net = Net()
    net.join("a")
    net.grant(1)
    seen_at_call = []
    net.dispatch._on_group = lambda group: seen_at_call.append(net.told("a", wire.Ack))
    for _ in range(3):
        net.say(b"a", group_of(1, "a"))
    assert seen_at_call == [[]]
    assert net.told("a", wire.Ack) == [wire.Ack("train", 1, 0)] * 3
    assert net.counts() == {"accepted": 1, "duplicates": 2}


def test_a_silent_worker_loses_its_tickets_once_and_is_asked_who_it_is_when_it_returns():
    net = Net()
    net.join("a", 2)
    net.join("b", 8)
    net.grant(0, 1, 2, 3)
    lost = net.ids("a")
    net.wait(19.5, "b")
    assert net.held()["a"] == len(lost)
    net.wait(1.0, "b")
    assert net.held() == {"b": 4}
    assert net.ids("b")[-len(lost) :] == sorted(lost)
    assert net.counts()["regranted"] == len(lost)
    net.say(b"a", wire.Beat())
    assert net.told("a", wire.Unknown) == [wire.Unknown()]


def test_the_first_group_of_a_ticket_that_two_hold_wins_and_the_other_is_revoked():
    net = Net()
    net.join("a")
    net.grant(1)
    net.wait(21)
    net.join("b")
    assert net.ids("b") == [1]
    net.join("a", holding=[("train", 1, 0)])
    net.say(b"a", group_of(1, "a"))
    assert [group.worker for group in net.groups] == ["a"]
    assert net.told("b", wire.Revoke) == [wire.Revoke("train", 1, 0)]
    assert net.told("a", wire.Revoke) == []
    net.say(b"b", group_of(1, "b"))
    assert net.told("b", wire.Ack) == [wire.Ack("train", 1, 0)]
    assert len(net.groups) == 1
    assert net.held() == {"b": 0, "a": 0}


def test_a_reconnected_worker_keeps_what_it_holds_and_the_rest_is_granted_again():
    net = Net()
    net.join("a", 4)
    net.grant(0, 1, 2)
    net.join("a", 4, connection=b"a2", holding=[("train", 1, 0), ("train", 55, 0)])
    assert net.told("a2", wire.Revoke) == [wire.Revoke("train", 55, 0)]
    assert net.ids("a2") == [0, 2], "lost on the way: sent again"
    assert net.held() == {"a": 3}
    assert net.counts()["regranted"] == 2
    net.say(b"a", wire.Beat())
    assert net.told("a", wire.Unknown) == [wire.Unknown()], "the old connection is nobody's"


def test_an_impatient_second_hello_takes_nothing_away():
    net = Net()
    net.join("a", 2)
    net.grant(0, 1)
    net.join("a", 2)
    assert net.ids("a") == [0, 1]
    assert len(net.told("a", wire.Welcome)) == 2


def test_a_new_process_of_the_same_name_replaces_the_old_one():
    net = Net()
    net.join("a", pid=1)
    net.grant(0)
    net.say(b"a2", wire.Hello("a", wire.PROTOCOL, 4, 2))
    assert "another process" in net.told("a", wire.Stop)[0].reason
    assert net.ids("a2") == [], "its engine has not loaded yet"
    net.say(b"a2", wire.Loaded(0))
    assert net.ids("a2") == [0]


def test_the_tickets_of_a_dead_process_move_at_once():
    net = Net()
    net.join("a")
    net.join("b")
    net.grant(0, 1)
    net.dispatch.worker_gone("a")
    net.dispatch.worker_gone("a")
    net.dispatch.worker_gone("nobody")
    net.dispatch.hand_out()
    assert sorted(net.ids("b")) == [0, 1]
    assert net.counts() == {"dead": 1, "regranted": 1}


def test_a_broken_connection_gets_a_short_grace():
    net = Net()
    net.join("a")
    net.join("b")
    net.grant(0, 1)
    net.outcome[b"a"] = "gone"
    net.wait(LOST_S - 0.5, "b")
    assert net.held()["a"] == 1
    net.grant(2)
    assert net.held() == {"a": 1, "b": 2}, "nothing new for it meanwhile"
    net.wait(1.0, "b")
    assert net.held() == {"b": 3}


def test_a_worker_that_does_not_read_is_queued_for_and_then_given_up():
    net = Net(outbox=5)
    net.join("slow", 10)
    net.grant(0)
    net.outcome[b"slow"] = "full"
    net.grant(1, 2)
    assert net.dispatch.behind()
    net.outcome[b"slow"] = "sent"
    net.wait(0.5, "slow")
    assert net.ids("slow") == [0, 1, 2], "in order"
    assert not net.dispatch.behind()
    net.outcome[b"slow"] = "full"
    net.grant(3, 4, 5, 6, 7, 8)
    net.wait(0.5, "slow")
    assert net.held() == {}
    assert net.dispatch.state(net.now).waiting == 9


def test_of_the_weights_that_a_slow_worker_missed_it_gets_the_newest():
    net = Net()
    net.join("slow")
    net.outcome[b"slow"] = "full"
    for version in (1, 2, 3):
        net.dispatch.publish(Weights(version, f"/w{version}"))
    net.outcome[b"slow"] = "sent"
    net.wait(0.5, "slow")
    assert net.told("slow", Weights) == [Weights(3, "/w3")]


def test_weights_come_before_the_tickets_that_were_granted_after_them():
    net = Net()
    net.join("a")
    net.dispatch.publish(Weights(1, "/w1"))
    net.grant(0)
    assert [type(frame) for frame in net.sent[b"a"][1:]] == [Weights, Ticket]


def test_while_the_trainer_stood_still_nobody_is_given_up():
    net = Net()
    net.join("a")
    net.grant(0)
    net.now += 300
    net.dispatch.tick(net.now)
    assert net.held() == {"a": 1}
    net.wait(21)
    assert net.held() == {}


def test_revoked_tickets_are_not_wanted_from_anybody():
    net = Net()
    net.join("a", 1)
    net.grant(0, 1)
    net.dispatch.revoke(make_ticket(0))
    net.dispatch.revoke(make_ticket(1))
    assert net.told("a", wire.Revoke) == [wire.Revoke("train", 0, 0)]
    net.say(b"a", group_of(0, "a"))
    assert net.groups == []
    assert net.dispatch.state(net.now).out == 0


@pytest.mark.parametrize("changed", [{"env": "other"}, {"index": 9}, {"group_size": 3}])
def test_a_group_of_another_ticket_than_was_granted_is_malformed(changed):
    net = Net()
    net.join("a")
    net.grant(0)
    net.say(b"a", group_of(0, "a", **changed))
    assert net.groups == []
    assert net.counts() == {"malformed": 1}


def test_a_group_in_anothers_name_is_malformed():
    net = Net()
    net.join("a")
    net.grant(0)
    net.say(b"a", group_of(0, "b"))
    assert (net.groups, net.counts()) == ([], {"malformed": 1})


def test_after_too_many_malformed_frames_a_worker_is_stopped_and_its_tickets_move():
    net = Net(strikes=3)
    net.join("a")
    net.join("b")
    net.grant(0)
    holder = "a" if net.ids("a") else "b"
    for _ in range(3):
        net.dispatch.receive(holder.encode(), [b"\xc1"], net.now)
    net.dispatch.hand_out()
    assert "3 malformed frames" in net.told(holder, wire.Stop)[0].reason
    assert net.ids("b" if holder == "a" else "a") == [0]
    net.say(holder.encode(), wire.Hello(holder, wire.PROTOCOL, 4, 1))
    assert holder not in net.held(), "it is not listened to any more"


def test_another_protocol_is_turned_away():
    net = Net()
    net.say(b"a", wire.Hello("a", wire.PROTOCOL + 1, 4, 1))
    assert f"speaks protocol {wire.PROTOCOL}" in net.told("a", wire.Stop)[0].reason
    assert net.held() == {}


def test_a_stranger_is_told_to_say_hello_and_not_believed():
    net = Net()
    net.grant(0)
    net.say(b"x", wire.Loaded(1), group_of(0, "x"))
    assert net.sent[b"x"] == [wire.Unknown()] * 2
    assert net.groups == []


def test_a_refused_ticket_ends_the_run():
    net = Net()
    net.join("a")
    net.grant(0)
    net.say(b"a", wire.Refused(make_ticket(8), "not mine"))
    assert net.failures == []
    net.say(b"a", wire.Refused(make_ticket(0), "UnknownEnvironment: no environment 'nope'"))
    assert str(net.failures[0]) == (
        "worker a cannot play 'tests.fakes:Dice': UnknownEnvironment: no environment 'nope'"
    )
    net.grant(1)
    assert net.ids("a") == [0], "nothing is handed out any more"


def test_a_group_that_cannot_be_kept_is_not_acknowledged_and_ends_the_run():
    def full(group):
        raise OSError(28, "No space left on device")

    net = Net()
    net.dispatch._on_group = full
    net.join("a")
    net.grant(0)
    net.say(b"a", group_of(0, "a"), group_of(0, "a"))
    assert "No space left on device" in str(net.failures[0])
    assert isinstance(net.failures[0].__cause__, OSError)
    assert len(net.failures) == 1
    assert net.told("a", wire.Ack) == []
    assert net.held() == {"a": 1}


def test_stop_reaches_all_and_everyone_who_comes_later():
    net = Net()
    net.join("a")
    net.dispatch.stop("the run is over")
    net.join("b")
    net.say(b"c", wire.Beat())
    net.grant(0)
    for name in "abc":
        assert wire.Stop("the run is over") in net.sent[name.encode()]
        assert net.ids(name) == []


def test_what_workers_did_is_kept_for_the_view():
    net = Net()
    net.join("a", 3)
    net.say(b"a", wire.Loaded(6), wire.Beat([wire.Span("tool", 1.0, 2.0)], {"episodes": 5.0}))
    net.now += 2
    (worker,) = net.dispatch.state(net.now).workers
    assert (worker.name, worker.capacity, worker.loaded, worker.silent_s) == ("a", 3, 6, 2.0)
    assert worker.counters == {"episodes": 5.0}
    assert list(net.dispatch.spans) == [("a", wire.Span("tool", 1.0, 2.0))]
