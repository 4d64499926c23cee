"""A model behind an OpenAI-compatible server, asked in messages instead of tokens. For evaluation: there is nothing
in an answer that could be trained on.

What may pass is asked again, with a growing pause, a bounded number of times: 429 and 5xx answers (after the time that
the server asks for), connections that are refused or cut, and answers that take too long. Each is counted. What asking
again cannot help (a wrong key, no such model) breaks the endpoint: every later request fails at once, and `check` says
why.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from envs.types import Message, ToolCall, ToolSpec
from rollout import tool_calls
from rollout.engine import EngineError, Finish, NoRoom, Sampling, WeightsError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
MAX_ANSWER_BYTES = 16 << 20
AGAIN = (408, 409, 425, 429)  # and every 5xx
NO_MONEY = "insufficient_quota"  # comes as a 429, and stays
TOO_LONG = ("context_length_exceeded", "maximum context length", "context window", "exceeds the context")


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of the server. Tokens are as it counts them, 0 where it does not."""

    message: Message
    finish: Finish
    prompt_tokens: int
    size: int

    def check(self) -> None:
        """Raise `EngineError` for an answer that is none."""
        if self.finish == "abort":
            raise EngineError("the server withheld the answer (its content filter)")


@dataclass(frozen=True, slots=True)
class _NoTemplate:
    stop_ids: tuple[int, ...] = ()


class MessageChat:
    """A conversation as messages; the counterpart of `rollout.chat.Chat`, without tokens."""

    template = _NoTemplate()

    def __init__(self, tools: tuple[ToolSpec, ...] = ()) -> None:
        self.tools = tuple(tools)
        self.messages: list[Message] = []

    def add(self, *messages: Message) -> None:
        self.messages += messages

    def prompt(self) -> dict[str, Any]:
        """The conversation so far and its tools, as a request's fields."""
        fields: dict[str, Any] = {"messages": [_as_json(message) for message in self.messages]}
        return fields | {"tools": [tool_calls.schema(tool) for tool in self.tools]} if self.tools else fields

    def reply(self, answer: Answer) -> Message:
        """Append what was answered; a call without an id, which its result must name, gets one."""
        count = sum(len(message.tool_calls) for message in self.messages)
        calls = tuple(
            call if call.id else msgspec.structs.replace(call, id=f"call{count + position:05d}")
            for position, call in enumerate(answer.message.tool_calls)
        )
        self.messages.append(msgspec.structs.replace(answer.message, tool_calls=calls))
        return self.messages[-1]

    def sequences(self) -> list[Any]:
        return []


@dataclass
class Endpoint:
    """The model `name` of the server at `base_url`; `key` is sent if it is not empty.

    `version` is what records carry as the weights' version. `counters` are of requests, and of retries by their cause.
    """

    base_url: str
    name: str
    key: str = ""
    timeout_s: float = 120.0
    retries: int = 6
    connections: int = 64
    version: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    _session: aiohttp.ClientSession | None = None
    _broken: str = ""
    _answered: bool = False
    _limit_name: str = "max_tokens"

    @property
    def longest_s(self) -> float:
        """The longest that one reply may take, all retries included."""
        return (self.retries + 1) * (self.timeout_s + LONGEST_PAUSE_S)

    async def start(self) -> None:
        """Raises `ValueError` for a key that cannot be sent."""
        if not self.key.isprintable():
            raise ValueError(f"the key for {self.base_url} holds a character that cannot be sent, such as a line break")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=self.connections),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
        )

    async def generate(self, prompt: dict[str, Any], sampling: Sampling, *, session: str) -> Answer:
        """One reply. Raises `EngineError`, and `NoRoom` for a conversation that is too long for the model."""
        pause_s = FIRST_PAUSE_S
        cause = ""
        attempt = 0
        while attempt <= self.retries:
            self.check()
            limit_name = self._limit_name
            if cause:
                self.counters[f"retry/{cause}"] += 1
            self.counters["requests"] += 1
            try:
                status, wait_s, body = await self._post(prompt, sampling, limit_name)
            except TimeoutError:
                cause, wait_s, told = "timeout", 0.0, f"no answer within {self.timeout_s:g} s"
            except aiohttp.InvalidURL as error:
                self._broken = f"{self.base_url!r} is not a URL"
                raise EngineError(self._broken) from error
            except (aiohttp.ClientError, OSError) as error:
                cause, told, wait_s = "connection", f"{type(error).__name__}: {error}", 0.0
            else:
                if status == 200 and (answer := _read(body)) is not None:
                    self._answered = True
                    return answer
                told = _told(body)
                if status == 200:
                    cause, told = "malformed", f"an answer that is no chat completion: {told}"
                elif (status in AGAIN or status >= 500) and NO_MONEY not in told:
                    cause = str(status)
                elif status == 400 and limit_name == "max_tokens" and "'max_completion_tokens' instead" in told:
                    self._limit_name = cause = "max_completion_tokens"  # the same request under its new name
                    continue
                else:
                    self._refused(status, told, first=len(prompt["messages"]) <= 2)
            attempt += 1
            if attempt <= self.retries:
                # Half of it at random, so that episodes that failed together do not come back together.
                await asyncio.sleep(max(wait_s, pause_s * random.uniform(0.5, 1.0)))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self.counters[f"given_up/{cause}"] += 1
        raise EngineError(f"{self.base_url}: {cause} {self.retries + 1} times in a row; last: {told}")

    def end_session(self, session: str) -> None:
        """Nothing is kept for an episode."""

    async def load(self, path: str, version: int) -> None:
        """Raises `WeightsError`: the weights are the server's."""
        raise WeightsError(f"{self.base_url} takes no weights")

    def check(self) -> None:
        """Raise `EngineError` if asking again cannot help."""
        if self._broken:
            raise EngineError(self._broken)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, prompt: dict[str, Any], sampling: Sampling, limit_name: str) -> tuple[int, float, bytes]:
        """(status, seconds to wait that the server asks for, body)."""
        assert self._session is not None, "start() comes first"
        body = prompt | {
            "model": self.name,
            "temperature": sampling.temperature,
            limit_name: sampling.max_tokens,
            "seed": sampling.seed % 2**31,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        async with self._session.post(f"{self.base_url.rstrip('/')}/chat/completions", json=body) as answer:
            data = bytearray()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"an answer of over {MAX_ANSWER_BYTES} bytes")
            return answer.status, _seconds(answer.headers.get("Retry-After", "")), bytes(data)

    def _refused(self, status: int, told: str, *, first: bool) -> None:
        """Raise for an answer that will not change: for this conversation only, or for all of them.

        Where already the `first` turn has no room for the reply that is asked for, the limits are wrong for this model.
        """
        if status in (400, 413, 422):
            too_long = any(words in told.lower() for words in TOO_LONG)
            if too_long and not (first and "max_" in told):
                raise NoRoom(told)
            if not too_long and self._answered:  # others were answered, so it is this conversation
                raise EngineError(f"{self.base_url} refused a request: {status} {told}")
        hints = {400: "lower --max-reply-tokens"} if "max_" in told else {}
        hints |= {401: "check the key", 403: "check the key", 404: "check --base-url and the model's name"}
        hint = f" ({hints[status]})" if status in hints else ""
        self._broken = f"{self.base_url} refuses model {self.name!r}: {status} {told}{hint}"
        raise EngineError(self._broken)


def _seconds(retry_after: str) -> float:
    """Seconds out of a Retry-After header; a date, which is rare, counts as none."""
    try:
        return min(max(0.0, float(retry_after)), LONGEST_PAUSE_S)
    except ValueError:
        return 0.0


def _told(body: bytes) -> str:
    """What the server says in an error, in one short line."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        error = found.get("error", found) if isinstance(found, dict) else found
        if isinstance(error, dict):
            text = " ".join(str(error[key]) for key in ("code", "message", "detail") if error.get(key))
    except ValueError:
        pass
    return " ".join(text.split())[:300] or "an empty answer"


def _read(body: bytes) -> Answer | None:
    """The reply in a chat completion; None for what is none."""
    try:
        found = json.loads(body)
        choice = found["choices"][0]
        said = choice["message"]
        content = said.get("content") or ""
        calls = tuple(_call(call) for call in said.get("tool_calls") or ())
        usage = found.get("usage") or {}
        counts = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
        reason = choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(content, str) or min(counts) < 0:
        return None
    finish: Finish = "length" if reason == "length" else "abort" if reason == "content_filter" else "stop"
    return Answer(Message("assistant", content, tool_calls=calls), finish, counts[0], counts[1])


def _call(call: dict[str, Any]) -> ToolCall:
    """A tool call; one whose arguments are not a JSON object is for the model to read about."""
    function = call["function"]
    name, written, id_ = str(function["name"]), function.get("arguments") or "{}", str(call.get("id") or "")
    try:
        arguments = json.loads(written) if isinstance(written, str) else written
        if not isinstance(arguments, dict):
            raise ValueError("the arguments are not a JSON object")
    except (ValueError, RecursionError) as error:
        return ToolCall(name, id=id_, error=f"not valid JSON: {error}")
    return ToolCall(name, arguments, id=id_)


def _as_json(message: Message) -> dict[str, Any]:
    """The message as the interface takes it."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id
    return turn
