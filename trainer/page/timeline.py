"""events.jsonl as bars, and how much of the time each side was busy."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

MAX_BARS = 200_000  # on the page; beyond it, short bars of one kind are drawn together
DOWN_S = 60.0  # when no process reports anything for this long, the run was not up
TRAINER = "trainer"
TRAINING = frozenset({"learn", "publish"})  # what the trainer does when it does not wait
PLAYING = frozenset({"generate", "tool"})  # what a worker does when it plays episodes

Interval = tuple[float, float]  # start, end: `time.time()` seconds
Bar = tuple[float, float, float]  # start, end, and how many of its seconds are busy


class Event(msgspec.Struct, frozen=True):
    """One line of events.jsonl."""

    process: str
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Shares:
    """How the time of the training loop was used, in seconds.

    `window_s` is from the trainer's first activity to its last, without the time in which the run was not up. In
    `training_s` of it the trainer learned or published; in `playing_s` at least one worker generated or ran a tool; in
    `both_s` both happened at once. `seconds[process][what]` is each kind's own time.
    """

    window_s: float
    training_s: float
    playing_s: float
    both_s: float
    seconds: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Timeline:
    """Bars by process and kind, on the clock of the time in which the run was up (`up` says which that was)."""

    up: list[Interval]
    bars: dict[str, dict[str, list[Bar]]]
    sides: dict[str, list[Bar]]
    shares: Shares
    merged_s: float  # neighbours of one kind that fit into this much time are one bar; 0 where none are
    damaged: int = 0
    total: int = 0  # bars before merging
    cuts: list[float] = field(default_factory=list)  # seconds on the page's clock at which the run was stopped


def read_events(folder: Path) -> tuple[list[Event], int]:
    """Every whole line of events.jsonl, and how many are not (a crash tears one)."""
    path = folder / "events.jsonl"
    if not path.exists():
        return [], 0
    decoder = msgspec.json.Decoder(Event)
    events, damaged = [], 0
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = decoder.decode(line)
            except msgspec.DecodeError:
                damaged += 1
                continue
            if event.end > event.start:
                events.append(event)
    return events, damaged


def build(events: Sequence[Event], damaged: int = 0, max_bars: int = MAX_BARS) -> Timeline:
    """The timeline of `events`. Shares are worked out from all of them, before any merging."""
    raw: dict[str, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        raw[event.process][event.what].append((event.start, event.end))
    exact = {p: {w: union(bars) for w, bars in sorted(kinds.items())} for p, kinds in sorted(raw.items(), key=_order)}
    up = union(((e.start, e.end) for e in events), gap=DOWN_S)
    training = union(b for w, bars in exact.get(TRAINER, {}).items() if w in TRAINING for b in bars)
    playing = union(
        b for p, kinds in exact.items() if p != TRAINER for w, bars in kinds.items() if w in PLAYING for b in bars
    )
    both = intersection(training, playing)
    shares = _shares(exact, up, training, playing, both)
    merged_s = 0.0
    while sum(len(together(bars, merged_s)) for kinds in exact.values() for bars in kinds.values()) > max_bars:
        merged_s = merged_s * 2 or 0.05
    clock = Clock(up)
    sides = {"training": training, "playing": playing, "both": both}
    return Timeline(
        up=up,
        bars={p: {w: clock.shift(together(bars, merged_s)) for w, bars in kinds.items()} for p, kinds in exact.items()},
        sides={name: clock.shift(together(bars, merged_s)) for name, bars in sides.items()},
        shares=shares,
        merged_s=merged_s,
        damaged=damaged,
        total=len(events),
        cuts=clock.cuts,
    )


def _order(item: tuple[str, Any]) -> tuple[bool, str]:
    return (item[0] != TRAINER, item[0])


def _shares(
    exact: dict[str, dict[str, list[Interval]]],
    up: list[Interval],
    training: list[Interval],
    playing: list[Interval],
    both: list[Interval],
) -> Shares:
    of_trainer = union(b for bars in exact.get(TRAINER, {}).values() for b in bars)
    window = []
    for start, end in up:
        inside = intersection(of_trainer, [(start, end)])
        if inside:
            window.append((inside[0][0], inside[-1][1]))
    return Shares(
        window_s=length(window),
        training_s=length(intersection(training, window)),
        playing_s=length(intersection(playing, window)),
        both_s=length(intersection(both, window)),
        seconds={p: {w: length(intersection(bars, window)) for w, bars in kinds.items()} for p, kinds in exact.items()},
    )


class Clock:
    """Seconds since the run's first event, leaving out the time in which it was not up."""

    def __init__(self, up: list[Interval]) -> None:
        self._starts = [start for start, _ in up]
        self._before = [0.0]
        for start, end in up:
            self._before.append(self._before[-1] + end - start)
        self.cuts = self._before[1:-1]

    def __call__(self, at: float) -> float:
        piece = bisect_right(self._starts, at) - 1
        return self._before[piece] + at - self._starts[piece]

    def shift(self, bars: Iterable[Bar]) -> list[Bar]:
        return [(self(start), self(start) + end - start, busy) for start, end, busy in bars]


def union(bars: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """The bars in order, those that overlap or are at most `gap` seconds apart as one."""
    merged: list[Interval] = []
    for start, end in sorted(bars):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def together(bars: Sequence[Interval], within: float) -> list[Bar]:
    """The bars, neighbours that fit into `within` seconds as one, which knows how many of its seconds are busy."""
    out: list[Bar] = []
    for start, end in bars:
        if out and end - out[-1][0] <= within:
            out[-1] = (out[-1][0], end, out[-1][2] + end - start)
        else:
            out.append((start, end, end - start))
    return out


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """When both happen; each list is in order and without overlaps, as `union` gives it."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            out.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return out


def length(bars: Iterable[Interval]) -> float:
    return sum(end - start for start, end in bars)


def as_page_data(timeline: Timeline) -> dict[str, Any]:
    """As the page reads it: bars as [gap, length, busy, gap, ...] in whole milliseconds from the start."""
    shares = timeline.shares
    return {
        "started": timeline.up[0][0] if timeline.up else None,
        "length_s": length(timeline.up),
        "lanes": [
            {"process": process, "rows": [{"what": what, "bars": _packed(bars)} for what, bars in kinds.items()]}
            for process, kinds in timeline.bars.items()
        ],
        "sides": {name: _packed(bars) for name, bars in timeline.sides.items()},
        "cuts": timeline.cuts,
        "merged_s": timeline.merged_s,
        "shown": sum(len(bars) for kinds in timeline.bars.values() for bars in kinds.values()),
        "total": timeline.total,
        "damaged": timeline.damaged,
        "down_s": DOWN_S,
        "shares": msgspec.to_builtins(shares),
    }


def _packed(bars: Iterable[Bar]) -> list[int]:
    out, at = [], 0
    for start, end, busy in bars:
        begin, stop = round(start * 1000), round(end * 1000)
        out += [begin - at, stop - begin, min(stop - begin, round(busy * 1000))]
        at = stop
    return out
