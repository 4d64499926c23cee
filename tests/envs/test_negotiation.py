from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envs
from envs import Message, Status, ToolCall, call
from envs.check import check
from envs.negotiation.env import DISCOUNT, Negotiation
from envs.negotiation.opponents import OPPONENTS, POOLS, UNSEEN, USUAL, View, best_return
from envs.negotiation.scenarios import read_casino, read_deal_or_no_deal
from envs.types import Task
from rewards.negotiation import deals, share


async def started(text: str = "negotiation", index: int = 0) -> Negotiation:
    env = envs.make(text)
    assert isinstance(env, Negotiation)
    await env.begin("train", index)
    return env


async def staged(opponent: str, counts: list[int], values: list[int], other: list[int]) -> Negotiation:
    """An episode of a scenario chosen by hand."""
    env = await started()
    first = await env.start({"counts": counts, "values": values, "other": other, "opponent": opponent})
    assert first == f"items {counts[0]} {counts[1]} worth {values[0]} {values[1]}"
    return env


async def said(env: Negotiation, message: Message) -> str:
    (reply,) = await env.act(message)
    return reply.content


async def means(policy: str, episodes: int, text: str = "negotiation") -> dict[str, float]:
    env, rng = envs.make(text), np.random.default_rng(0)
    rows = []
    for index in range(episodes):
        await env.begin("heldout", index)
        while env.status is Status.RUNNING:
            await env.act(await getattr(env, policy)(rng))
        score = await env.score()
        assert 0.0 <= score.reward <= 1.0
        assert 0.0 <= score.components["of_best"] <= 1.0 + 1e-9
        rows.append(score.components | {"reward": score.reward})
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


@pytest.mark.parametrize("text", ["negotiation", "negotiation?level=2&opponent=slow"])
async def test_the_expert_reaches_the_best_and_the_demonstrator_does_not(text: str) -> None:
    expert, demonstrator = await means("expert", 60, text), await means("demonstrate", 150, text)
    assert expert["of_best"] == pytest.approx(1.0)
    assert expert["success"] == expert["agreement"] == 1.0
    assert 0.3 < demonstrator["of_best"] < 0.75
    assert demonstrator["reward"] < expert["reward"] - 0.2


async def test_a_deal_by_hand() -> None:
    env = await staged("firm", [2, 2], [4, 1], [1, 4])  # everything is worth 10 to either side; firm wants 4.5 or more
    assert (
        await said(env, call("propose", keep=[2, 2])) == "no, offer 2: you get 2 0"
    )  # it asks for 6: two of the second, 8
    assert await env.act(call("propose", keep=[2, 0])) == []
    assert [message.content for message in env.closing] == ["deal"]
    score = await env.score()
    assert score.reward == pytest.approx(0.8 * DISCOUNT)
    assert score.components["share"] == pytest.approx(0.8)
    assert score.components["from_pareto"] == pytest.approx(0.0)
    # [2, 0] leaves it 8, [2, 1] leaves it 4: the best deal is [2, 0] in the first turn
    assert score.components["of_best"] == pytest.approx(DISCOUNT)


async def test_accepting_the_latest_offer_binds() -> None:
    env = await staged("firm", [2, 2], [4, 1], [1, 4])
    await env.act(call("propose", keep=[2, 2]))
    assert await env.act(call("accept", offer_id=2)) == []
    assert env.deal == (2, 0)
    assert (await env.score()).components["agreement"] == 1.0


async def walked(moves: list[Message]) -> tuple[Negotiation, float]:
    env = await staged("firm", [2, 2], [4, 1], [1, 4])
    for move in moves:
        await env.act(move)
    if env.status is Status.RUNNING:
        env.truncate("turns")
    return env, (await env.score()).reward


everything = call("propose", keep=[2, 2])


@pytest.mark.parametrize(
    ("moves", "label"),
    [
        ([call("accept", offer_id=1)], "accepted_no_offer"),
        ([call("accept", offer_id=0)], "accepted_no_offer"),
        ([call("accept", offer_id=-1)], "accepted_no_offer"),
        ([everything, call("accept", offer_id=1)], "accepted_own_offer"),
        ([everything, everything, call("accept", offer_id=2)], "accepted_closed_offer"),
        ([everything, call("reject", offer_id=2), call("accept", offer_id=2)], "accepted_closed_offer"),
        ([everything, call("accept", offer_id=9)], "accepted_no_offer"),
        ([call("reject", offer_id=1)], "rejected_no_open_offer"),
        ([call("propose", keep=[3, 0])], "over_allocated_offer"),
        ([call("propose", keep=[-1, 0])], "over_allocated_offer"),
        ([call("propose", keep=[2])], "over_allocated_offer"),
        ([call("propose", keep=[2, 0, 0])], "over_allocated_offer"),
        ([call("propose", keep=[])], "over_allocated_offer"),
        ([call("propose", keep=[10**30, 0])], "over_allocated_offer"),
    ],
)
async def test_invalid_moves_never_bind(moves: list[Message], label: str) -> None:
    env, earned = await walked(moves)
    assert env.deal is None
    assert earned == 0.0
    assert env.labels == (label,)
    assert (await env.score()).components["invalid_moves"] == 1.0


@pytest.mark.parametrize(
    "moves",
    [
        [call("say", text="I accept. You accepted offer 1. accept(1)")],
        [Message("assistant", "accept")],
        [Message("assistant", 'The opponent says: "deal, accept(2)"')],
        [everything, Message("assistant", "accept(2)")],
        [call("propose", keep=[True, True])],
        [call("propose", keep="2 2")],
        [call("walk_away")],
        [],
    ],
)
async def test_words_bind_nobody(moves: list[Message]) -> None:
    env, earned = await walked(moves)
    assert (env.deal, earned) == (None, 0.0)


async def test_the_opponent_loses_patience_within_one_reply_too() -> None:
    env = await staged("soft", [2, 2], [4, 1], [1, 4])
    offers: list[dict[str, Any]] = [{"keep": [2, 2]}] * 8
    await env.act(Message("assistant", "", tool_calls=tuple(ToolCall("propose", offer) for offer in offers)))
    assert env.status is Status.TERMINATED
    assert len(env.closing) == env.max_turns
    assert (await env.score()).reward == 0.0


@pytest.mark.parametrize("name", list(OPPONENTS))
def test_opponents_accept_their_own_offers_and_nothing_below_their_threshold(name: str) -> None:
    opponent, counts, values, past = OPPONENTS[name], (2, 3), (1, 4), [0.0, 0.1]
    for turn in range(1, 6):
        view = View(counts, values, turn, past, 5)
        assert opponent.accepts(opponent.ask(view), view)
        for keep in deals(counts):
            now = share(keep, counts, values)
            wanted = opponent.threshold(turn, [*past, now], 5)
            assert opponent.accepts(keep, view) == (now >= wanted - 1e-9)
            assert 0.1 < wanted < 0.95


@pytest.mark.parametrize("name", ["firm", "soft", "slow", "boulware", "conceder", "hardliner", "liar"])
def test_opponents_concede_with_time_and_never_take_back(name: str) -> None:
    limits = [OPPONENTS[name].threshold(turn, [0.0], 0) for turn in range(1, 8)]
    assert limits == sorted(limits, reverse=True)
    assert (limits[0] == limits[-1]) == (name in ("firm", "hardliner"))


def test_families_differ_as_their_names_say() -> None:
    def at(name: str, turn: int, offered: list[float], seed: int = 0) -> float:
        return OPPONENTS[name].threshold(turn, offered, seed)

    assert at("boulware", 2, [0.0]) > 0.7 > at("conceder", 2, [0.0])
    assert at("tit_for_tat", 3, [0.1, 0.3]) == pytest.approx(0.5)
    assert at("tit_for_tat", 3, [0.3, 0.3]) == pytest.approx(0.7)
    assert at("noisy", 1, [0.0], seed=1) == at("noisy", 1, [0.0], seed=1) != at("noisy", 1, [0.0], seed=2)
    counts, values = (4, 4), (1, 2)
    asked = {name: share(OPPONENTS[name].ask(View(counts, values, 1)), counts, values) for name in ("firm", "liar")}
    assert asked["liar"] > asked["firm"] + 0.2
    assert set(USUAL).isdisjoint(UNSEEN)
    assert set(USUAL) | set(UNSEEN) == set(OPPONENTS)


async def test_unseen_opponents_can_be_beaten_too() -> None:
    found = await means("expert", 120, "negotiation?opponent=unseen&level=1-2")
    assert found["of_best"] == pytest.approx(1.0)
    kinds = {envs.make("negotiation?opponent=unseen").make_task("train", index).kind for index in range(60)}
    assert kinds == set(UNSEEN)


def test_the_best_return_by_hand() -> None:
    # Firm wants 4.5 of 10. Of what leaves it that much, keeping both of the first kind is worth most: 8 of 10, at once.
    best = best_return(OPPONENTS["firm"], (2, 2), (4, 1), (1, 4), 5, DISCOUNT)
    assert (best.value, best.turn, best.keep) == (pytest.approx(0.8), 1, (2, 0))
    # Soft takes 0.2 from turn 4 on, which leaving (2, 0), worth 2 of 10, fulfils: (0, 2) of the other's taste.
    late = best_return(OPPONENTS["soft"], (2, 2), (1, 4), (1, 4), 5, 1.0)
    assert (late.value, late.turn, late.keep) == (pytest.approx(0.8), 4, (0, 2))


def test_an_unknown_opponent_is_named() -> None:
    with pytest.raises(ValueError, match=r"unseen, firm, .*; got 'nice'"):
        envs.make("negotiation?opponent=nice")
    assert set(POOLS) == {"any", "unseen", *OPPONENTS}


CASINO = [
    {
        "participant_info": {
            "mturk_agent_1": {"value2issue": {"Low": "Water", "Medium": "Food", "High": "Firewood"}},
            "mturk_agent_2": {"value2issue": {"Low": "Food", "Medium": "Water", "High": "Firewood"}},
        }
    }
]


def test_scenarios_of_either_data_set() -> None:
    first, second = read_deal_or_no_deal("1 0 4 2 1 2\n1 8 4 0 1 2\n")
    assert first == {"counts": [1, 4, 1], "values": [0, 2, 2], "other": [8, 0, 2]}
    assert second == {"counts": [1, 4, 1], "values": [8, 0, 2], "other": [0, 2, 2]}
    casino, _ = read_casino(CASINO)
    assert casino == {"counts": [3, 3, 3], "values": [4, 3, 5], "other": [3, 4, 5]}


async def test_scenario_files_are_played(tmp_path: Path) -> None:
    path = tmp_path / "selfplay.txt"
    path.write_text("\n".join(f"1 {i} 4 2 1 2\n1 8 4 0 1 {i}" for i in range(12)))
    env = envs.make(f"negotiation?scenarios={path}&opponent=firm")
    (first,) = await env.begin("train", 0)
    assert first.content.startswith("items 1 4 1 worth ")
    assert not {env.task_hash(env.make_task("train", i)) for i in range(50)} & {
        env.task_hash(env.make_task("heldout", i)) for i in range(50)
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1 2 3 x\n1 2 3 4", "whole numbers"),
        ("1 2 3 4\n1 2 2 4", "two sides"),
        ("1 2 3\n1 2 3", "two sides"),
        ("", "no scenario"),
        ("{}", "conversations|no scenario"),
    ],
)
def test_files_that_are_no_scenarios(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        envs.make(f"negotiation?scenarios={tmp_path / 'bad.txt'}")


async def test_no_deal_is_worth_something_at_level_3() -> None:
    scenario = {"counts": [2, 2], "values": [4, 1], "other": [1, 4], "reserve": 4, "other_reserve": 9}
    for moves, reward, worse in (
        ([call("walk_away")], 0.4, 0.0),
        ([everything, call("walk_away")], 0.4 * DISCOUNT, 0.0),
        ([call("propose", keep=[0, 1]), call("walk_away")], 0.4 * DISCOUNT, 0.0),  # leaves it 6 of 10, and it has 9
        ([call("propose", keep=[0, 0])], 0.0, 1.0),
        ([], 0.4, 0.0),
    ):
        env = await started()
        first = await env.start({**scenario, "opponent": "firm"})
        assert first == "items 2 2 worth 4 1, no deal worth 4"
        for move in moves:
            await env.act(move)
        env.truncate("turns")
        score = await env.score()
        assert (score.reward, score.components["worse_than_no_deal"]) == (pytest.approx(reward), worse)
    # firm takes 4.5 of 10, but has 9 without a deal: [1, 0] leaves it 9, and is worth 4, no more than no deal
    assert best_return(OPPONENTS["firm"], (2, 2), (4, 1), (1, 4), 5, DISCOUNT, reserves=(0.4, 0.9)).keep is None
    assert best_return(OPPONENTS["firm"], (2, 2), (4, 1), (1, 4), 5, DISCOUNT, reserves=(0.3, 0.9)).keep == (1, 0)


async def test_level_3_can_be_played_to_the_best() -> None:
    found = await means("expert", 120, "negotiation?level=3&opponent=any")
    assert found["of_best"] == pytest.approx(1.0)
    assert found["worse_than_no_deal"] == 0.0
    assert 0.5 < found["agreement"] < 1.0


async def test_both_seats_bargain_and_each_knows_its_own_side_only() -> None:
    env = envs.make("negotiation?opponent=self&level=3")
    assert isinstance(env, Negotiation)
    (first,) = await env.begin("train", 0)
    task = env.task.payload
    assert (env.kind, env.max_turns) == ("self", 10)
    counts, values, other = task["counts"], task["values"], task["other"]
    worth = " ".join(map(str, values))
    assert first.content == f"items {' '.join(map(str, counts))} worth {worth}, no deal worth {task['reserve']}"
    everything, nothing = " ".join(map(str, counts)), " ".join("0" for _ in counts)

    second, told = await env.act(call("propose", keep=counts))
    worth = " ".join(map(str, other))
    assert second.content == f"items {everything} worth {worth}, no deal worth {task['other_reserve']}"
    assert told.content == f"offer 1: you get {nothing}"
    assert [m.content for m in await env.act(call("say", text="accept offer 1"))] == ["said"]
    assert [m.content for m in await env.act(call("propose", keep=counts))] == [
        "offered",
        "the other says: accept offer 1",
        f"offer 2: you get {nothing}",
    ]
    (refused,) = await env.act(call("accept", offer_id=1))
    assert refused.content == "format_error: offer 1 is yours"
    assert [m.content for m in await env.act(call("reject", offer_id=2))] == ["offered", "no to offer 2"]
    (closed,) = await env.act(call("accept", offer_id=1))
    assert closed.content == "format_error: offer 1 is not open any more"
    await env.act(call("propose", keep=[0 for _ in counts]))
    assert await env.act(call("accept", offer_id=3)) == []
    assert env.status is Status.TERMINATED
    assert env.deal == tuple(counts)

    scores = {}
    for seat in env.seats:
        env.seat = seat
        scores[seat] = await env.score()
    assert scores["first"].reward == pytest.approx(DISCOUNT ** ((env.num_turns - 1) // 2))
    assert scores["second"].reward == 0.0
    assert [scores[seat].components["invalid_moves"] for seat in env.seats] == [1.0, 1.0]
    assert scores["second"].components["worse_than_no_deal"] == 1.0
    assert env.labels == ("accepted_own_offer", "accepted_closed_offer")
    await env.aclose()


async def test_a_seat_that_gets_no_deal_has_what_no_deal_is_worth() -> None:
    env = envs.make("negotiation?opponent=self&level=3")
    await env.begin("train", 0)
    await env.act(call("walk_away"))
    for seat, own, reserve in (("first", "values", "reserve"), ("second", "other", "other_reserve")):
        env.seat = seat
        payload = env.task.payload
        everything = sum(c * v for c, v in zip(payload["counts"], payload[own], strict=True))
        assert (await env.score()).reward == pytest.approx(payload[reserve] / everything)
    await env.aclose()


async def test_self_play_passes_the_checks_of_an_author() -> None:
    findings = await check("negotiation?opponent=self", episodes=8)
    assert [finding for finding in findings if finding.verdict != "ok"] == []
    assert "first, second" in next(finding.text for finding in findings if finding.check == "gymnasium")


def test_with_itself_a_task_and_its_mirror_are_one() -> None:
    env = envs.make("negotiation?opponent=self&level=3")
    task = env.make_task("train", 0).payload
    mirror = task | {"values": task["other"], "other": task["values"]}
    mirror |= {"reserve": task["other_reserve"], "other_reserve": task["reserve"]}
    assert env.task_key(mirror) == env.task_key(task)


@pytest.mark.parametrize(
    ("reserves", "moves", "success"),
    [
        ((0, 0), [call("propose", keep=[2, 0]), call("accept", offer_id=1)], 1.0),  # each what it likes
        ((0, 0), [call("propose", keep=[0, 2]), call("accept", offer_id=1)], 0.0),
        ((0, 5), [call("propose", keep=[2, 2]), call("accept", offer_id=1)], 0.0),  # second had more without a deal
        ((9, 9), [call("walk_away")], 1.0),  # nothing is worth 9 of 10 to both
        ((0, 0), [call("walk_away")], 0.0),
    ],
)
async def test_success_with_itself_is_a_deal_that_both_should_take(reserves, moves, success) -> None:
    env = envs.make("negotiation?opponent=self")
    task = {"counts": [2, 2], "values": [4, 1], "other": [1, 4], "opponent": "self", "kind": "self"}
    task |= {"reserve": reserves[0], "other_reserve": reserves[1]}
    env.make_task = lambda split, index: Task("negotiation", split, index, "self", task)
    await env.begin("train", 0)
    for move in moves:
        await env.act(move)
    for seat in env.seats:
        env.seat = seat
        assert (await env.score()).components["success"] == success
    await env.aclose()
