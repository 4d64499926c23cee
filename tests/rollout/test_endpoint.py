"""An OpenAI-compatible server that misbehaves in every way it can: no episode is lost, and none waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter

import pytest
from aiohttp import web

from envs import Message, ToolCall
from envs.types import Status
from rollout import endpoint, episode
from rollout.endpoint import Endpoint, MessageChat
from rollout.engine import EngineError, Sampling
from rollout.episode import Budget, Stage, play_group
from tests.fakes import Dice, make_ticket

SAMPLING = Sampling(max_tokens=16, seed=5)


class Server:
    """A chat-completion server. `faults` maps the number of a request (from 0) to what happens instead of an answer."""

    def __init__(self, faults=lambda number: None, **answer) -> None:
        self.faults, self.answer = faults, answer
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        self.active = self.most_active = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        number = len(self.requests)
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(0.01)
            return await self._respond(request, self.faults(number), self.requests[number])
        finally:
            self.active -= 1

    async def _respond(self, request, fault, body) -> web.StreamResponse:
        if fault == "stall":
            await asyncio.sleep(30)
        if fault == "cut":
            request.transport.abort()
            return web.Response()
        if fault == "half":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            request.transport.abort()
            return response
        if fault == "nonsense":
            return web.Response(text="<html>not what was asked for</html>")
        if isinstance(fault, tuple):
            status, told = fault
            return web.json_response({"error": {"message": told}}, status=status, headers={"Retry-After": "0"})
        return web.json_response(self.answer or answer_of(body))

    @contextlib.asynccontextmanager
    async def serving(self, **options):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = Endpoint(f"http://127.0.0.1:{port}/v1", "some-model", **({"timeout_s": 1.0} | options))
        await client.start()
        try:
            yield client
        finally:
            await client.aclose()
            await runner.cleanup()


def answer_of(body: dict) -> dict:
    """Rolls the number of messages so far."""
    call = {
        "id": "",
        "type": "function",
        "function": {"name": "roll", "arguments": f'{{"n": {len(body["messages"])}}}'},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 4}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(episode, "_BACKOFF_S", 0.001)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_S", 0.01)


async def test_64_episodes_at_once_survive_a_server_that_fails_in_every_way():
    faults = {3: "stall", 10: "cut", 11: "half", 20: (429, "slow down"), 40: (500, "oops"), 41: (503, "busy")}
    faults |= {70: "nonsense", 71: (429, "slow down"), 72: "cut", 100: (502, "gateway"), 101: "stall"}
    server = Server(faults.get)
    async with server.serving() as client:
        stage = Stage(client, MessageChat)
        groups = await asyncio.gather(*(play_group(make_ticket(i, group_size=1), stage) for i in range(64)))
    episodes = [e for group in groups for e in group]
    assert [e.status for e in episodes] == [Status.TERMINATED] * 64
    # Rolls of 1, 3 and 5: the conversation grows by the reply and the tool's result.
    assert {e.reward for e in episodes} == {(1 + 3 + 5) / 3 / 255}
    assert {(e.prompt_tokens, e.sampled_tokens) for e in episodes} == {(90, 12)}
    assert {e.retries for e in episodes} == {0}
    assert server.most_active > 32
    retries = Counter({k.removeprefix("retry/"): n for k, n in client.counters.items() if k.startswith("retry/")})
    assert retries == {"timeout": 2, "connection": 3, "429": 2, "500": 1, "503": 1, "502": 1, "malformed": 1}
    assert client.counters["requests"] == 64 * 3 + len(faults) == len(server.requests)


async def test_retries_are_bounded_and_the_episode_is_errored_not_scored():
    server = Server(lambda number: (500, "for ever"))
    async with server.serving(retries=2) as client:
        stage = Stage(client, MessageChat, Budget(retries=1))
        (played,) = await play_group(make_ticket(group_size=1), stage)
    assert (played.status, played.reward) == (Status.ERRORED, None)
    assert "500 3 times in a row; last: for ever" in played.error
    assert len(server.requests) == 2 * 3


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "no such key"), (404, "no such model"), (400, "no such field"), (429, "insufficient_quota: pay")],
)
async def test_what_asking_again_cannot_help_ends_it_at_once(status, told):
    server = Server(lambda number: (status, told))
    async with server.serving(key="secret") as client:
        with pytest.raises(EngineError, match=f"refuses model 'some-model': {status} {told}"):
            await client.generate(MessageChat().prompt(), SAMPLING, session="")
        with pytest.raises(EngineError, match=told):
            client.check()
        with pytest.raises(EngineError, match=told):
            await client.generate(MessageChat().prompt(), SAMPLING, session="")
    assert server.keys == ["Bearer secret"]  # one request


async def test_a_conversation_that_is_too_long_is_truncated_and_one_that_is_refused_is_a_fault():
    told = {1: (400, "This model's maximum context length is 10 tokens"), 5: (400, "odd characters")}
    server = Server(told.get)
    async with server.serving() as client:
        stage = Stage(client, MessageChat, Budget(retries=0))
        (long,) = await play_group(make_ticket(group_size=1), stage)
        (sound,) = await play_group(make_ticket(group_size=1), stage)
        (refused,) = await play_group(make_ticket(group_size=1), stage)
        client.check()
    assert (long.status, long.counts["truncated_context"]) == (Status.TRUNCATED, 1)
    assert sound.status is Status.TERMINATED
    assert refused.status is Status.ERRORED
    assert "odd characters" in refused.error


async def test_the_request_holds_the_conversation_and_the_sampling():
    server = Server()
    chat = MessageChat(Dice().tools)
    chat.add(Message("user", "go"))
    async with server.serving() as client:
        sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, seed=2**40 + 3)
        first = chat.reply(await client.generate(chat.prompt(), sampling, session=""))
        chat.add(Message("tool", "rolled 1", name="roll", tool_call_id=first.tool_calls[0].id))
        second = chat.reply(await client.generate(chat.prompt(), sampling, session=""))
    sent = server.requests[1]
    assert first.tool_calls == (ToolCall("roll", {"n": 1}, "call00000"),)
    assert second.tool_calls[0].id == "call00001"
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["function"] == {"name": "roll", "arguments": '{"n": 1}'}
    assert sent["messages"][2] == {"role": "tool", "content": "rolled 1", "tool_call_id": "call00000"}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["roll"]
    assert {k: sent[k] for k in ("model", "temperature", "max_tokens", "top_p", "seed")} == {
        "model": "some-model",
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "seed": 2**40 % 2**31 + 3,
    }


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '"text"', "[" * 100_000])
def test_broken_arguments_are_for_the_model_to_read_about(arguments):
    call = {"id": "a", "function": {"name": "roll", "arguments": arguments}}
    body = {"choices": [{"message": {"content": "", "tool_calls": [call]}, "finish_reason": "stop"}]}
    answer = endpoint._read(json.dumps(body).encode())
    assert answer.message.tool_calls[0].error.startswith("not valid JSON")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 3}]}', b"\xff"])
def test_what_is_no_answer_is_none(body):
    assert endpoint._read(body) is None


async def test_a_server_that_knows_only_the_newer_name_of_the_limit():
    told = (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    server = Server(lambda number: told if number == 0 else None)
    async with server.serving() as client:
        await client.generate(MessageChat().prompt(), SAMPLING, session="")
    assert server.requests[1]["max_completion_tokens"] == 16
    assert "max_tokens" not in server.requests[1]


async def test_many_at_once_learn_the_newer_name_together():
    told = (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    server = Server(lambda number: told if "max_tokens" in server.requests[number] else None)
    async with server.serving(retries=0) as client:
        asked = (client.generate(MessageChat().prompt(), SAMPLING, session="") for _ in range(16))
        assert len(await asyncio.gather(*asked)) == 16


@pytest.mark.parametrize(
    "told",
    [
        "'max_tokens' is too large: 8192. This model's maximum context length is 4096 tokens",
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64",
    ],
)
async def test_limits_that_do_not_fit_the_model_are_nobodys_score(told):
    server = Server(lambda number: (400, told))
    async with server.serving() as client:
        (episode,) = await play_group(make_ticket(group_size=1), Stage(client, MessageChat, Budget(retries=0)))
        assert (episode.status, episode.reward) == (Status.ERRORED, None)
        with pytest.raises(EngineError, match="refuses model"):
            client.check()


async def test_a_key_that_cannot_be_sent_is_refused_at_the_start():
    with pytest.raises(ValueError, match="key.*line break"):
        await Endpoint("http://127.0.0.1:9/v1", "m", key="secret\n").start()


async def test_nobody_listens():
    client = Endpoint("http://127.0.0.1:9/v1", "m", retries=1)
    await client.start()
    with pytest.raises(EngineError, match="connection 2 times in a row"):
        await client.generate(MessageChat().prompt(), SAMPLING, session="")
    await client.aclose()
