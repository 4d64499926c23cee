"""Several seats of one episode: each a conversation, tokens, a reward and a baseline of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import envs
from envs import Message, ToolEnv, call, reward, tool
from envs.types import Status
from rollout import episode as playing
from rollout.engine import EngineError
from rollout.episode import Budget, Stage, play_group
from rollout.wire import Episode, Group, WireError
from tests.fakes import STOP, FakeChat, FakeEngine, make_ticket
from trainer import demos
from trainer.algorithms.grpo import GRPO
from trainer.batch import pack

ROLLS = 4


class Relay(ToolEnv):
    """Two seats roll in turns; each earns the mean of its own rolls, over 255."""

    seats = ("north", "south")

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"mine": int(rng.integers(2**40)), "yours": int(rng.integers(2**40))}

    async def start(self, task: dict[str, Any]) -> dict[str, str | list[Message]]:
        self.rolls: dict[str, list[int]] = {seat: [] for seat in self.seats}
        return {"north": f"N{task['mine']}.", "south": [Message("system", "S"), Message("user", f"{task['yours']}.")]}

    @tool
    async def roll(self, n: int) -> str:
        self.rolls[self.seat].append(n)
        other = self.seats[1 - self.seats.index(self.seat)]
        self.tell(other, f"<{n}>")
        self.hand_over(other)
        return self.finish("end") if sum(map(len, self.rolls.values())) == ROLLS else "ok"

    @reward
    def mean(self) -> float:
        return float(np.mean(self.rolls[self.seat] or [0])) / 255

    @reward(scope="group", weight=0.0)
    def rank(group: list[Any]) -> list[float]:
        """How many others of the same seat earned less."""
        return [float(sum(other.mean() < each.mean() for other in group)) for each in group]

    @reward(scope="step", weight=0.0)
    def steps(self) -> float:
        return 1.0

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        return call("roll", n=int(rng.integers(256)))


HERE = f"{Relay.__module__}:Relay"


def stage(engine: FakeEngine, **budget: Any) -> Stage:
    return Stage(engine, FakeChat, Budget(**budget))


async def played(group_size: int = 3) -> Group:
    ticket = make_ticket(5, env=HERE, group_size=group_size)
    return Group(ticket, await play_group(ticket, stage(FakeEngine())), "w0")


def text(each: Episode, sampled: bool) -> str:
    (sequence,) = each.sequences
    return bytes(
        t for t, s in zip(sequence.tokens, sequence.sampled, strict=True) if s is sampled and t != STOP
    ).decode()


async def test_a_seat_has_what_it_saw_and_what_it_said_and_nothing_else() -> None:
    group = await played()
    group.check()
    task = envs.make(HERE).make_task("train", 5).payload
    assert [each.seat for each in group.episodes] == ["north", "south"] * 3
    for north, south in zip(group.episodes[::2], group.episodes[1::2], strict=True):
        said = {each.seat: [c.arguments["n"] for m in each.messages for c in m.tool_calls] for each in (north, south)}
        a, b = said["north"]
        c, d = said["south"]
        assert text(north, sampled=False) == f"N{task['mine']}.ok<{c}>"
        assert text(south, sampled=False) == f"S{task['yours']}.<{a}>ok<{b}>"
        assert text(north, sampled=True) == f"roll({a})roll({b})"
        assert text(south, sampled=True) == f"roll({c})roll({d})"
        assert north.messages[-1] == Message("user", f"<{d}>")  # told after its last turn: shown, not trained
        assert (north.reward, south.reward) == (pytest.approx((a + b) / 510), pytest.approx((c + d) / 510))
        assert north.components["steps"] == south.components["steps"] == north.turns == south.turns == 2
    for seat in ("north", "south"):
        ranks = sorted(each.components["rank"] for each in group.episodes if each.seat == seat)
        assert ranks == [0.0, 1.0, 2.0]


async def test_a_seat_is_compared_with_the_same_seat_only() -> None:
    group = await played(group_size=2)
    rewards = [1.0, 10.0, 0.0, 40.0]  # north, south, north, south
    given = [msgspec.structs.replace(e, reward=r) for e, r in zip(group.episodes, rewards, strict=True)]
    batch = pack([Group(group.ticket, given, "w0")], GRPO(advantage="mean"))
    assert len(batch.rows) == 4  # both seats of both episodes are trained
    for each, advantage in zip(given, [0.5, -15.0, -0.5, 15.0], strict=True):
        tokens = each.sequences[0].tokens
        assert [row.advantage for row in batch.rows if row.tokens == tokens[: len(row.tokens)]] == [advantage]
    assert (batch.groups, len({row.group for row in batch.rows}), len({row.episode for row in batch.rows})) == (2, 1, 4)

    flat = [msgspec.structs.replace(e, reward=float(e.seat == "north")) for e in group.episodes]
    assert pack([Group(group.ticket, flat, "w0")], GRPO(advantage="mean")).zero_variance == 2


async def test_a_group_is_whole_only_with_every_seat_and_as_old_as_its_oldest_token() -> None:
    class Ageing(FakeEngine):
        async def generate(self, token_ids, sampling, *, session):  # type: ignore[no-untyped-def]
            self.version = 3 if session.endswith("south") else 8
            return await super().generate(token_ids, sampling, session=session)

    ticket = make_ticket(5, env=HERE, group_size=3)
    group = Group(ticket, await play_group(ticket, stage(Ageing())), "w0")
    assert group.oldest() == 3
    for kept, fault in ((slice(0, 5), "got 2 of seat 'south'"), (slice(0, 4), "got 2"), (slice(0), "got 0")):
        with pytest.raises(WireError, match=f"asked for 3 episodes, {fault}"):
            msgspec.structs.replace(group, episodes=group.episodes[kept]).check()


async def test_a_fault_is_one_of_both_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_BACKOFF_S", 0.001)

    class Breaks(FakeEngine):
        ended: list[str] = []  # noqa: RUF012

        async def generate(self, token_ids, sampling, *, session):  # type: ignore[no-untyped-def]
            if session.endswith("south"):
                raise EngineError("gone")
            return await super().generate(token_ids, sampling, session=session)

        def end_session(self, session: str) -> None:
            self.ended.append(session)

    engine = Breaks()
    ticket = make_ticket(5, env=HERE, group_size=1)
    group = Group(ticket, await play_group(ticket, stage(engine, retries=1)), "w0")
    group.check()
    assert [(e.seat, e.status, e.sequences, e.retries) for e in group.episodes] == [
        ("north", Status.ERRORED, [], 1),
        ("south", Status.ERRORED, [], 1),
    ]
    assert engine.ended == [f"train-5-0-0-{retry}-{seat}" for retry in (0, 1) for seat in ("north", "south")]


def test_each_seat_is_imitated_from_what_it_saw() -> None:
    north, south = demos.play(HERE, episodes=1, seed=0)
    assert [m.role for m in north.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert [m.role for m in south.messages] == ["system", "user", "user", "assistant", "tool", "user", "assistant"]
    told = south.messages[2].content
    assert told == f"<{north.messages[1].tool_calls[0].arguments['n']}>"


async def test_the_other_faces() -> None:
    env = envs.make(HERE)
    with pytest.raises(ValueError, match="north, south: Gymnasium plays one only"):
        env.reset(seed=0)
    await env.begin("train", 0)
    twice = Message("assistant", "", tool_calls=call("roll", n=1).tool_calls * 2)
    assert [m.content for m in await env.act(twice)][-1] == "<1>"
    assert (env.seat, env.rolls) == ("south", {"north": [1], "south": []})
    assert [m.content for m in await env.act(call("roll", n=2))] == ["ok", "format_error: your turn is over", "<2>"]
    await env.aclose()
