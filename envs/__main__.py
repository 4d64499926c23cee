"""`python -m envs list`, `play ID` and `check ID`: look at environments from the terminal."""

from __future__ import annotations

import argparse
import asyncio
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import sandbox
from envs.actions import parse_action
from envs.check import check
from envs.registry import known_ids, load, make
from envs.scoring import Reward
from envs.splits import SPLITS
from envs.tool_env import ToolEnv
from envs.types import Message, Split, Status

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_ROLES = {"system": "magenta", "user": "cyan", "tool": "yellow", "assistant": "green"}


def list_environments(console: Console) -> int:
    table = Table(title="Environments", title_justify="left")
    for heading in ("id", "what", "tools", "rewards", "turns", "demonstrator"):
        table.add_column(heading)
    for env_id in known_ids():
        cls = load(env_id)
        table.add_row(
            env_id,
            (cls.__doc__ or "").strip().partition("\n")[0],
            ", ".join(cls._tools),
            ", ".join(_priced(each) for each in cls._rewards if each.component.weight),
            str(cls.max_turns),
            "yes" if cls.demonstrate is not ToolEnv.demonstrate else "no",
        )
    console.print(table)
    return 0


def _priced(reward: Reward) -> str:
    return f"{reward.component.name} × {reward.component.weight:g}"


async def check_environment(console: Console, env_id: str) -> int:
    findings = await check(env_id)
    await sandbox.close_shared()
    table = Table(title=f"Check of {env_id}", title_justify="left")
    for heading in ("check", "", "found", "to change"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        style = _STYLES[finding.verdict]
        verdict = f"[{style}]{finding.verdict}[/{style}]"
        table.add_row(finding.check, verdict, escape(finding.text), escape(finding.hint))
    console.print(table)
    return int(any(finding.verdict == "fail" for finding in findings))


async def play(console: Console, env_id: str, split: Split, index: int) -> int:
    """A person plays: sees what the model sees, and types what it would write."""
    env = make(env_id)
    try:
        first = await env.begin(split, index)
        console.print("Tools, to be called as in Python; other text is a reply without a call; Ctrl-D ends.")
        for tool in env.tools:
            arguments = ", ".join(tool.parameters["properties"])
            console.print(f"  [bold]{tool.name}({arguments})[/bold]  {escape(tool.description)}")
        _show(console, first)
        while env.status is Status.RUNNING:
            line = await asyncio.to_thread(_read_line, f"{env.seat}> ")
            if line is None:
                return 0
            _show(console, await env.act(parse_action(line, env.tools)) or env.closing)
        for seat in env.seats:
            env.seat = seat
            score, whose = await env.score(), f" of {seat}" if seat else ""
            console.print(f"[bold]{env.status}[/bold] after {env.num_turns} turns, reward{whose} {score.reward:.3f}")
            for name, value in score.components.items():
                console.print(f"  {name} {value:g}")
        if env.labels:
            console.print(f"  labels: {', '.join(env.labels)}")
    finally:
        await env.aclose()
        await sandbox.close_shared()
    return 0


def _show(console: Console, messages: list[Message]) -> None:
    for message in messages:
        style = _ROLES[message.role]
        name = f" {message.name}" if message.name else ""
        console.print(f"[{style}]{message.role}{escape(name)}:[/{style}] {escape(message.content)}")


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 where a check failed, 2 for an environment that cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m envs", description="Look at environments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the environments that are installed")
    checking = commands.add_parser("check", help="find an environment's faults before training on it")
    playing = commands.add_parser("play", help="play an environment yourself")
    for each in (checking, playing):
        each.add_argument("env", metavar="ID", help="NAME, NAME-vN, module:Class or file.py:Class, with ?key=value")
    playing.add_argument("--split", choices=SPLITS, default="train")
    playing.add_argument("--index", type=int, default=0, help="which task (default 0)")
    chosen = parser.parse_args(arguments)
    console = Console(soft_wrap=chosen.command == "play")
    try:
        match chosen.command:
            case "list":
                return list_environments(console)
            case "check":
                return asyncio.run(check_environment(console, chosen.env))
            case _:
                return asyncio.run(play(console, chosen.env, chosen.split, chosen.index))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
