"""`verifiers`: an environment written for the verifiers library (SingleTurnEnv, MultiTurnEnv, ToolEnv and kin).

The library plays it by its own loop, which asks a client for each reply. Here the client waits for the policy: what the
loop asks with is what the model reads, and what the model writes is the client's answer. Rows of its dataset are the
tasks, the environment's rubric is the reward. Refused: rubrics that score a group, completions without a chat, images,
and environments that rewrite the conversation, which is append-only here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from envs.registry import register
from envs.scoring import UNBOUNDED_METRIC, reward
from envs.splits import content_hash, split_of, task_rng
from envs.threads import in_thread
from envs.tool_env import InfrastructureError, ToolEnv
from envs.tools import foreign_tool
from envs.types import Message, Split, Task, ToolCall
from rewards.compose import Component, RewardError

ANSWER_TIMEOUT_S = 240.0
MAX_TURNS = 32  # of an environment that sets no limit itself
REWARD_RANGE = (-1000.0, 1000.0)
_NEEDED = "environments of the verifiers library need its version 0.2: pip install 'slipstream-rl[verifiers]'"
_TRUNCATED = {"timeout_reached": "time", "max_total_completion_tokens_reached": "tokens", "prompt_too_long": "context"}
_faults: ContextVar[list[str]] = ContextVar("faults")  # of the reward functions that a rubric is running


@register("verifiers-v0")
class Verifiers(ToolEnv):
    """Play the environment `env` of the verifiers library, made with `args`, a JSON object.

    `train` holds the rows of its dataset, `heldout` those of its evaluation dataset, or a quarter of the rows if it has
    none. The reward is its rubric's; the rubric's functions are metrics.
    """

    def __init__(self, env: str, args: str = "{}") -> None:
        self.inner, self.rows = _load(env, args)
        limit = getattr(self.inner, "max_turns", -1)
        self.max_turns = limit if limit and limit > 0 else MAX_TURNS
        self.name = env
        self.metrics: dict[str, float] = {}

    def make_task(self, split: Split, index: int) -> Task:
        """Rows in an order that is shuffled once; after the last comes the first."""
        task_rng(self.name, self.version, split, index)  # raises for a wrong split or index
        rows = self.rows[split]
        row = rows[index % len(rows)]
        return Task(self.env_id or self.registered_id, split, index, str(row.get("task") or ""), row)

    def task_key(self, payload: dict[str, Any]) -> Any:
        return _row_key(payload)

    async def start(self, task: dict[str, Any]) -> list[Message]:
        self._loop = _Loop(self.inner, task)
        self.metrics = {}
        asked = await self._loop.next(None)
        if asked is None:
            raise InfrastructureError(f"{self.name}: the episode is over before the first reply")
        self.add_tools(*(foreign_tool(t.name, t.description, t.parameters, _never, 1.0) for t in self._loop.tools))
        return asked

    async def stop(self) -> None:
        await self._loop.aclose()

    async def _respond(self, message: Message) -> list[Message]:
        """The library runs the tools that `message` calls, all at once."""
        self.num_calls += len(message.tool_calls)
        asked = await self._loop.next(message)
        if asked is not None:
            return asked
        condition = self._loop.state.get("stop_condition") or ""
        if condition == "max_turns_reached" and self.num_turns > 1:
            self.truncate("turns")
        elif condition in _TRUNCATED:
            self.truncate(_TRUNCATED[condition])
        self.finish()
        return self._loop.said_last()

    @property
    def components(self) -> tuple[Component, ...]:
        return (*super().components, *(Component(name, 0.0, UNBOUNDED_METRIC) for name in self.metrics))

    async def values(self) -> dict[str, float]:
        values = await super().values()
        return values | {each.name: each.check(self.metrics[each.name]) for each in self.components[1:]}

    @reward(weight=1.0, range=REWARD_RANGE, name="reward")
    async def of_rubric(self) -> float:
        """What the rubric gives. Without a whole reply it is not asked."""
        state = await self._loop.finished()
        if not state["trajectory"]:
            return 0.0
        faults: list[str] = []
        _faults.set(faults)
        await self.inner.rubric.score_rollout(state)
        if faults:  # which the rubric counts as 0
            raise RewardError(f"a reward function of {self.name!r} raised {faults[0]}")
        self.metrics = {name: float(value) for name, value in (state["metrics"] or {}).items() if name != "reward"}
        return float(state["reward"])


async def _never(**arguments: Any) -> str:
    raise AssertionError("the library runs its tools itself")


@lru_cache(maxsize=8)  # an environment holds datasets, and serves any number of episodes
def _load(env: str, args: str) -> tuple[Any, dict[Split, list[dict[str, Any]]]]:
    """The library's environment, and its rows by split. Raises `ValueError` for one that cannot be played."""
    try:
        import verifiers
    except ImportError as error:
        raise ValueError(_NEEDED) from error
    if not hasattr(verifiers, "load_environment"):
        raise ValueError(f"{_NEEDED}; {verifiers.__version__} plays through harnesses with clients of their own")
    try:
        arguments = json.loads(args)
        with _own_signals():
            inner = verifiers.load_environment(env, **arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"verifiers environment {env!r} with args={args}: {error}") from error
    refusals = (
        (not isinstance(inner, verifiers.MultiTurnEnv), f"is a {type(inner).__name__}, not a MultiTurnEnv"),
        (getattr(inner, "message_type", "chat") != "chat", "completes text, where only chats are played"),
        (any(map(inner.rubric._is_group_func, inner.rubric._get_reward_funcs())), "scores groups by its rubric"),
    )
    for refused, why in refusals:
        if refused:
            raise ValueError(f"verifiers environment {env!r} cannot be played: it {why}")
    for rubric in _rubrics(inner.rubric):
        rubric.funcs = [_guarded(function) for function in rubric.funcs]
    if tools := getattr(inner, "tool_map", None):
        inner.tool_map = {name: _threaded(function) for name, function in tools.items()}
    return inner, _split(env, inner)


@contextmanager
def _own_signals() -> Iterator[None]:
    """The library takes over SIGINT and SIGTERM, by which runs are ended in order: give them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _rubrics(rubric: Any) -> Iterable[Any]:
    yield rubric
    for each in getattr(rubric, "rubrics", ()):
        yield from _rubrics(each)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, noting what it raises, or that it gives no number: the rubric would make it a 0."""
    threaded = _threaded(function)

    @functools.wraps(function)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return float(await threaded(*arguments, **named))
        except Exception as error:  # the boundary to the author's code, which fails the episode
            name = getattr(function, "__name__", "a function")
            _faults.get([]).append(f"{name}: {type(error).__name__}: {error}")
            raise

    return call


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which the library would run on the event loop, in a thread if it blocks."""

    @functools.wraps(function)
    async def call(*arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        value = await in_thread(functools.partial(function, *arguments), **named)
        return await value if inspect.isawaitable(value) else value

    return call


def _split(env: str, inner: Any) -> dict[Split, list[dict[str, Any]]]:
    held = inner.build_eval_dataset()
    rows = inner.build_dataset()
    if rows is None:
        raise ValueError(f"verifiers environment {env!r} has no training rows")
    training = rows.to_list()
    heldout = [row for row in training if split_of(_row_key(row)) == "heldout"] if held is None else held.to_list()
    keys = {content_hash(_row_key(row)) for row in heldout}
    split: dict[Split, list[dict[str, Any]]] = {
        "train": [row for row in training if content_hash(_row_key(row)) not in keys],
        "heldout": heldout,
    }
    for name, chosen in split.items():
        if not chosen:
            raise ValueError(f"verifiers environment {env!r} has no rows for split {name!r}")
        task_rng(env, 0, name, 0).shuffle(chosen)
    return split


def _row_key(row: dict[str, Any]) -> Any:
    return [[[turn["role"], _text(turn["content"])] for turn in row["prompt"]], str(row.get("answer", ""))]


class _Loop:
    """The library's loop over one row, in a task, and the client that it asks for replies."""

    def __init__(self, inner: Any, row: dict[str, Any]) -> None:
        from verifiers.clients import Client

        Client.register(_Loop)  # it is one by what it does
        self._inner = inner
        self._asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[Message] = asyncio.Queue()
        self._known: list[Any] = []  # the conversation so far, as the library's messages
        self._names: dict[str, str] = {}  # of tools, by the id of the call
        self.tools: list[Any] = []
        self.state: Any = None
        self._task = asyncio.create_task(inner.rollout(row, self, "policy", {}))

    async def next(self, reply: Message | None) -> list[Message] | None:
        """Hand over the model's reply; returns the messages that it reads next, None where the episode is over.

        Raises `InfrastructureError` for an error of the environment, and for what cannot be played.
        """
        if reply is not None:
            self._replies.put_nowait(reply)
        asking = asyncio.create_task(self._asked.get())
        try:
            await asyncio.wait({asking, self._task}, timeout=ANSWER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return self._new_of(asking.result())
        finally:
            asking.cancel()
        if not self._task.done():
            raise InfrastructureError(f"{self._name}: silent for {ANSWER_TIMEOUT_S:g} s")
        try:
            self.state = self._task.result()
        except Exception as error:  # the boundary to the environment's author
            raise InfrastructureError(f"{self._name}: {type(error).__name__}: {error}") from error
        if (fault := self.state.get("error")) and not _is_the_models(fault):
            raise InfrastructureError(f"{self._name}: {type(fault).__name__}: {fault.__cause__ or fault}")
        return None

    @property
    def _name(self) -> str:
        return f"verifiers environment {self._inner.env_id!r}"

    def _new_of(self, prompt: list[Any]) -> list[Message]:
        """What `prompt` adds to the conversation so far."""
        head, new = prompt[: len(self._known)], prompt[len(self._known) :]
        if [_plain(each) for each in head] != [_plain(each) for each in self._known]:
            raise InfrastructureError(f"{self._name} rewrites its conversation, which is append-only here")
        self._known = prompt
        return [self._message(each) for each in new]

    def _message(self, given: Any) -> Message:
        calls = getattr(given, "tool_calls", None) or ()
        read = tuple(ToolCall(each.name, json.loads(each.arguments), id=each.id) for each in calls)
        answered = getattr(given, "tool_call_id", "")
        return Message(given.role, _text(given.content), self._names.get(answered, ""), read, answered)

    async def get_response(
        self, prompt: list[Any], model: str, sampling_args: Any, tools: Any = None, **more: Any
    ) -> Any:
        """What the library's loop calls for a reply: a Response."""
        from verifiers import types

        self.state, self.tools = more["state"], list(tools or ())
        self._asked.put_nowait(list(prompt))
        reply = await self._replies.get()
        calls = []
        for call in reply.tool_calls if self.tools else ():
            call_id = call.id or f"call_{len(self._names)}"
            self._names[call_id] = call.name
            arguments = call.error if call.error else json.dumps(call.arguments)  # no JSON where it could not be read
            calls.append(types.ToolCall(id=call_id, name=call.name, arguments=arguments))
        message = types.ResponseMessage(
            content=reply.content,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        self._known = [*prompt, types.AssistantMessage(content=reply.content, tool_calls=calls or None)]
        return types.Response(id="", created=int(time.time()), model=model, message=message)

    async def close(self) -> None:
        """The library's clients have it."""

    def said_last(self) -> list[Message]:
        """What the environment said when it ended the episode."""
        last = self.state.get("final_env_response") or []
        if isinstance(last, str):
            return [Message("user", last)]
        from verifiers.utils.message_utils import normalize_messages

        return [self._message(each) for each in normalize_messages(last, field_name="final_env_response")]

    async def finished(self) -> Any:
        """The state, with the completion that a rubric reads; an episode that was truncated here ends by that."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=ANSWER_TIMEOUT_S)
        return self.state

    async def aclose(self) -> None:
        await self.finished()
        if self.state is not None:
            await self._inner.rubric.cleanup(self.state)


def _is_the_models(fault: BaseException) -> bool:
    """Whether an error is of a call that the model made, by which the episode ends and is scored."""
    from verifiers import InfraError, ToolError

    return isinstance(fault, ToolError) and not isinstance(fault.__cause__, InfraError)


def _plain(message: Any) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude_none=True)


def _text(content: Any) -> str:
    """The text of a message, which may be in parts. Raises `InfrastructureError` for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise InfrastructureError("a message has parts that are no text: images are not played")
    return "".join(part["text"] for part in parts)
