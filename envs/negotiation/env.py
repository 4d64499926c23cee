"""`negotiation`: divide items with an opponent whose tastes are not known, by structured offers.

The opponent is scripted, or it is the policy itself in the other seat. What is said here of sides is by their number:
side 0 is the model's, or the first seat's; side 1 the opponent's, or the second seat's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.actions import call
from envs.levels import Level, pick_level
from envs.negotiation import tasks
from envs.negotiation.opponents import OPPONENTS, POOLS, Best, Opponent, View, best_return
from envs.negotiation.scenarios import load as load_scenarios
from envs.registry import register
from envs.scoring import reward
from envs.splits import content_hash
from envs.tool_env import FormatError, ToolEnv
from envs.tools import tool
from envs.types import Message
from rewards.negotiation import Deal, best_nash, is_deal, pareto_distance, rest, share, utility

DISCOUNT = 0.97  # what a share is worth one turn later
NEAR_BEST = 0.9
PARETO_SLACK = 1e-9
SELF = "self"
SEATS = ("first", "second")

# The demonstrator's gaps.
PROPOSES_AT_RANDOM = 0.15
GIVES_IN = 0.3


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer on the table: the side that made it, and what side 0 would keep."""

    by: int
    keep: Deal


@register("negotiation-v0", max_turns=5)
class Negotiation(ToolEnv):
    """Divide items with a scripted opponent, or with itself; only an accepted offer binds.

    `level` 1: two kinds of items; 2: three; 3: no deal is worth something too (see `envs.negotiation.tasks`).
    `opponent` names a family of opponents; "any" draws from the usual ones, "unseen" from those kept for evaluation;
    "self" lets the policy play both seats, in turns, with `max_turns` for both together.
    `scenarios` takes counts and values from a file instead of sampling them by `level`.
    """

    def __init__(self, level: Level = 1, opponent: str = "any", scenarios: str = "") -> None:
        self.level = level
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later
        if opponent != SELF and opponent not in POOLS:
            raise ValueError(f"opponent must be one of {', '.join((*POOLS, SELF))}; got {opponent!r}")
        self.pool = POOLS.get(opponent, (SELF,))
        if opponent == SELF:
            self.seats, self.max_turns = SEATS, len(SEATS) * self.max_turns
        self.scenarios = load_scenarios(scenarios) if scenarios else ()

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        if self.scenarios:
            scenario = self.scenarios[int(rng.integers(len(self.scenarios)))]
        else:
            scenario = tasks.sample_scenario(rng, pick_level(rng, self.level, tasks.LEVELS))
        opponent = self.pool[int(rng.integers(len(self.pool)))]
        return {"kind": opponent, "opponent": opponent, **scenario}

    def task_key(self, payload: dict[str, Any]) -> Any:
        if payload["opponent"] == SELF:  # the same task from either side
            sides = (("values", "reserve"), ("other", "other_reserve"))
            return [payload["counts"], *sorted([payload[worth], payload.get(none, 0)] for worth, none in sides)]
        reserves = [payload[side] for side in ("reserve", "other_reserve") if side in payload]
        return [payload["counts"], payload["values"], payload["other"], *reserves]

    async def start(self, task: dict[str, Any]) -> str | dict[str, str | list[Message]]:
        self.counts_of = tuple(task["counts"])
        self.values_by = (tuple(task["values"]), tuple(task["other"]))
        points = (task.get("reserve", 0), task.get("other_reserve", 0))  # what no deal is worth to either side
        self.reserve_by = tuple(
            reserve / (utility(self.counts_of, values) or 1)
            for reserve, values in zip(points, self.values_by, strict=True)
        )
        self.opponent: Opponent | None = OPPONENTS.get(task["opponent"])  # None: the other seat
        self.seed = int.from_bytes(content_hash(self.task_key(task))[:4], "big")  # of what a noisy opponent does
        self.past: list[float] = []  # the shares that the opponent was offered
        self.offers: list[Offer] = []  # offer 1 is the first
        self.open_offer: int | None = None  # the number of the other side's offer that may be accepted
        self.deal: Deal | None = None  # what side 0 keeps
        self.invalid = [0, 0]  # by side
        self._styles: dict[int, str] = {}
        self._keeps: dict[int, list[int]] = {}
        first = [self._scenario(values, reserve) for values, reserve in zip(self.values_by, points, strict=True)]
        return dict(zip(SEATS, first, strict=True)) if len(self.seats) > 1 else first[0]

    def _scenario(self, values: Deal, reserve: int) -> str:
        no_deal = f", no deal worth {reserve}" if reserve else ""
        return f"items {_spaced(self.counts_of)} worth {_spaced(values)}{no_deal}"

    @property
    def side(self) -> int:
        return self.seats.index(self.seat)

    @property
    def values_of(self) -> Deal:
        return self.values_by[self.side]

    @property
    def others_values(self) -> Deal:
        return self.values_by[1 - self.side]

    @property
    def reserve(self) -> float:
        return self.reserve_by[self.side]

    @property
    def others_reserve(self) -> float:
        return self.reserve_by[1 - self.side]

    def _of_side(self, keep: Deal, side: int) -> Deal:
        """What `side` gets where side 0 keeps `keep`, and the other way round."""
        return rest(keep, self.counts_of) if side else keep

    @tool
    async def propose(self, keep: list[int]) -> str:
        """Offer a division of the items.

        Args:
            keep: how many of each kind you keep; the opponent gets the rest.
        """
        if not is_deal(keep, self.counts_of):
            self._refuse("over_allocated_offer", f"keep must be {len(self.counts_of)} counts within the items")
        self.offers.append(Offer(self.side, self._of_side(tuple(keep), self.side)))
        self.open_offer = None
        offered = rest(keep, self.counts_of)
        if self.opponent is None:
            self.open_offer = len(self.offers)
            return self._pass(f"offer {self.open_offer}: you get {_spaced(offered)}", "offered")
        if self.opponent.accepts(offered, self._others_view()):
            self.deal = tuple(keep)
            return self.finish("deal")
        self.past.append(share(offered, self.counts_of, self.others_values))
        return self._counter()

    @tool
    async def accept(self, offer_id: int) -> str:
        """Accept the opponent's latest offer, which ends the episode.

        Args:
            offer_id: the number of the offer.
        """
        if not 1 <= offer_id <= len(self.offers):
            self._refuse("accepted_no_offer", f"there is no offer {offer_id}")
        if self.offers[offer_id - 1].by == self.side:
            self._refuse("accepted_own_offer", f"offer {offer_id} is yours")
        if offer_id != self.open_offer:
            self._refuse("accepted_closed_offer", f"offer {offer_id} is not open any more")
        self.deal = self.offers[offer_id - 1].keep
        return self._end("deal")

    @tool
    async def reject(self, offer_id: int) -> str:
        """Reject the opponent's latest offer, and hear its next one.

        Args:
            offer_id: the number of the offer.
        """
        if offer_id != self.open_offer:
            self._refuse("rejected_no_open_offer", f"offer {offer_id} is not open")
        if self.opponent is None:
            self.open_offer = None
            return self._pass(f"no to offer {offer_id}", "rejected")
        return self._counter()

    @tool
    async def say(self, text: str) -> str:
        """Say something to the opponent. Words bind nobody.

        Args:
            text: what to say.
        """
        if self.opponent is None:
            self.tell(self._other_seat(), f"the other says: {text}")
            return "said"
        return "the opponent waits for an offer"

    @tool
    async def walk_away(self) -> str:
        """End the negotiation without a deal."""
        return self._end("no deal")

    def _other_seat(self) -> str:
        return self.seats[1 - self.side]

    def _pass(self, told: str, answer: str) -> str:
        """The other seat moves, and is told so."""
        self.tell(self._other_seat(), told)
        self.hand_over(self._other_seat())
        return answer

    def _end(self, text: str) -> str:
        if self.opponent is None:
            self.tell(self._other_seat(), text)
        return self.finish(text)

    def _others_view(self) -> View:
        return View(self.counts_of, self.others_values, self.num_moves, self.past, self.seed, self.others_reserve)

    def _counter(self) -> str:
        """The opponent's next offer, which closes all earlier ones. It leaves when its patience is over."""
        if self.num_moves >= self.max_turns:
            self.open_offer = None
            return self.finish("no, the opponent leaves")
        assert self.opponent is not None, "the other seat makes its own offers"
        wanted = self.opponent.ask(self._others_view())
        self.offers.append(Offer(1, rest(wanted, self.counts_of)))
        self.open_offer = len(self.offers)
        return f"no, offer {self.open_offer}: you get {_spaced(self.offers[-1].keep)}"

    def _refuse(self, label: str, reason: str) -> None:
        self.invalid[self.side] += 1
        self.label(label)
        raise FormatError(reason)

    @reward(weight=1.0)
    def discounted_share(self) -> float:
        """The share of everything's worth that the deal gives, or that no deal does, discounted by turn (Rubinstein
        1982); a turn of both seats is one."""
        return self.share() * DISCOUNT ** max(0, (self.num_moves - 1) // len(self.seats))

    @reward(weight=0.0)
    def share(self) -> float:
        if self.deal is None:
            return self.reserve
        return share(self._of_side(self.deal, self.side), self.counts_of, self.values_of)

    @reward(weight=0.0)
    def agreement(self) -> float:
        return float(self.deal is not None)

    @reward(weight=0.0)
    def of_best(self) -> float:
        """The reward as a fraction of the largest that this opponent would have let the model reach; of two seats, of
        what the deal with the largest product of both gains gives (Nash 1950)."""
        best = self._best().value if self.opponent else share(self._fair(), self.counts_of, self.values_of)
        return self.discounted_share() / best if best else 1.0  # nothing could be reached

    @reward(weight=0.0)
    def success(self) -> float:
        """Near the best; of two seats, a deal that none could better for one without costing the other, and that
        neither is worse off with; or no deal, where there is none such."""
        if self.opponent is None:
            if self.deal is None:
                return float(self._least_gain(self._of_side(self._fair(), self.side)) < 0)
            return float(self.from_pareto() < PARETO_SLACK and self._least_gain(self.deal) >= 0)
        return float(self.of_best() >= NEAR_BEST)

    def _least_gain(self, deal: Deal) -> float:
        """What `deal` (what side 0 keeps) gives the side that it gives less, over no deal, in shares."""
        sides = zip((0, 1), self.values_by, self.reserve_by, strict=True)
        return min(share(self._of_side(deal, side), self.counts_of, values) - least for side, values, least in sides)

    @reward(weight=0.0)
    def worse_than_no_deal(self) -> float:
        return float(self.deal is not None and self.share() < self.reserve)

    @reward(weight=0.0)
    def from_pareto(self) -> float:
        """The deal's distance from the Pareto front, in shares; that of no deal is that of nothing for either side."""
        if self.deal is None:
            return 2**0.5
        return pareto_distance(self.deal, self.counts_of, *self.values_by)

    @reward(weight=0.0)
    def invalid_moves(self) -> float:
        return self.invalid[self.side]

    def _best(self) -> Best:
        assert self.opponent is not None, "of a scripted opponent"
        sides = (self.counts_of, self.values_of, self.others_values)
        reserves = (self.reserve, self.others_reserve)
        return best_return(self.opponent, *sides, self.max_turns, DISCOUNT, self.seed, reserves)

    def _fair(self) -> Deal:
        """What this side keeps in the deal with the largest product of both gains over no deal."""
        return self._of_side(best_nash(self.counts_of, *self.values_by, *self.reserve_by), self.side)

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """Concedes blindly, splits evenly or proposes at random, and often takes what it is offered."""
        side = self.side
        if side not in self._styles:
            style = "random" if rng.random() < PROPOSES_AT_RANDOM else ("even", "concede")[int(rng.integers(2))]
            self._styles[side], self._keeps[side] = style, list(self.counts_of)
        style, keep = self._styles[side], self._keeps[side]
        if self.open_offer is not None and rng.random() < GIVES_IN:
            return call("accept", offer_id=self.open_offer)
        if style == "random":
            return call("propose", keep=[int(rng.integers(count + 1)) for count in self.counts_of])
        if style == "even":
            return call("propose", keep=[(count + 1) // 2 for count in self.counts_of])
        for _ in range(1 + int(rng.random() < 1 / 3)):  # give up one item, or two, of those worth least
            kinds = [kind for kind in np.argsort(self.values_of, kind="stable").tolist() if keep[kind] > 0]
            if kinds:
                keep[kinds[0]] -= 1
        return call("propose", keep=list(keep))

    async def expert(self, rng: np.random.Generator) -> Message:
        """Knows the opponent: waits for the best turn by asking for everything, then proposes the best deal.

        As both seats: proposes the fair deal, and accepts it.
        """
        if self.opponent is None:
            fair = self._fair()
            if self.open_offer and self._of_side(self.offers[self.open_offer - 1].keep, self.side) == fair:
                return call("accept", offer_id=self.open_offer)
            return call("propose", keep=list(fair))
        best = self._best()
        if best.keep is None:
            return call("walk_away")
        return call("propose", keep=list(best.keep if self.num_turns + 1 >= best.turn else self.counts_of))


def _spaced(numbers: Deal) -> str:
    return " ".join(map(str, numbers))
