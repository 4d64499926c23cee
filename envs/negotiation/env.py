"""`negotiation`: divide items with an opponent whose tastes are not known, by structured offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from envs.actions import call
from envs.levels import Level, pick_level
from envs.negotiation import tasks
from envs.negotiation.opponents import OPPONENTS, POOLS, Best, best_return
from envs.negotiation.scenarios import load as load_scenarios
from envs.registry import register
from envs.scoring import reward
from envs.splits import content_hash
from envs.tool_env import FormatError, ToolEnv
from envs.tools import tool
from envs.types import Message
from rewards.negotiation import Deal, is_deal, pareto_distance, rest, share, utility

DISCOUNT = 0.97  # what a share is worth one turn later
NEAR_BEST = 0.9

# The demonstrator's gaps.
PROPOSES_AT_RANDOM = 0.15
GIVES_IN = 0.3


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer on the table: what the model would keep, and who made it."""

    by: Literal["you", "opponent"]
    keep: Deal


@register("negotiation-v0", max_turns=5)
class Negotiation(ToolEnv):
    """Divide items with a scripted opponent; only an accepted offer binds.

    `level` 1: two kinds of items; 2: three; 3: no deal is worth something too (see `envs.negotiation.tasks`).
    `opponent` names a family of opponents; "any" draws from the usual ones, "unseen" from those kept for evaluation.
    `scenarios` takes counts and values from a file instead of sampling them by `level`.
    """

    def __init__(self, level: Level = 1, opponent: str = "any", scenarios: str = "") -> None:
        self.level = level
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later
        if opponent not in POOLS:
            raise ValueError(f"opponent must be one of {', '.join(POOLS)}; got {opponent!r}")
        self.pool = POOLS[opponent]
        self.scenarios = load_scenarios(scenarios) if scenarios else ()

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        if self.scenarios:
            scenario = self.scenarios[int(rng.integers(len(self.scenarios)))]
        else:
            scenario = tasks.sample_scenario(rng, pick_level(rng, self.level, tasks.LEVELS))
        opponent = self.pool[int(rng.integers(len(self.pool)))]
        return {"kind": opponent, "opponent": opponent, **scenario}

    def task_key(self, payload: dict[str, Any]) -> Any:
        reserves = [payload[side] for side in ("reserve", "other_reserve") if side in payload]
        return [payload["counts"], payload["values"], payload["other"], *reserves]

    async def start(self, task: dict[str, Any]) -> str:
        self.counts_of, self.values_of = tuple(task["counts"]), tuple(task["values"])
        self.others_values = tuple(task["other"])
        self.opponent = OPPONENTS[task["opponent"]]
        reserve = task.get("reserve", 0)  # what no deal is worth, in points; to the opponent, as a share
        self.reserve = reserve / (utility(self.counts_of, self.values_of) or 1)
        self.others_reserve = task.get("other_reserve", 0) / (utility(self.counts_of, self.others_values) or 1)
        self.seed = int.from_bytes(content_hash(self.task_key(task))[:4], "big")  # of what a noisy opponent does
        self.past: list[float] = []  # the shares that the opponent was offered
        self.offers: list[Offer] = []  # offer 1 is the first
        self.open_offer: int | None = None  # the number of the opponent's offer that may be accepted
        self.deal: Deal | None = None
        self.invalid = 0
        self._style = ""
        no_deal = f", no deal worth {reserve}" if reserve else ""
        return f"items {_spaced(self.counts_of)} worth {_spaced(self.values_of)}{no_deal}"

    @tool
    async def propose(self, keep: list[int]) -> str:
        """Offer a division of the items.

        Args:
            keep: how many of each kind you keep; the opponent gets the rest.
        """
        if not is_deal(keep, self.counts_of):
            self._refuse("over_allocated_offer", f"keep must be {len(self.counts_of)} counts within the items")
        self.offers.append(Offer("you", tuple(keep)))
        self.open_offer = None
        offered = rest(keep, self.counts_of)
        if self.opponent.accepts(offered, *self._others_view()):
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
        if self.offers[offer_id - 1].by == "you":
            self._refuse("accepted_own_offer", f"offer {offer_id} is yours")
        if offer_id != self.open_offer:
            self._refuse("accepted_closed_offer", f"offer {offer_id} is not open any more")
        self.deal = self.offers[offer_id - 1].keep
        return self.finish("deal")

    @tool
    async def reject(self, offer_id: int) -> str:
        """Reject the opponent's latest offer, and hear its next one.

        Args:
            offer_id: the number of the offer.
        """
        if offer_id != self.open_offer:
            self._refuse("rejected_no_open_offer", f"offer {offer_id} is not open")
        return self._counter()

    @tool
    async def say(self, text: str) -> str:
        """Say something to the opponent. Words bind nobody.

        Args:
            text: what to say.
        """
        return "the opponent waits for an offer"

    @tool
    async def walk_away(self) -> str:
        """End the negotiation without a deal."""
        return self.finish("no deal")

    def _others_view(self) -> tuple[Deal, Deal, int, list[float], int, float]:
        return self.counts_of, self.others_values, self.num_moves, self.past, self.seed, self.others_reserve

    def _counter(self) -> str:
        """The opponent's next offer, which closes all earlier ones. It leaves when its patience is over."""
        if self.num_moves >= self.max_turns:
            self.open_offer = None
            return self.finish("no, the opponent leaves")
        wanted = self.opponent.ask(*self._others_view())
        self.offers.append(Offer("opponent", rest(wanted, self.counts_of)))
        self.open_offer = len(self.offers)
        return f"no, offer {self.open_offer}: you get {_spaced(self.offers[-1].keep)}"

    def _refuse(self, label: str, reason: str) -> None:
        self.invalid += 1
        self.label(label)
        raise FormatError(reason)

    @reward(weight=1.0)
    def discounted_share(self) -> float:
        """The share of everything's worth that the deal gives, or that no deal does, discounted by turn (Rubinstein
        1982)."""
        return self.share() * DISCOUNT ** max(0, self.num_moves - 1)

    @reward(weight=0.0)
    def share(self) -> float:
        return share(self.deal, self.counts_of, self.values_of) if self.deal is not None else self.reserve

    @reward(weight=0.0)
    def agreement(self) -> float:
        return float(self.deal is not None)

    @reward(weight=0.0)
    def of_best(self) -> float:
        """The reward as a fraction of the largest that this opponent would have let the model reach."""
        best = self._best().value
        return self.discounted_share() / best if best else 1.0  # nothing could be reached

    @reward(weight=0.0)
    def success(self) -> float:
        return float(self.of_best() >= NEAR_BEST)

    @reward(weight=0.0)
    def worse_than_no_deal(self) -> float:
        return float(self.deal is not None and self.share() < self.reserve)

    @reward(weight=0.0)
    def from_pareto(self) -> float:
        """The deal's distance from the Pareto front, in shares; that of no deal is that of nothing for either side."""
        if self.deal is None:
            return 2**0.5
        return pareto_distance(self.deal, self.counts_of, self.values_of, self.others_values)

    @reward(weight=0.0)
    def invalid_moves(self) -> float:
        return self.invalid

    def _best(self) -> Best:
        sides = (self.counts_of, self.values_of, self.others_values)
        reserves = (self.reserve, self.others_reserve)
        return best_return(self.opponent, *sides, self.max_turns, DISCOUNT, self.seed, reserves)

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """Concedes blindly, splits evenly or proposes at random, and often takes what it is offered."""
        if not self._style:
            style = "random" if rng.random() < PROPOSES_AT_RANDOM else ("even", "concede")[int(rng.integers(2))]
            self._style, self._keep = style, list(self.counts_of)
        if self.open_offer is not None and rng.random() < GIVES_IN:
            return call("accept", offer_id=self.open_offer)
        if self._style == "random":
            return call("propose", keep=[int(rng.integers(count + 1)) for count in self.counts_of])
        if self._style == "even":
            return call("propose", keep=[(count + 1) // 2 for count in self.counts_of])
        for _ in range(1 + int(rng.random() < 1 / 3)):  # give up one item, or two, of those worth least
            kinds = [kind for kind in np.argsort(self.values_of, kind="stable").tolist() if self._keep[kind] > 0]
            if kinds:
                self._keep[kinds[0]] -= 1
        return call("propose", keep=list(self._keep))

    async def expert(self, rng: np.random.Generator) -> Message:
        """Knows the opponent: waits for the best turn by asking for everything, then proposes the best deal."""
        best = self._best()
        if best.keep is None:
            return call("walk_away")
        return call("propose", keep=list(best.keep if self.num_turns + 1 >= best.turn else self.counts_of))


def _spaced(numbers: Deal) -> str:
    return " ".join(map(str, numbers))
