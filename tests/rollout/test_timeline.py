"""The bars of the overlap timeline."""

from __future__ import annotations

import pytest

from rollout import timeline
from rollout.wire import Span


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timeline.time, "time", lambda: now[0])
    return now


def test_activities_that_overlap_make_one_bar(clock):
    line = timeline.Timeline()
    line.begin("generate")
    clock[0] = 101.0
    line.begin("generate")
    clock[0] = 102.0
    line.end("generate")
    clock[0] = 103.0
    line.end("generate")
    clock[0] = 110.0
    assert line.drain() == [Span("generate", 100.0, 103.0)]
    assert line.drain() == []


def test_close_bars_are_merged_and_distant_ones_are_not(clock):
    line = timeline.Timeline()
    for start in (100.0, 100.15, 101.0):
        clock[0] = start
        with line.busy("tool"):
            clock[0] = start + 0.1
    assert line.drain() == [Span("tool", 100.0, 100.25), Span("tool", 101.0, 101.1)]


def test_a_bar_that_still_grows_is_reported_in_pieces_without_a_gap(clock):
    line = timeline.Timeline()
    line.begin("generate")
    clock[0] = 101.0
    first = line.drain()
    clock[0] = 102.5
    line.end("generate")
    assert first + line.drain() == [Span("generate", 100.0, 101.0), Span("generate", 101.0, 102.5)]


def test_a_thousand_short_activities_a_second_make_few_bars(clock):
    line = timeline.Timeline()
    for i in range(1000):
        for what in ("generate", "tool"):
            clock[0] = 100 + i / 1000
            with line.busy(what):
                clock[0] += 0.0002
    assert len(line.drain()) <= 20


def test_an_activity_that_raises_ends_its_bar(clock):
    line = timeline.Timeline()

    def fail() -> None:
        with line.busy("tool"):
            clock[0] = 101.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert line.drain() == [Span("tool", 100.0, 101.0)]
