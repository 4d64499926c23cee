"""How episodes are played and how they end."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest

from envs import InfrastructureError, Message, reward, tool
from envs.types import Status
from rollout import episode, wire
from rollout.engine import Completion, EngineError, NoRoom, Sampling
from rollout.episode import Budget, CannotPlay, Stage, play_group, turn_seed
from rollout.wire import Group
from tests.fakes import STOP, Dice, FakeChat, FakeEngine, make_ticket


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(episode, "_BACKOFF_S", 0.001)


@pytest.fixture(autouse=True)
def every_environment_is_closed():
    Dice.opened = Dice.closed = 0
    yield
    assert Dice.opened == Dice.closed


def stage(engine: FakeEngine | None = None, **budget) -> Stage:
    return Stage(engine or FakeEngine(), FakeChat, Budget(**budget))


def here(name: str) -> str:
    return f"tests.rollout.test_episode:{name}"


class Flaky(FakeEngine):
    """Fails the first `times` requests of every episode with `error`."""

    def __init__(self, error: Exception, times: int = 10**9) -> None:
        super().__init__()
        self.error, self.times, self.failed = error, times, Counter()

    async def generate(self, token_ids, sampling, *, session):
        episode_name = session.rpartition("-")[0]
        if self.failed[episode_name] < self.times:
            self.failed[episode_name] += 1
            raise self.error
        return await super().generate(token_ids, sampling, session=session)


class Says(FakeEngine):
    """Answers every request with one and the same completion."""

    def __init__(self, completion: Completion) -> None:
        super().__init__()
        self.completion = completion

    async def generate(self, token_ids, sampling, *, session):
        return self.completion


# An episode that goes well


async def test_an_episode_from_begin_to_score():
    engine = FakeEngine()
    engine.version = 4
    ticket = make_ticket(3, group_size=4)
    played = await play_group(ticket, used := stage(engine))
    for each in played:
        assert (each.status, each.turns, each.retries, each.error) == (Status.TERMINATED, 3, 0, "")
        rolls = [int(m.tool_calls[0].arguments["n"]) for m in each.messages if m.role == "assistant"]
        assert each.reward == each.components["mean"] == pytest.approx(sum(rolls) / 3 / 255)
        assert [m.role for m in each.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
            "assistant",
            "tool",
        ]
        assert each.messages[-1].content == "done", "what the last tool said is part of the transcript"
        assert each.kind == "dice"
        assert each.counts == {"ok": 3}
        assert set(each.versions()) == {4}
        assert each.wall_s > 0
    assert len({str(each.messages) for each in played}) == 4, "every episode has draws of its own"
    assert len({each.messages[0].content for each in played}) == 1, "of one task"
    assert used.counters["episodes"] == 4
    assert used.counters["sampled_tokens"] == sum(len(each.versions()) for each in played)
    assert engine.sessions == set()
    Group(ticket, played, "w").check()


async def test_the_same_ticket_gives_the_same_episodes_whatever_runs_beside_it():
    def content(played):
        return [(each.sequences, each.reward) for each in played]

    alone = await play_group(make_ticket(5), stage())
    used = stage(FakeEngine(pace_s=0.001))
    crowd = await asyncio.gather(*(play_group(make_ticket(id), used) for id in range(10)))
    assert content(alone) == content(crowd[5])
    assert content(alone) != content(await play_group(make_ticket(5, attempt=1), stage()))
    assert content(alone) != content(await play_group(make_ticket(5, sampling=Sampling(16, seed=8)), stage()))


def test_seeds_are_distinct_stable_and_fit_63_bits():
    tickets = [make_ticket(id, attempt=a) for id in range(10) for a in range(3)]
    tickets.append(make_ticket(0, purpose="eval"))
    seeds = {turn_seed(ticket, e, t) for ticket in tickets for e in range(5) for t in range(5)}
    assert len(seeds) == len(tickets) * 25
    assert max(seeds) < 2**63
    assert turn_seed(make_ticket(1), 2, 3) == 262802408305125667


async def test_a_group_begins_together():
    asked = []

    class Watches(FakeEngine):
        async def generate(self, token_ids, sampling, *, session):
            asked.append((session, Dice.opened))
            return await super().generate(token_ids, sampling, session=session)

    await play_group(make_ticket(0, group_size=6), stage(Watches()))
    assert len(asked) == 18
    assert all(opened == 6 for _, opened in asked), "all had begun before the first request"
    assert len({session for session, _ in asked}) == 6


async def test_stop_ids_are_the_tickets_or_else_the_templates():
    asked = []

    class Watches(FakeEngine):
        async def generate(self, token_ids, sampling, *, session):
            asked.append(sampling)
            return await super().generate(token_ids, sampling, session=session)

    await play_group(make_ticket(0, group_size=1), stage(Watches()))
    own = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, stop_ids=(1, 2))
    await play_group(make_ticket(0, group_size=1, sampling=own), stage(Watches()))
    assert asked[0].stop_ids == (STOP,)
    assert (asked[3].stop_ids, asked[3].temperature, asked[3].top_p, asked[3].max_tokens) == ((1, 2), 0.5, 0.9, 9)


class Ranked(Dice):
    @reward(weight=0.5, scope="group")
    def rank(group):
        best = max(sum(env.rolls) for env in group)
        return [float(sum(env.rolls) == best) for env in group]


async def test_group_rewards_see_the_whole_group():
    played = await play_group(make_ticket(0, env=here("Ranked"), group_size=8), stage())
    best = max(each.components["mean"] for each in played)
    for each in played:
        assert each.components["rank"] == float(each.components["mean"] == best)
        assert each.reward == pytest.approx(each.components["mean"] + 0.5 * each.components["rank"])


# Budgets: truncated, and scored


async def test_the_turn_budget_truncates():
    (each,) = await play_group(make_ticket(0, group_size=1), stage(FakeEngine(reply="hm")))
    assert (each.status, each.turns, each.reward) == (Status.TRUNCATED, 4, 0.0)
    assert each.counts == {"format_error": 4, "truncated_turns": 1}


async def test_a_reply_over_its_tokens_truncates_and_is_not_acted_upon():
    ticket = make_ticket(0, group_size=1, sampling=Sampling(max_tokens=8))
    (each,) = await play_group(ticket, stage(FakeEngine(reply="roll(200) and more")))
    assert (each.status, each.turns, each.reward) == (Status.TRUNCATED, 1, 0.0)
    assert each.counts == {"truncated_tokens": 1}
    assert sum(each.sequences[0].sampled) == 8


async def test_a_reply_cut_by_the_context_truncates():
    cut = Completion([114], [-1.0], [0], "length")
    (each,) = await play_group(make_ticket(0, group_size=1), stage(Says(cut)))
    assert (each.status, each.counts) == (Status.TRUNCATED, {"truncated_context": 1})


async def test_a_prompt_without_room_for_a_reply_truncates():
    (each,) = await play_group(make_ticket(0, group_size=1), stage(Flaky(NoRoom("1030 tokens of 1024"))))
    assert (each.status, each.turns, each.reward, each.sequences) == (Status.TRUNCATED, 0, 0.0, [])
    assert each.counts == {"truncated_context": 1}


async def test_the_wall_clock_truncates_before_the_next_reply():
    (each,) = await play_group(make_ticket(0, group_size=1), stage(FakeEngine(pace_s=0.1), wall_s=0.15))
    assert (each.status, each.turns) == (Status.TRUNCATED, 2)
    assert each.counts == {"ok": 2, "truncated_time": 1}
    assert each.reward is not None


# Faults: retried, then errored, never scored


def assert_errored(each, error: str, retries: int) -> None:
    assert (each.status, each.reward, each.sequences, each.components) == (Status.ERRORED, None, [], {})
    assert error in each.error
    assert each.retries == retries


NAN_LOGPROBS = Completion([114, STOP], [-1.0, math.nan], [0, 0], "stop")


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Flaky(EngineError("the server is down")), "EngineError: the server is down"),
        (Flaky(KeyError("a bug")), "KeyError: 'a bug'"),
        (Flaky(OSError("half a pair \ud800")), "half a pair \\ud800"),
        (Says(NAN_LOGPROBS), "EngineError: the engine returned a log-probability"),
        (Says(Completion([1], [math.inf], [0], "stop")), "log-probability"),
        (Says(Completion([1], [-math.inf], [0], "stop")), "log-probability"),
        (Says(Completion([1], [0.5], [0], "stop")), "log-probability"),
        (Says(Completion([], [], [], "stop")), "0 tokens"),
        (Says(Completion([1, 2], [-1.0], [0, 0], "stop")), "2 tokens, 1 log-probabilities"),
        (Says(Completion([1], [-1.0], [-1], "stop")), "without a weight version"),
        (Says(Completion([1], [-1.0], [0], "abort")), "gave the request up"),
    ],
    ids=lambda x: None if not isinstance(x, str) else x[:20],
)
async def test_an_engine_that_keeps_failing(engine, said):
    ticket = make_ticket(0)
    played = await play_group(ticket, used := stage(engine, retries=2))
    for each in played:
        assert_errored(each, said, retries=2)
    assert used.counters["retries"] == 4
    assert used.counters["errored"] == 2
    assert sum(count for name, count in used.counters.items() if name.startswith("fault/")) == 6
    assert Dice.opened == 6, "a fresh environment each time"
    wire.decode_to_trainer(wire.encode(Group(ticket, played, "w")))


async def test_an_engine_that_recovers_costs_nothing_but_the_retry():
    recovered = await play_group(make_ticket(0), stage(Flaky(EngineError("down"), times=2)))
    untroubled = await play_group(make_ticket(0), stage())
    assert [each.retries for each in recovered] == [2, 2]
    assert [(e.sequences, e.reward) for e in recovered] == [(e.sequences, e.reward) for e in untroubled]


async def test_a_failing_episode_leaves_its_group_alone():
    class One(FakeEngine):
        async def generate(self, token_ids, sampling, *, session):
            if session.startswith("train-0-0-1-"):
                raise EngineError("only this one")
            return await super().generate(token_ids, sampling, session=session)

    played = await play_group(make_ticket(0, group_size=3), stage(One()))
    assert [each.status for each in played] == [Status.TERMINATED, Status.ERRORED, Status.TERMINATED]


async def test_an_engine_that_hangs_is_a_fault_and_not_a_budget():
    played = await play_group(make_ticket(0), stage(FakeEngine(pace_s=30), generate_s=0.05, retries=1))
    for each in played:
        assert_errored(each, "InfrastructureError: a reply of the engine took longer than 0.05 s", retries=1)


class Breaks(Dice):
    """Breaks in one place, `times` times in all."""

    times = 10**9
    error: Exception = InfrastructureError("the index is gone")

    def stumble(self) -> None:
        if type(self).times > 0:
            type(self).times -= 1
            raise self.error


class BreaksAtStart(Breaks):
    async def start(self, task):
        text = await super().start(task)
        self.stumble()
        return text


class BreaksInTool(Breaks):
    @tool
    async def roll(self, n: int) -> str:
        """Roll.

        Args:
            n: what to roll.
        """
        self.stumble()
        return self.finish("done")


class BreaksInReward(Breaks):
    @reward(weight=1.0)
    def mean(self) -> float:
        self.stumble()
        return 0.5


class BreaksInGroupReward(Breaks):
    @reward(weight=1.0, scope="group")
    def rank(group):
        group[0].stumble()
        return [0.0] * len(group)


class NotFinite(Breaks):
    @reward(weight=1.0)
    def mean(self) -> float:
        return math.nan


BREAKING = [BreaksAtStart, BreaksInTool, BreaksInReward, BreaksInGroupReward, NotFinite]


@pytest.mark.parametrize("env", BREAKING)
async def test_an_environment_that_keeps_failing(env):
    played = await play_group(make_ticket(0, env=here(env.__name__)), stage(retries=1))
    for each in played:
        assert_errored(each, "the index is gone" if env is not NotFinite else "reward 'mean' is nan", retries=1)


@pytest.mark.parametrize("env", BREAKING[:-1])
async def test_an_environment_that_recovers(env, monkeypatch):
    monkeypatch.setattr(env, "times", 1)
    played = await play_group(make_ticket(0, env=here(env.__name__)), stage(retries=1))
    assert all(each.reward is not None for each in played)
    assert sum(each.retries for each in played) == (2 if env is BreaksInGroupReward else 1)


class BreaksOnClose(Dice):
    async def stop(self) -> None:
        await super().stop()
        raise OSError("cannot remove the folder")


async def test_a_fault_of_closing_is_counted_and_changes_nothing():
    played = await play_group(make_ticket(0, env=here("BreaksOnClose")), used := stage())
    assert all(each.reward is not None for each in played)
    assert used.counters["fault/OSError"] == 2


class Hangs(Dice):
    async def start(self, task):
        await super().start(task)
        await asyncio.sleep(60)
        return ""


async def test_an_environment_that_hangs():
    (each,) = await play_group(make_ticket(0, env=here("Hangs"), group_size=1), stage(env_s=0.05, retries=0))
    assert_errored(each, "beginning an episode took longer than 0.05 s", retries=0)
    assert each.messages == []


class Unmakeable(Dice):
    def __init__(self) -> None:
        raise FileNotFoundError("no index at /data")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("nope-v0", "UnknownEnvironment"),
        ("tests.fakes:Dice?sides=6", "ValueError"),
        (here("Unmakeable"), "FileNotFoundError: no index at /data"),
    ],
)
async def test_an_environment_that_cannot_be_made_is_the_tickets_fault(env, said):
    with pytest.raises(CannotPlay, match=said):
        await play_group(make_ticket(0, env=env), stage())


async def test_cancelling_a_group_closes_what_it_opened():
    engine = FakeEngine(pace_s=30)
    task = asyncio.create_task(play_group(make_ticket(0, group_size=5), stage(engine)))
    while len(engine.sessions) < 5:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Dice.closed == 5
    assert engine.sessions == set()


class Loud(Dice):
    async def start(self, task):
        await super().start(task)
        return [Message("system", "\ud800"), Message("user", "roll")]


async def test_text_that_cannot_be_encoded_does_not_cost_the_group():
    class Chat(FakeChat):
        def add(self, *messages):
            self.messages.extend(messages)

    ticket = make_ticket(0, env=here("Loud"))
    played = await play_group(ticket, Stage(FakeEngine(), Chat))
    assert played[0].messages[0].content == "\\ud800"
    wire.decode_to_trainer(wire.encode(Group(ticket, played, "w")))
