"""Which request has which slot of the KV cache, and what of a prompt is there already."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field

from rollout.engine import Completion, Finish, Sampling

BLOCK = 16  # tokens; a shared beginning is found in steps of this many
WORTH_WAITING = 32  # tokens that are in the cache a pass later, for which a request waits that pass
MAX_PASS_TOKENS = 4096  # of prefill in one forward pass; longer prompts are fed over several
PATIENCE = 3  # passes that a request may wait for others to be prefilled with


@dataclass(eq=False, slots=True)
class Request:
    """One `generate()` call. `tokens` is the prompt and what was drawn; the first `fed` are in the cache."""

    tokens: list[int]
    sampling: Sampling
    session: str
    future: asyncio.Future[Completion]
    prompt_length: int
    stop: frozenset[int]
    slot: Slot | None = None
    fed: int = 0
    mixed: bool = False  # the cache holds entries of more than one weight version
    waited: int = 0
    chain: list[int] = field(default_factory=list)  # of the prompt, see `_chain`
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def finish(self, how: Finish) -> Completion:
        return Completion(self.tokens[self.prompt_length :], self.logprobs, self.versions, how)


@dataclass(eq=False, slots=True)
class Slot:
    """One row of the cache. Its first `len(tokens)` entries are those of `tokens`, by the current weights."""

    index: int
    tokens: list[int] = field(default_factory=list)
    session: str = ""
    busy: bool = False
    used: int = 0  # when it was last in use, in admissions
    chain: list[int] = field(default_factory=list)  # by which other requests find it


@dataclass(slots=True)
class Copy:
    """The first `length` entries of one slot, to others."""

    source: int
    targets: list[int]
    length: int


@dataclass(slots=True)
class Plan:
    """What one forward pass does: row i feeds `counts[i]` tokens of `rows[i]` from position `rows[i].fed` on.

    Rows of one token come first. `draws` are the requests that draw a token then, each with the row whose last token
    it draws after. The copies in `before` are made before the pass, those in `after` follow it.
    """

    rows: list[Request] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    draws: list[tuple[Request, int]] = field(default_factory=list)
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)


class Slots:
    """Admits waiting requests into slots and plans the passes.

    A session keeps its slot between calls, so that its next prompt only adds what is new. A prompt that another slot
    holds the beginning of copies that; equal prompts that arrive together are computed once. When slots run out, the
    session that was idle longest loses its own.
    """

    def __init__(self, count: int) -> None:
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        self.reused_tokens = 0  # prompt tokens that were in the cache already
        self.fed_tokens = 0  # prompt tokens that were computed
        self._slots = [Slot(i) for i in range(count)]
        self._free = list(range(count))  # a heap: low slots first keeps those in use together
        self._sessions: dict[str, Slot] = {}
        self._holders: dict[int, Slot] = {}  # by each link of the chain of what they hold
        self._clock = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        """How many slots no request is using now."""
        return sum(not slot.busy for slot in self._slots)

    def end_session(self, session: str) -> None:
        slot = self._sessions.pop(session, None)
        if slot is not None:
            slot.session = ""
            if not slot.busy:
                heapq.heappush(self._free, slot.index)

    def new_weights(self) -> None:
        """Nothing cached may serve another prompt; requests that have drawn tokens go on from what they have."""
        self._holders.clear()
        for slot in self._slots:
            slot.tokens, slot.chain = [], []
        for request in self.active:
            if len(request.tokens) > request.prompt_length:
                request.mixed = True
            else:
                request.fed = 0

    def plan(self) -> Plan:
        """The next pass; one without rows if there is nothing to do."""
        for request in [r for r in self.active if r.future.done()]:  # cancelled
            self.release(request, keep=False)
        plan = Plan()
        decoding = [r for r in self.active if len(r.tokens) - r.fed == 1]
        filling = [r for r in self.active if len(r.tokens) - r.fed > 1]
        if self._admission_is_due(len(decoding)):
            filling += self._admit(plan)
        feeds = [(request, 1) for request in decoding]
        followers = self._fill(filling, feeds, plan)
        feeds.sort(key=lambda feed: feed[1] > 1)
        plan.rows, plan.counts = [request for request, _ in feeds], [count for _, count in feeds]
        row_of = {id(request): row for row, request in enumerate(plan.rows)}
        plan.draws = [(r, i) for i, (r, n) in enumerate(feeds) if r.fed + n == len(r.tokens)]
        plan.draws += [(follower, row_of[id(leader)]) for follower, leader in followers]
        return plan

    def _fill(
        self, filling: list[Request], feeds: list[tuple[Request, int]], plan: Plan
    ) -> list[tuple[Request, Request]]:
        """Add to `feeds` what of the prompts fits; returns who copies an equal prompt instead, and from whom."""
        budget = MAX_PASS_TOKENS
        leaders: dict[tuple[int, ...], tuple[Request, Copy]] = {}
        followers = []
        for request in filling:
            assert request.slot is not None
            todo, prompt = len(request.tokens) - request.fed, tuple(request.tokens)
            if prompt in leaders:
                leader, copy = leaders[prompt]
                copy.targets.append(request.slot.index)
                followers.append((request, leader))
                self.reused_tokens += todo
                continue
            count = min(todo, budget)
            if count == 0:
                continue
            budget -= count
            self.fed_tokens += count
            feeds.append((request, count))
            if count == todo:
                leaders[prompt] = (request, Copy(request.slot.index, [], len(prompt)))
        plan.after = [copy for _, copy in leaders.values() if copy.targets]
        return followers

    def fed(self, plan: Plan) -> None:
        """The pass is done: what it fed is in the cache, and whole prompts may serve other requests."""
        for request, count in zip(plan.rows, plan.counts, strict=True):
            request.fed += count
        for request, _ in plan.draws:
            request.fed = len(request.tokens)
            slot = request.slot
            if slot is not None and request.fed == request.prompt_length:
                slot.tokens, slot.chain = list(request.tokens), request.chain
                self._holders.update(dict.fromkeys(slot.chain, slot))

    def release(self, request: Request, *, keep: bool) -> None:
        """`request` is over. With `keep`, its session keeps the slot and what is in it."""
        slot, request.slot = request.slot, None
        assert slot is not None
        self.active.remove(request)
        slot.busy = False
        if not keep and slot.session:
            del self._sessions[slot.session]
            slot.session = ""
        if keep and not request.mixed:
            slot.tokens = request.tokens[: request.fed]
        else:
            slot.tokens = []
        if not slot.session:
            heapq.heappush(self._free, slot.index)

    def _admission_is_due(self, decoding: int) -> bool:
        """Prefilling a few requests costs little less than many, so a few wait for more, for a few passes."""
        if not self.waiting:
            return False
        for request in self.waiting:
            request.waited += 1
        return len(self.waiting) * 8 >= decoding or self.waiting[0].waited > PATIENCE

    def _admit(self, plan: Plan) -> list[Request]:
        """Give slots to waiting requests: first to those whose session has one, then in order of arrival.

        One that shares a long beginning with another that is admitted now waits a pass, and copies it then.
        """
        admitted: list[Request] = []
        starting: dict[int, tuple[int, ...]] = {}  # links of the prompts that are fed now, and the prompts
        self.waiting = deque(r for r in self.waiting if not r.future.done())
        for own in (True, False):
            left: deque[Request] = deque()
            for request in self.waiting:
                request.chain = request.chain or _chain(request.tokens)
                waits = self._is_worth_waiting(request, starting)
                slot = None if waits else self._own_slot(request) if own else self._any_slot()
                if slot is None:
                    request.waited = PATIENCE if waits else request.waited
                    left.append(request)
                    continue
                self._seat(request, slot, plan)
                admitted.append(request)
                if request.fed + 1 < len(request.tokens):
                    starting.update(dict.fromkeys(request.chain, tuple(request.tokens)))
            self.waiting = left
        self.active += admitted
        return admitted

    def _is_worth_waiting(self, request: Request, starting: dict[int, tuple[int, ...]]) -> bool:
        shared = next((i for i in range(len(request.chain), 0, -1) if request.chain[i - 1] in starting), 0)
        if shared == 0 or starting[request.chain[shared - 1]] == tuple(request.tokens):
            return False  # equal prompts are fed once anyway
        own, holder = self._sessions.get(request.session), self._holder(request)
        held = max(_common(slot.tokens, request.tokens) for slot in (own, holder) if slot) if own or holder else 0
        return shared * BLOCK >= held + WORTH_WAITING

    def _own_slot(self, request: Request) -> Slot | None:
        slot = self._sessions.get(request.session)
        return slot if slot is not None and not slot.busy else None

    def _any_slot(self) -> Slot | None:
        if self._free:
            return self._slots[heapq.heappop(self._free)]
        idle = [slot for slot in self._sessions.values() if not slot.busy]
        if not idle:
            return None
        oldest = min(idle, key=lambda slot: slot.used)
        del self._sessions[oldest.session]
        return oldest

    def _seat(self, request: Request, slot: Slot, plan: Plan) -> None:
        """Seat `request`, with as much of its prompt as the slot, or another one, holds. One token is always left."""
        most = len(request.tokens) - 1
        held = min(_common(slot.tokens, request.tokens), most)
        holder = self._holder(request)
        if holder is not None and holder is not slot:
            elsewhere = min(_common(holder.tokens, request.tokens), most)
            if elsewhere >= held + BLOCK:
                plan.before.append(Copy(holder.index, [slot.index], elsewhere))
                held = elsewhere
        self._clock += 1
        for link in slot.chain:
            if self._holders.get(link) is slot:
                del self._holders[link]
        slot.tokens, slot.chain, slot.busy, slot.used = request.tokens[:held], [], True, self._clock
        if request.session and self._sessions.get(request.session) in (None, slot):
            slot.session = request.session
            self._sessions[request.session] = slot
        else:
            slot.session = ""  # nameless, or a second call of a session that is busy
        request.slot, request.fed = slot, held
        self.reused_tokens += held

    def _holder(self, request: Request) -> Slot | None:
        """A slot that holds the longest beginning of the prompt that is known."""
        return next((self._holders[link] for link in reversed(request.chain) if link in self._holders), None)


def _chain(tokens: list[int]) -> list[int]:
    """A hash for each whole block, of it and all before it. Whoever finds the same compares the tokens too."""
    chain, link = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        chain.append(link)
    return chain


def _common(held: list[int], prompt: list[int]) -> int:
    """How many tokens the two share from the start on."""
    shorter = min(len(held), len(prompt))
    if prompt[:shorter] == held[:shorter]:
        return shorter
    return next(i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b)
