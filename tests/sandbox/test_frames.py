"""Frames round-trip, and bytes that are not frames are refused, whatever they are."""

from __future__ import annotations

import array
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import frames, stream


def test_every_frame_round_trips():
    order = frames.Order(frames.FORK, 7, 64 << 20)
    assert frames.unpack_order(order.pack()) == order
    report = frames.Report(frames.EXITED, 7, -9, 0.25, 1.5, 1 << 34, "words")
    assert frames.unpack_report(report.pack()) == report
    call = frames.Call(True, 1.5, 1 << 30, 64, 1 << 20)
    assert frames.unpack_call(call.pack()) == call
    done = frames.Done(frames.FINISHED, 3, True)
    assert frames.unpack_done(done.pack()) == done
    request = stream.Request(stream.RUN, False, 5.0, 4.0, 1 << 28, 64, 1 << 24, 10, 20, 30, 40, 50)
    assert stream.Request.unpack(request.pack()) == request
    reply = stream.Reply(stream.RAN, True, -9, stream.hit_bits(["wall", "result"]), 1.0, 0.5, 1 << 33, 1, 2, 3)
    assert stream.Reply.unpack(reply.pack()) == reply
    assert reply.limits_hit() == ["wall", "result"]


@given(st.binary(max_size=300))
def test_bytes_of_another_length_are_no_frame(data: bytes):
    for unpack, good in (
        (frames.unpack_order, frames.Order(1, 1)),
        (frames.unpack_report, frames.Report(1)),
        (frames.unpack_call, frames.Call(True, 1, 1, 1, 1)),
        (frames.unpack_done, frames.Done(1)),
    ):
        if len(data) == len(good.pack()):
            unpack(data)  # wrong numbers at worst
        else:
            with pytest.raises(frames.FrameError):
                unpack(data)


def test_a_frame_with_too_many_descriptors_or_bytes_is_refused():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        fds = array.array("i", [0] * 64)
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(frames.FrameError):
            frames.receive(theirs, 2)
        assert len(os.listdir("/proc/self/fd")) == before
        ours.send(b"x" * (frames.MAX_FRAME_BYTES + 1))
        with pytest.raises(frames.FrameError):
            frames.receive(theirs, 2)


def test_a_request_beyond_the_bound_is_refused():
    request = stream.Request(stream.RUN, source_bytes=stream.MAX_REQUEST_BYTES, stdin_bytes=1)
    with pytest.raises(stream.StreamError):
        stream.Request.unpack(request.pack())
