"""Which request has which slot of the KV cache, and what of a prompt is there already."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field

from rollout.engine import Completion, Finish, Sampling

HEAD = 16  # prompts that share this many tokens may share their cache
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
    keys: list[tuple[int, ...]] = field(default_factory=list)


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
        self._holders: dict[tuple[int, ...], Slot] = {}  # by whole prompt and by its head
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
            slot.tokens, slot.keys = [], []
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
                slot.tokens = list(request.tokens)
                slot.keys = [tuple(slot.tokens), tuple(slot.tokens[:HEAD])]
                self._holders.update(dict.fromkeys(slot.keys, slot))

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
        """Give slots to waiting requests: first to those whose session has one, then in order of arrival."""
        admitted: list[Request] = []
        left: deque[Request] = deque()
        self.waiting = deque(r for r in self.waiting if not r.future.done())
        for own in (True, False):
            left.clear()
            for request in self.waiting:
                slot = self._own_slot(request) if own else self._any_slot()
                if slot is None:
                    left.append(request)
                else:
                    self._seat(request, slot, plan)
                    admitted.append(request)
            self.waiting = deque(left)
        self.active += admitted
        return admitted

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
            if elsewhere >= held + HEAD:
                plan.before.append(Copy(holder.index, [slot.index], elsewhere))
                held = elsewhere
        self._clock += 1
        for key in slot.keys:
            if self._holders.get(key) is slot:
                del self._holders[key]
        slot.tokens, slot.keys, slot.busy, slot.used = request.tokens[:held], [], True, self._clock
        if self._sessions.get(request.session) in (None, slot):
            slot.session = request.session
            self._sessions[request.session] = slot
        else:
            slot.session = ""  # a second call of a session that is busy
        request.slot, request.fed = slot, held
        self.reused_tokens += held

    def _holder(self, request: Request) -> Slot | None:
        whole, head = tuple(request.tokens), tuple(request.tokens[:HEAD])
        return self._holders.get(whole) or self._holders.get(head)


def _common(held: list[int], prompt: list[int]) -> int:
    """How many tokens the two share from the start on."""
    shorter = min(len(held), len(prompt))
    if prompt[:shorter] == held[:shorter]:
        return shorter
    return next(i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b)
