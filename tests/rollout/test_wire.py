"""What may cross: every frame survives the trip, and nothing else is believed."""

from __future__ import annotations

import math

import msgspec
import pytest

from envs.types import Message, Status, ToolCall
from rollout import wire
from rollout.wire import Episode, Group, Sequence, WireError
from tests.fakes import make_ticket

NAN, INF = math.nan, math.inf


def sequence(**changes: list) -> Sequence:
    lists = {"tokens": [5, 6, 7], "sampled": [False, True, True], "logprobs": [0.0, -0.5, -1.5], "versions": [-1, 3, 4]}
    return Sequence(**lists | changes)


def episode(**changes: object) -> Episode:
    values = {
        "status": Status.TERMINATED,
        "sequences": [sequence()],
        "messages": [
            Message("user", "hi"),
            Message("assistant", "", tool_calls=(ToolCall("f", {"n": [1, {"a": 2.5}]}),)),
        ],
        "reward": 1.0,
        "components": {"success": 1.0},
    }
    return Episode(**values | changes)


def group(*episodes: Episode) -> Group:
    return Group(make_ticket(3, group_size=len(episodes)), list(episodes), "w0", 1.5)


TO_TRAINER = [
    wire.Hello("w0", wire.PROTOCOL, 4, 99, [("train", 3, 0)]),
    group(episode(), episode(status=Status.ERRORED, reward=None, error="SandboxError: gone")),
    wire.Loaded(7),
    wire.Beat([wire.Span("generate", 1.0, 2.0)], {"episodes": 3.0}),
    wire.Refused(make_ticket(), "no such environment"),
]
TO_WORKER = [
    wire.Welcome(b"{}", wire.Weights(1, "/dev/shm/w1")),
    wire.Welcome(b"{}", None),
    make_ticket(5),
    wire.Weights(2, "/dev/shm/w2"),
    wire.Ack("train", 5, 0),
    wire.Revoke("eval", 5, 1),
    wire.Beat(),
    wire.Unknown(),
    wire.Stop("done"),
]


@pytest.mark.parametrize("frame", TO_TRAINER, ids=lambda f: type(f).__name__)
def test_frames_to_the_trainer_survive(frame):
    assert wire.decode_to_trainer(wire.encode(frame)) == frame


@pytest.mark.parametrize("frame", TO_WORKER, ids=lambda f: type(f).__name__)
def test_frames_to_the_worker_survive(frame):
    assert wire.decode_to_worker(wire.encode(frame)) == frame


def test_frames_of_the_other_direction_are_not_understood():
    with pytest.raises(WireError, match="protocol"):
        wire.decode_to_worker(wire.encode(wire.Loaded(1)))
    with pytest.raises(WireError, match="protocol"):
        wire.decode_to_trainer(wire.encode(wire.Stop("done")))


def test_floats_are_exact():
    logprobs = [0.0, -math.pi, -1e-300]
    sent = group(episode(sequences=[sequence(logprobs=logprobs)]))
    assert wire.decode_to_trainer(wire.encode(sent)).episodes[0].sequences[0].logprobs == logprobs


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": [5, 6]}, "differ in length"),
        ({"versions": [-1, -1, 4]}, "version -1"),
        ({"logprobs": [0.0, NAN, -1.0]}, "nan"),
        ({"logprobs": [0.0, -1.0, NAN]}, "nan"),
        ({"logprobs": [0.0, -INF, -1.0]}, "inf"),
        ({"logprobs": [0.0, INF, -INF]}, "inf"),
        ({"logprobs": [0.0, -1.0, 0.01]}, "0.01"),
        ({"logprobs": [0.0, -1.5e308, -1.5e308]}, "absurd"),
    ],
)
def test_sequences_that_must_not_be_trained_on_are_refused(changes, said):
    frame = wire.encode(group(episode(sequences=[sequence(**changes)])))
    with pytest.raises(WireError, match=said):
        wire.decode_to_trainer(frame)


def test_what_was_not_sampled_may_hold_anything_finite_or_not():
    sequence(logprobs=[NAN, -0.5, -1.5], versions=[-1, 0, 0]).check()
    sequence(logprobs=[0.0, 5e-5, -1.5]).check()  # rounding
    Sequence([], [], [], []).check()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": None}, "reward None"),
        ({"status": Status.ERRORED}, "reward 1.0"),
        ({"reward": NAN}, "reward is nan"),
        ({"reward": INF}, "reward is inf"),
        ({"components": {"success": NAN}}, "components"),
    ],
)
def test_rewards_that_must_not_be_averaged_are_refused(changes, said):
    with pytest.raises(WireError, match=said):
        wire.decode_to_trainer(wire.encode(group(episode(**changes))))


def test_a_group_of_another_size_than_its_ticket_is_refused():
    sent = Group(make_ticket(group_size=3), [episode()], "w0")
    with pytest.raises(WireError, match="asked for 3 episodes, got 1"):
        wire.decode_to_trainer(wire.encode(sent))


def test_the_oldest_token_dates_a_group():
    older = episode(sequences=[sequence(versions=[-1, 9, 2])])
    assert group(episode(), older).oldest() == 2
    assert group(episode(sequences=[])).oldest() is None


def test_a_frame_over_the_limit_is_not_even_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10)
    with pytest.raises(WireError, match="over the limit of 10"):
        wire.decode_to_trainer(wire.encode(TO_TRAINER[0]))


UNSENDABLE = [
    {"n": 10**100},
    {"n": [{"deep": -(10**5000)}]},
    {"s": "half a pair: \ud83d"},
    {"\udc80": 1},
    {"fine": 1, "not": {1: object()}},
]


@pytest.mark.parametrize("arguments", UNSENDABLE, ids=range(len(UNSENDABLE)))
def test_what_a_model_wrote_never_costs_its_group(arguments):
    wrong = Message("assistant", "text \ud800", tool_calls=(ToolCall("f", arguments), ToolCall("g", {"n": 1})))
    fine = Message("user", "text")
    kept, sent = wire.portable([fine, wrong])
    assert kept is fine
    assert sent.content == "text \\ud800"
    assert sent.tool_calls[1] == wrong.tool_calls[1]
    msgspec.msgpack.encode(sent)
    assert sent.tool_calls[0].arguments.keys() == {k.encode("utf-8", "backslashreplace").decode() for k in arguments}


def test_a_list_nested_past_the_recursion_limit_is_portable():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    sent = wire.portable([Message("assistant", "x", tool_calls=(ToolCall("f", {"n": nested}),))])
    assert sent[0].tool_calls[0].arguments == {"n": "<list>"}
