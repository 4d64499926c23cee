from __future__ import annotations

import asyncio

import pytest

from rollout.engine import Completion, Sampling
from rollout.engines.slots import BLOCK, PATIENCE, Plan, Request, Slots


async def ask(slots: Slots, tokens: list[int], session: str) -> Request:
    future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
    request = Request(list(tokens), Sampling(max_tokens=9), session, future, len(tokens), frozenset())
    slots.waiting.append(request)
    return request


def run(slots: Slots, token: int = 7) -> Plan:
    """One pass in which every request draws `token`."""
    plan = slots.plan()
    slots.fed(plan)
    for request, _ in plan.draws:
        request.tokens.append(token)
    return plan


def end(slots: Slots, request: Request, *, keep: bool = True) -> None:
    slots.release(request, keep=keep)
    request.future.cancel()


def index(request: Request) -> int:
    assert request.slot is not None
    return request.slot.index


async def test_a_session_comes_back_to_its_slot_and_feeds_the_rest():
    slots = Slots(4)
    request = await ask(slots, list(range(20)), "a")
    assert run(slots).counts == [20]
    assert run(slots).counts == [1]
    place = index(request)
    end(slots, request)
    assert slots.free == 4
    again = await ask(slots, [*range(20), 7, 7, 50, 51], "a")
    assert run(slots).counts == [3]  # the last drawn token was not fed yet
    assert index(again) == place


async def test_a_rewritten_history_keeps_the_common_part():
    slots = Slots(4)
    first = await ask(slots, list(range(20)), "a")
    run(slots)
    end(slots, first)
    await ask(slots, [*range(12), 99, 98], "a")
    assert run(slots).counts == [2]


async def test_the_same_prompt_again_feeds_one_token():
    slots = Slots(4)
    first = await ask(slots, list(range(20)), "a")
    run(slots)
    end(slots, first)
    await ask(slots, list(range(20)), "a")
    assert run(slots).counts == [1]


async def test_equal_prompts_of_one_pass_are_fed_once():
    slots = Slots(8)
    requests = [await ask(slots, list(range(30)), str(i)) for i in range(5)]
    plan = run(slots)
    assert plan.counts == [30]
    assert sorted([*plan.after[0].targets, plan.after[0].source]) == sorted(index(r) for r in requests)
    assert {row for _, row in plan.draws} == {0}
    assert len(plan.draws) == 5
    assert [r.fed for r in requests] == [30] * 5


async def test_later_prompts_copy_the_longest_beginning():
    slots = Slots(8)
    first = await ask(slots, list(range(40)), "a")
    run(slots)
    same = await ask(slots, list(range(40)), "b")
    near = await ask(slots, [*range(30), 99], "c")
    other = await ask(slots, [*range(BLOCK - 1), 99, 98], "d")
    plan = run(slots)
    copies = [(c.source, c.targets, c.length) for c in plan.before]
    assert copies == [(index(first), [index(same)], 39), (index(first), [index(near)], 30)]
    counts = dict(zip(map(index, plan.rows), plan.counts, strict=True))
    assert (counts[index(same)], counts[index(near)], counts[index(other)]) == (1, 1, BLOCK + 1)
    assert plan.counts == sorted(plan.counts, key=lambda n: n > 1)  # single tokens first


async def test_a_long_shared_beginning_is_waited_for():
    slots = Slots(8)
    preamble = list(range(3 * BLOCK))
    first = await ask(slots, [*preamble, 90, 91], "first")
    others = [await ask(slots, [*preamble, 92 + i], str(i)) for i in range(3)]
    short = await ask(slots, [*preamble[:BLOCK], 99], "short")
    plan = run(slots)
    assert (plan.rows, plan.counts) == ([first, short], [3 * BLOCK + 2, BLOCK + 1])
    plan = run(slots)
    assert plan.counts == [1] * 5
    assert [c.length for c in plan.before] == [3 * BLOCK] * 3
    assert all(r.slot for r in others)


async def test_what_a_reused_slot_held_is_not_copied():
    slots = Slots(1)
    first = await ask(slots, list(range(40)), "a")
    run(slots)
    end(slots, first)
    slots.end_session("a")
    second = await ask(slots, list(range(100, 140)), "b")
    run(slots)
    end(slots, second)
    slots.end_session("b")
    await ask(slots, list(range(40)), "c")
    assert run(slots).counts == [40]


async def test_the_longest_idle_session_gives_up_its_slot():
    slots = Slots(2)
    for name in ("old", "young"):
        request = await ask(slots, [1, 2, 3], name)
        run(slots)
        end(slots, request)
    await ask(slots, [4, 5], "new")
    run(slots)
    young = await ask(slots, [1, 2, 3, 7, 8], "young")
    run(slots)
    old = await ask(slots, [1, 2, 3, 7, 8], "old")
    run(slots)
    assert young.slot is not None
    assert old.slot is None  # it waits
    end(slots, young)
    for _ in range(PATIENCE + 1):
        run(slots)
    assert old.slot is not None


async def test_a_session_that_waits_for_its_next_turn_is_not_evicted_by_newcomers():
    slots = Slots(1)
    first = await ask(slots, [1, 2, 3], "kept")
    run(slots)
    end(slots, first)
    newcomer = await ask(slots, [4, 5], "new")
    kept = await ask(slots, [1, 2, 3, 7, 8], "kept")
    run(slots)
    assert kept.slot is not None
    assert newcomer.slot is None


async def test_few_wait_for_more_but_not_for_long():
    slots = Slots(64)
    busy = [await ask(slots, [i, 2], f"busy{i}") for i in range(40)]
    run(slots)
    assert all(r.slot for r in busy)
    one = await ask(slots, [1, 2, 3], "one")
    passes = 0
    while one.slot is None:
        run(slots)
        passes += 1
    assert passes == PATIENCE + 1
    many = [await ask(slots, [1, 2, 3], f"many{i}") for i in range(10)]
    run(slots)
    assert all(r.slot for r in many)


async def test_new_weights_forget_everything_but_requests_that_have_begun():
    slots = Slots(8)
    idle = await ask(slots, list(range(30)), "idle")
    run(slots)
    end(slots, idle)
    begun = await ask(slots, list(range(30, 60)), "begun")
    run(slots)
    slots.new_weights()
    assert run(slots).counts == [1]  # goes on
    end(slots, begun)
    await ask(slots, [*range(30), 7, 8], "idle")
    await ask(slots, [*range(30, 60), 7, 7, 8], "begun")
    await ask(slots, list(range(30, 60)), "other")
    assert sorted(run(slots).counts) == [30, 32, 33]


async def test_a_prompt_that_was_half_fed_is_fed_again_under_new_weights(monkeypatch):
    monkeypatch.setattr("rollout.engines.slots.MAX_PASS_TOKENS", 10)
    slots = Slots(2)
    request = await ask(slots, list(range(25)), "a")
    assert (run(slots).counts, request.fed) == ([10], 10)
    slots.new_weights()
    assert request.fed == 0
    assert [run(slots).counts for _ in range(3)] == [[10], [10], [5]]
    assert not request.mixed


@pytest.mark.parametrize("ended", ["before", "during"])
async def test_cancelled_and_ended_sessions_leave_nothing(ended):
    slots = Slots(2)
    request = await ask(slots, [1, 2, 3], "a")
    if ended == "during":
        run(slots)
        slots.end_session("a")
        assert slots.free == 1
    request.future.cancel()
    run(slots)
    assert (slots.free, len(slots.active), len(slots.waiting)) == (2, 0, 0)
    both = [await ask(slots, [i], "") for i in range(2)]  # nameless ones keep nothing
    run(slots)
    assert {index(r) for r in both} == {0, 1}
