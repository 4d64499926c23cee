"""`ToolEnv`: a multi-turn text environment in which the model acts by calling tools.

What the *model* does wrong (a wrong name, wrong arguments, a tool that raises or takes too long) becomes a message that
the model reads, prefixed `format_error:`, `tool_error:` or `timeout:`, and is counted in `counts`. A fault of the
*infrastructure* (`SandboxError`, `InfrastructureError`) propagates; the episode is then errored, and never scored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import gymnasium
import msgspec
import numpy as np

from envs.actions import MAX_ACTION_CHARS, parse_action
from envs.scoring import Reward, collect_rewards, measure
from envs.spaces import Unicode
from envs.splits import content_hash, sample_in_split, task_rng
from envs.threads import Portal, in_thread
from envs.tools import DEFAULT_TIMEOUT_S, Tool, collect_tools, function_tool, result_text
from envs.types import Message, Split, Status, Task, ToolCall, ToolSpec
from rewards.compose import Component, RewardError, Score, compose
from sandbox import pool
from sandbox.protocol import SandboxError

MAX_CALLS_PER_REPLY = 16
MAX_OBSERVATION_CHARS = 1_000_000
START_TIMEOUT_S = 120.0
SYNC_CALL_TIMEOUT_S = 600.0
T = TypeVar("T")
_KEPT = ("task", "counts", "step_scores", "closing", "num_turns", "num_calls")


class InfrastructureError(RuntimeError):
    """Something the environment relies on failed, through no fault of the model: the episode is errored and retried."""


class FormatError(ValueError):
    """The model asked for something that cannot be done as asked. Raised in a tool: the model reads why."""


class ToolEnv(gymnasium.Env[str, str]):
    """Base of all environments. An author writes `sample_task`, `start`, and methods marked `@tool` and `@reward`.

    One object plays one episode at a time: `begin`, `act` until `status` is not running, `score`, `aclose`; `begin`
    again starts the next. Every attribute that an episode changes must be set in `start`.
    """

    max_turns: int = 8
    seats: tuple[str, ...] = ("",)  # who plays; each has a conversation, a reward and a baseline of its own
    seat: str = ""  # whose turn it is; while an episode is scored, whose reward is asked for
    system_prompt: str = ""
    version: ClassVar[int] = 0
    registered_id: ClassVar[str] = ""
    _tools: dict[str, Tool]  # of the class; an instance that adds some has its own
    _rewards: ClassVar[tuple[Reward, ...]] = ()

    env_id: str = ""  # the text that `envs.make` was given: what another process needs to make the same environment
    scripted: bool = True  # whether `demonstrate` and `expert`, where they are defined, can play this instance's tasks
    isolation: str = ""  # how programs of this episode are isolated, where it runs any
    status: Status = Status.RUNNING
    task: Task
    _labels: list[str]
    _lasting: dict[str, Tool] | None = None  # `_tools` without those that the episode added
    _held: AsyncExitStack  # of this episode
    _open: bool = False
    _paid: float = 0.0  # what `step` has given out of the score so far

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._tools = collect_tools(cls)
        cls._rewards = collect_rewards(cls)
        methods = {str(tool.run) for tool in cls._tools.values()} | {reward.method for reward in cls._rewards}
        if taken := sorted(name for name in methods if hasattr(ToolEnv, name)):
            raise TypeError(
                f"{cls.__name__}.{taken[0]} is a method of ToolEnv: rename yours, and mark it name={taken[0]!r}"
            )

    # What an author writes

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        """One task as JSON-like data, drawn from `rng` and nothing else. `kind`, if present, groups the results."""
        raise NotImplementedError(f"{type(self).__name__} must define sample_task(self, rng)")

    def task_key(self, payload: dict[str, Any]) -> Any:
        """What makes two tasks the same, for keeping train and held-out tasks apart. All of the payload by default."""
        return payload

    async def start(self, task: dict[str, Any]) -> str | list[Message] | dict[str, str | list[Message]]:
        """Set up an episode of `task`; returns the first user message (or messages), of several seats by seat."""
        raise NotImplementedError(f"{type(self).__name__} must define start(self, task)")

    async def stop(self) -> None:
        """Release what `start` and the tools opened. Runs once an episode, however it ended."""

    async def on_text(self, text: str) -> str:
        """The user message that answers a reply without a tool call."""
        raise FormatError(f"call a tool: {', '.join(tool.name for tool in self.tools)}")

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """The next message of a scripted, imperfect demonstrator; draws from `rng` only."""
        raise NotImplementedError(f"{type(self).__name__} has no demonstrator")

    async def expert(self, rng: np.random.Generator) -> Message:
        """The next message of a scripted policy that knows the task's solution: the ceiling of what can be earned."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    # What an author calls

    def finish(self, text: str = "") -> str:
        """End the episode: terminated. Returns `text`, the tool's last result."""
        if self.status is Status.RUNNING:
            self.status = Status.TERMINATED
        return text

    def label(self, name: str) -> None:
        """Name an attack or an oddity that this episode showed; transcripts carry it."""
        if name not in self._labels:
            self._labels.append(name)

    def add_tools(self, *tools: Tool | Callable[..., Any]) -> None:
        """Let the model call these too: functions with type hints, or what `envs.mcp.mcp_tools` returns.

        Called in `__init__`, for good; in `start`, for the episode. Raises `TypeError` for a name that is taken and
        for a function that cannot be a tool.
        """
        for each in tools:
            made = each if isinstance(each, Tool) else function_tool(each)
            if made.spec.name in self._tools:
                raise TypeError(f"{type(self).__name__} has two tools called {made.spec.name!r}")
            self._tools = {**self._tools, made.spec.name: made}

    async def hold(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Open `resource`, which is closed when the episode ends, however it ends; in `start` and in tools."""
        return await self._held.enter_async_context(resource)

    def tell(self, seat: str, text: str) -> None:
        """Give another seat a user message, which it reads before its next turn."""
        self.unread[seat].append(Message("user", result_text(text)))

    def hand_over(self, seat: str) -> None:
        """Let `seat` move next, once this turn's reply is done; it must have been told something."""
        self._next_seat = seat

    # What a runner calls

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def components(self) -> tuple[Component, ...]:
        return tuple(each.component for each in self._rewards)

    @property
    def kind(self) -> str:
        return self.task.kind

    @property
    def num_moves(self) -> int:
        """Turns, or calls where replies hold several: what an effort should be measured in."""
        return max(self.num_turns, self.num_calls)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._labels)

    @property
    def has_demonstrator(self) -> bool:
        return self.scripted and type(self).demonstrate is not ToolEnv.demonstrate

    @property
    def has_expert(self) -> bool:
        return self.scripted and type(self).expert is not ToolEnv.expert

    def make_task(self, split: Split, index: int) -> Task:
        """Task `index` of `split`: the same one in every process. Raises `ValueError` for what is not JSON-like."""
        name = self.registered_id or type(self).__qualname__
        rng = task_rng(name, self.version, split, index)
        payload = sample_in_split(self.sample_task, self.task_key, rng, split)
        return Task(self.env_id or name, split, index, str(payload.get("kind", "")), payload)

    def task_hash(self, task: Task) -> str:
        """Identifies a task's content; never shared by a training and a held-out task."""
        return content_hash(self.task_key(task.payload)).hex()

    async def begin(self, split: Split = "train", index: int = 0) -> list[Message]:
        """Start an episode of one task and return the first messages of the seat that moves first.

        Ends the episode before it, if there was one.
        """
        await self.aclose()
        self.task = self.make_task(split, index)
        self.status, self.num_turns, self.num_calls = Status.RUNNING, 0, 0
        self.counts: Counter[str] = Counter()
        self.step_scores: list[dict[str, float]] = []
        self._step_seats: list[str] = []
        self.seat = self._next_seat = self.seats[0]
        self.closing: list[Message] = []
        self._labels = []
        self.isolation = ""
        self._tools = self._lasting = self._tools if self._lasting is None else self._lasting
        self._held = AsyncExitStack()
        self._open = True
        kept = {name: getattr(self, name) for name in _KEPT}
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                first = await self.start(self.task.payload)
        except TimeoutError as error:
            raise InfrastructureError(f"{type(self).__name__}.start took longer than {START_TIMEOUT_S:g} s") from error
        if replaced := [name for name in _KEPT if getattr(self, name) is not kept[name]]:
            raise TypeError(f"{type(self).__name__}.start sets self.{replaced[0]}, which ToolEnv keeps itself")
        by_seat = first if isinstance(first, dict) else {self.seats[0]: first}
        if by_seat.keys() != set(self.seats):
            raise TypeError(f"{type(self).__name__}.start must return the first message of each of {self.seats}")
        self.unread: dict[str, list[Message]] = {seat: self._opening(given) for seat, given in by_seat.items()}
        return self._read()

    def _opening(self, first: str | list[Message]) -> list[Message]:
        messages = [Message("user", first)] if isinstance(first, str) else list(first)
        return [Message("system", self.system_prompt), *messages] if self.system_prompt else messages

    def _read(self) -> list[Message]:
        """What the seat that moves has not read yet."""
        messages, self.unread[self.seat] = self.unread[self.seat], []
        return messages

    async def act(self, message: Message) -> list[Message]:
        """Do what the model's `message` asks for, one tool call after the other.

        Returns the messages that the model reads next (as the seat whose turn it then is), [] once the episode is over
        (what the last tools said is then in `closing`, and of every seat in `unread`). Raises only faults of the
        infrastructure and `RewardError`.
        """
        if self.status is not Status.RUNNING:
            raise ValueError(f"the episode is over ({self.status}): begin another one")
        pool.episode.set(id(self))  # one party in the queue for the sandbox, whatever tasks its tools run in
        self.num_turns += 1
        self.unread[self.seat] += await self._respond(message)
        self.step_scores.append(await self._measure("step"))
        self._step_seats.append(self.seat)
        if self.status is Status.RUNNING and self.num_turns >= self.max_turns:
            self.truncate("turns")
        if self.status is Status.RUNNING:
            self.seat = self._next_seat
            return self._read()
        self.closing = self.unread[self.seat]
        return []

    def truncate(self, reason: str) -> None:
        """End the episode because a budget ran out: "turns", "tokens", "time" or "context"."""
        if self.status is Status.RUNNING:
            self.status = Status.TRUNCATED
            self.counts[f"truncated_{reason}"] += 1

    async def score(self) -> Score:
        """What the episode earned (for `seat`), without the rewards of its group. Raises `RewardError`."""
        values = await self.values()  # first: an environment may only then know what its components are
        return compose(self.components, values)

    async def values(self) -> dict[str, float]:
        """The components' values but those of scope "group". Raises `RewardError`."""
        if self.status not in (Status.TERMINATED, Status.TRUNCATED):
            raise RewardError(f"an episode that is {self.status} has no score")
        values = await self._measure("episode")
        for component in self.components:
            if component.scope == "step":
                steps = zip(self.step_scores, self._step_seats, strict=True)
                values[component.name] = sum(step[component.name] for step, seat in steps if seat == self.seat)
        return values

    async def aclose(self) -> None:
        """End the episode and release what it holds. May be called twice."""
        if self._open:
            self._open = False
            async with self._held:
                await self.stop()

    # The synchronous face: Gymnasium's. Its coroutines run on an event loop in another thread.

    @cached_property
    def observation_space(self) -> Unicode:  # type: ignore[override]
        return Unicode(MAX_OBSERVATION_CHARS)

    @cached_property
    def action_space(self) -> Unicode:  # type: ignore[override]
        return Unicode(MAX_ACTION_CHARS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the observation is the text of its first messages.

        `options` may hold "split" and "index"; without an index, one is drawn from `seed`. Raises `ValueError` for an
        option of another name, and for an environment with several seats: Gymnasium's have one player.
        """
        if len(self.seats) > 1:
            raise ValueError(f"{type(self).__name__} has the seats {', '.join(self.seats)}: Gymnasium plays one only")
        super().reset(seed=seed)
        chosen = dict(options or {})
        index = int(chosen.pop("index", self.np_random.integers(2**31)))
        split = chosen.pop("split", "train")
        if chosen:
            raise ValueError(f"unknown reset options: {', '.join(map(str, chosen))} (there are: split, index)")
        self._paid = 0.0
        messages = Portal.shared().run(self.begin(split, index), SYNC_CALL_TIMEOUT_S)
        return _observation(messages), {"split": split, "index": index}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one reply: `tool(argument, ...)`, a JSON object with "name" and "arguments", or plain text.

        The rewards of all steps add up to the episode's score, rewards of scope "group" apart.
        """
        return Portal.shared().run(self._step(action), SYNC_CALL_TIMEOUT_S)

    def close(self) -> None:
        """Release what the episode holds. May be called twice."""
        if self._open:
            Portal.shared().run(self.aclose(), SYNC_CALL_TIMEOUT_S)

    async def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        messages = await self.act(parse_action(action, self.tools))
        info: dict[str, Any] = {"status": str(self.status), "labels": self.labels}
        weights = {component.name: component.weight for component in self.components}
        earned = sum(weights[name] * value for name, value in self.step_scores[-1].items())
        if self.status is not Status.RUNNING:
            score = await self.score()
            earned, info["components"], messages = score.reward - self._paid, score.components, self.closing
        self._paid += earned
        ended, cut = self.status is Status.TERMINATED, self.status is Status.TRUNCATED
        return _observation(messages), float(earned), ended, cut, info

    async def _measure(self, scope: str) -> dict[str, float]:
        return {
            each.component.name: await measure(each.component, getattr(self, each.method))
            for each in self._rewards
            if each.component.scope == scope
        }

    async def _respond(self, message: Message) -> list[Message]:
        """Run the calls of `message`, or `on_text` where there are none."""
        replies: list[Message] = []
        for position, each in enumerate(message.tool_calls):
            if self.status is not Status.RUNNING:
                break
            if self._next_seat == self.seat:
                text = await self._call(each, position)
            else:
                text = self._fault("format_error", "your turn is over")
            replies.append(Message("tool", text, name=each.name[:64], tool_call_id=each.id))
        if not message.tool_calls:
            text = await self._answer(self.on_text(message.content), DEFAULT_TIMEOUT_S, "on_text")
            replies.append(Message("user", text))
        return replies

    async def _call(self, call: ToolCall, position: int) -> str:
        """Run one tool call and return what the model reads."""
        self.num_calls += 1
        try:
            tool, arguments = self._admit(call, position)
        except FormatError as error:
            return self._fault("format_error", str(error))
        method = getattr(self, tool.run) if isinstance(tool.run, str) else tool.run
        running = method(**arguments) if tool.is_async else in_thread(method, **arguments)
        return await self._answer(running, tool.timeout_s, call.name)

    async def _answer(self, running: Awaitable[Any], timeout_s: float, what: str) -> str:
        """Await the author's code and return its text, or what went wrong as the model reads it."""
        try:
            async with asyncio.timeout(timeout_s):
                result = await running
        except (SandboxError, InfrastructureError):
            raise
        except FormatError as error:
            return self._fault("format_error", str(error))
        except TimeoutError as error:
            return self._fault("timeout", str(error) or f"{what} took longer than {timeout_s:g} s")
        except Exception as error:  # the boundary to the author's code; counted, and told to the model
            return self._fault("tool_error", f"{type(error).__name__}: {error}")
        self.counts["ok"] += 1
        return result_text(result)

    def _admit(self, call: ToolCall, position: int) -> tuple[Tool, dict[str, Any]]:
        """The tool that `call` asks for and its checked arguments. Raises `FormatError`."""
        if call.error:
            raise FormatError(call.error)
        if position >= MAX_CALLS_PER_REPLY:
            raise FormatError(f"more than {MAX_CALLS_PER_REPLY} calls in one reply")
        tool = self._tools.get(call.name)
        if tool is None:
            if hasattr(type(self), call.name):  # a method that is no tool: close, reset, a private one
                self.label("called_a_method_that_is_no_tool")
            raise FormatError(f"no tool {call.name[:64]!r}, call one of: {', '.join(self._tools)}")
        try:
            return tool, tool.bind(call.arguments)
        except (msgspec.ValidationError, RecursionError) as error:
            raise FormatError(str(error)) from error

    def _fault(self, kind: str, text: str) -> str:
        self.counts[kind] += 1
        return result_text(f"{kind}: {text}")


def _observation(messages: list[Message]) -> str:
    return "\n".join(message.content for message in messages)
