"""Turns are fair between episodes, bounded in number, and given up by a cancelled wait."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.pool import FairGate, episode


async def _hold(gate: FairGate, owner: str, name: str, log: list[str], seconds: float = 0.002) -> None:
    episode.set(owner)
    async with gate.turn():
        log.append(name)
        await asyncio.sleep(seconds)


async def test_no_more_than_slots_at_once():
    gate, now, most = FairGate(3), 0, 0

    async def work() -> None:
        nonlocal now, most
        async with gate.turn():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert most == 3


async def test_an_episode_with_many_requests_does_not_hold_up_another():
    gate, log = FairGate(1), []
    greedy = [asyncio.create_task(_hold(gate, "greedy", f"g{n}", log)) for n in range(5)]
    await asyncio.sleep(0)
    modest = [asyncio.create_task(_hold(gate, "modest", f"m{n}", log)) for n in range(2)]
    await asyncio.gather(*greedy, *modest)
    assert log == ["g0", "g1", "m0", "g2", "m1", "g3", "g4"]


async def test_a_cancelled_wait_gives_up_its_place():
    gate, log = FairGate(1), []
    first = asyncio.create_task(_hold(gate, "a", "first", log, 0.02))
    await asyncio.sleep(0)
    cancelled = [asyncio.create_task(_hold(gate, f"b{n}", "never", log)) for n in range(3)]
    last = asyncio.create_task(_hold(gate, "c", "last", log))
    await asyncio.sleep(0.001)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(first, last)
    assert log == ["first", "last"]
    async with asyncio.timeout(1), gate.turn():
        pass


async def test_a_slot_given_to_a_wait_that_is_cancelled_in_that_moment_is_not_lost():
    gate, log = FairGate(1), []
    async with gate.turn():
        waiting = asyncio.create_task(_hold(gate, "a", "never", log))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1), gate.turn():
        pass


def test_slots_must_be_positive():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        FairGate(0)
