"""Demonstrations: played by an environment's scripted demonstrator, kept as JSONL, turned into tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

import envs
import sandbox
from envs.types import Message, Status, ToolSpec
from rollout import tool_calls, wire
from rollout.chat import Chat
from rollout.engine import Completion
from rollout.template import ChatTemplate

AT_ONCE = 32  # episodes played concurrently


class Demo(msgspec.Struct):
    """One demonstration: the conversation, its environment, and the tools that it had (none: the environment's own)."""

    env: str
    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()


def play(env: str, episodes: int, seed: int, report: Callable[[int], None] = lambda done: None) -> list[Demo]:
    """Play `episodes` training tasks with the demonstrators of the mix `env`; `report` is told how many are done.

    Positions count down from 2^31 - 1, so that they are not those which training then starts with. Raises `ValueError`
    for an environment without a demonstrator.
    """
    mix = envs.mix(env)
    for name in mix.names:
        if not envs.make(name).has_demonstrator:
            raise ValueError(
                f"environment {name!r} has no demonstrator to imitate: give demonstrations with --demos FILE, or start "
                "from a trained model with --model"
            )

    async def run() -> list[Demo]:
        gate = asyncio.Semaphore(AT_ONCE)
        done = 0

        async def one(number: int) -> list[Demo]:
            nonlocal done
            async with gate:
                seen = await _play_one(mix.pick(number), 2**31 - 1 - number, [seed, number])
            done += 1
            report(done)
            return seen

        try:
            return [demo for seen in await asyncio.gather(*(one(i) for i in range(episodes))) for demo in seen]
        finally:
            await sandbox.close_shared()

    return asyncio.run(run())


async def _play_one(name: str, index: int, seed: list[int]) -> list[Demo]:
    """The conversation of every seat that said something."""
    env = envs.make(name)
    draw = np.random.default_rng(seed)
    seen: dict[str, list[Message]] = {seat: [] for seat in env.seats}
    spoke = set()
    try:
        read = await env.begin("train", index)
        while env.status is Status.RUNNING:
            reply = await env.demonstrate(draw)
            seen[env.seat] += [*read, reply]
            spoke.add(env.seat)
            read = await env.act(reply)
    finally:
        await env.aclose()
    return [Demo(name, messages, env.tools) for seat, messages in seen.items() if seat in spoke]


def read(path: Path) -> list[Demo]:
    """Raises `ValueError` naming the file and the line."""
    decoder = msgspec.json.Decoder(Demo)
    played = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"cannot read demonstrations from {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            played.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}:{number}: not a demonstration: {error}") from error
    if not played:
        raise ValueError(f"{path} holds no demonstrations")
    return played


def write(path: Path, played: Sequence[Demo]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(demo) + b"\n" for demo in played))


def tools_of(played: Sequence[Demo]) -> dict[str, tuple[ToolSpec, ...]]:
    """By environment: those that it had when it was played, for an episode may add some."""
    known = {demo.env: demo.tools for demo in played}
    return {name: tools or envs.make(name).tools for name, tools in known.items()}


def text_of(message: Message, tool_format: tool_calls.Format, tools: tuple[ToolSpec, ...]) -> str:
    """An assistant message as the model would have written it, calls included."""
    calls = tool_calls.render(tool_format, message.tool_calls, tools) if message.tool_calls else ""
    return f"{message.content}{calls}"


def sequences_of(
    template: ChatTemplate, messages: Sequence[Message], tools: tuple[ToolSpec, ...]
) -> list[wire.Sequence]:
    """A demonstration as token sequences, recorded as if the demonstrator's replies had been sampled.

    Raises `ValueError` where the tokenizer does not give a reply's text back: what it cannot write cannot be imitated.
    """
    chat = Chat(template, tools)
    end = template.stop_ids[0] if template.end_of_turn is None else template.end_of_turn
    for message in messages:
        if message.role != "assistant":
            chat.add(message)
            continue
        text = text_of(message, template.tool_format, tools)
        chat.prompt()
        ids = [*template.encode(text, first=False), end]
        said = chat.reply(Completion(ids, [0.0] * len(ids), [0] * len(ids), "stop"))
        if said.content != text:
            raise ValueError(f"the tokenizer does not round-trip: {text!r} became {said.content!r}")
    return chat.sequences()
