"""`python -m envs check`: what an author wants to know of an environment before training on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np
from gymnasium.utils.env_checker import check_env

from envs.policies import Policy, attacks, random_policy
from envs.registry import make
from envs.tool_env import InfrastructureError, ToolEnv
from envs.types import Split, Status
from rewards.compose import RewardError, Score
from sandbox.protocol import SandboxError

Verdict = Literal["ok", "warn", "fail"]

TASKS = {"train": 300, "heldout": 100}
EPISODES = 24
STALL_S = 0.1  # a tool that holds up the event loop for longer stalls every other episode of its worker
BEAT_S = 0.002
SUBPROCESS_TIMEOUT_S = 60.0
_FAULTS = (SandboxError, InfrastructureError, RewardError)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `hint` says what to change."""

    check: str
    verdict: Verdict
    text: str
    hint: str = ""


@dataclass(slots=True)
class Played:
    """Episodes of one policy."""

    scores: list[Score] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    turns: int = 0
    longest_stall_s: float = 0.0

    @property
    def mean(self) -> float:
        return fmean(score.reward for score in self.scores) if self.scores else float("nan")


async def check(text: str, episodes: int = EPISODES) -> list[Finding]:
    """Every check of the environment that `text` names. Raises `ValueError` where it cannot be made at all."""
    env = make(text)
    findings = [*await check_start(env), *check_tools(env), *check_rewards(env)]
    findings += check_tasks(text)
    findings += await asyncio.to_thread(check_gymnasium, text)
    if not any(finding.verdict == "fail" for finding in findings):
        findings += await check_play(text, episodes)
    return findings


async def check_start(env: ToolEnv) -> list[Finding]:
    """Whether an episode begins at all. `env` has the tools of that episode afterwards."""
    try:
        await env.begin()
    except (ValueError, TypeError, NotImplementedError, *_FAULTS) as error:
        hint = "`sample_task` and `start` must work for every task"
        return [Finding("start", "fail", f"{type(error).__name__}: {error}", hint)]
    finally:
        await env.aclose()
    return []


def check_tools(env: ToolEnv) -> Iterator[Finding]:
    reads_text = type(env).on_text is not ToolEnv.on_text or type(env)._respond is not ToolEnv._respond
    if not env.tools and reads_text:
        yield Finding("tools", "ok", "none: replies are text")
        return
    if not env.tools:
        yield Finding("tools", "fail", "the model has nothing to call", "mark a method with @tool")
        return
    silent = [tool.name for tool in env.tools if not tool.description]
    silent += [
        f"{tool.name}({name})"
        for tool in env.tools
        for name, schema in tool.parameters["properties"].items()
        if "description" not in schema
    ]
    for tool in env.tools:
        json.dumps(tool.parameters)
    if silent:
        hint = "write a docstring: its first paragraph describes the tool, its `Args:` section the arguments"
        yield Finding("tools", "warn", f"without a description: {', '.join(silent)}", hint)
    else:
        yield Finding("tools", "ok", ", ".join(tool.name for tool in env.tools))


def check_rewards(env: ToolEnv) -> Iterator[Finding]:
    paid = [component for component in env.components if component.weight]
    names = ", ".join(f"{each.name} × {each.weight:g} in [{each.bounds[0]:g}, {each.bounds[1]:g}]" for each in paid)
    if paid:
        yield Finding("rewards", "ok", names)
    else:
        yield Finding("rewards", "fail", "nothing is rewarded", "mark a method with @reward(weight=1.0)")


def check_tasks(text: str) -> Iterator[Finding]:
    """Determinism, within and across processes, and the disjointness of the splits."""
    first, second = make(text), make(text)
    hint = "sample_task must draw from its `rng` alone: no other randomness, no clock, no set order, no kept state"
    hashes: dict[str, set[str]] = {}
    try:
        for split, count in TASKS.items():
            tasks = [first.make_task(split, index) for index in range(count)]  # type: ignore[arg-type]
            again = [second.make_task(split, index) for index in reversed(range(count))]  # type: ignore[arg-type]
            if tasks != again[::-1]:
                yield Finding("determinism", "fail", f"a {split} task differs from one call to the next", hint)
                return
            hashes[split] = {first.task_hash(task) for task in tasks}
    except (ValueError, TypeError) as error:
        yield Finding("tasks", "fail", f"{type(error).__name__}: {error}", "return JSON-like data, from many tasks")
        return
    other = _hash_in_another_process(text)
    if other != first.task_hash(first.make_task("heldout", 0)):
        yield Finding("determinism", "fail", f"a task differs in another process ({other})", hint)
    else:
        yield Finding("determinism", "ok", "the same tasks in every call and every process")
    shared = hashes["train"] & hashes["heldout"]
    counts = ", ".join(f"{len(hashes[split])} of {count} {split} tasks differ" for split, count in TASKS.items())
    if shared:
        yield Finding("splits", "fail", f"{len(shared)} held-out tasks are training tasks", "task_key must be stable")
    elif min(len(hashes[split]) / count for split, count in TASKS.items()) < 0.2:
        yield Finding("splits", "warn", counts, "few different tasks: a model may learn them by heart")
    else:
        yield Finding("splits", "ok", f"disjoint; {counts}")


def _hash_in_another_process(text: str) -> str:
    code = "import sys, envs; e = envs.make(sys.argv[1]); print(e.task_hash(e.make_task('heldout', 0)))"
    done = subprocess.run(
        [sys.executable, "-c", code, text],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=SUBPROCESS_TIMEOUT_S,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


def check_gymnasium(text: str) -> Iterator[Finding]:
    """Gymnasium's own checker, on the synchronous face."""
    env = make(text)
    if len(env.seats) > 1:
        told = f"not played: Gymnasium has one player, and this has {', '.join(env.seats)}"
        return iter([Finding("gymnasium", "ok", told)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except (AssertionError, ValueError, TypeError, NotImplementedError, *_FAULTS) as error:
            return iter([Finding("gymnasium", "fail", f"{type(error).__name__}: {error}", "see gymnasium's check_env")])
        finally:
            env.close()
    warned = [str(warning.message) for warning in caught]
    return iter([Finding("gymnasium", "warn" if warned else "ok", "; ".join(warned) or "check_env passes")])


async def check_play(text: str, episodes: int) -> list[Finding]:
    """Play scripted policies: faults, floor and ceiling, attacks, stalls of the event loop, and what is left behind."""
    findings: list[Finding] = []
    env, threads = make(text), {thread.ident for thread in threading.enumerate()}
    floor = await play(env, random_policy, episodes)
    played = {"random": floor}
    if env.has_demonstrator:
        played["demonstrator"] = await play(env, lambda env, first, rng: env.demonstrate(rng), episodes)
    if env.has_expert:
        played["expert"] = await play(env, lambda env, first, rng: env.expert(rng), episodes)
    faults = [fault for each in played.values() for fault in each.faults]
    if faults:
        findings.append(_faulty(faults))
    means = ", ".join(f"{name} {each.mean:.3f}" for name, each in played.items())
    rewards = {score.reward for each in played.values() for score in each.scores}
    if "expert" in played and not played["expert"].mean > floor.mean:
        findings.append(Finding("floor and ceiling", "fail", means, "the expert earns no more than chance"))
    elif len(rewards) < 2:
        hint = "give partial credit, or an `expert` (it shows that the reward can be earned)"
        findings.append(Finding("floor and ceiling", "warn", f"every episode earned {means}", hint))
    else:
        findings.append(Finding("floor and ceiling", "ok", f"mean reward: {means}"))
    findings += await _check_attacks(env, floor)
    stall = max(each.longest_stall_s for each in played.values())
    if stall > STALL_S:
        hint = "make blocking tools plain `def` methods (they run in threads), and await what can be awaited"
        findings.append(Finding("event loop", "warn", f"held up for {stall * 1000:.0f} ms", hint))
    else:
        findings.append(Finding("event loop", "ok", f"held up for {stall * 1000:.0f} ms at most"))
    alive = [each for each in threading.enumerate() if each.ident not in threads and not each.daemon]
    left = [each.name for each in alive if not each.name.startswith("asyncio_")]  # the event loop's own pool
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and _is_from(env, task)]
    if left or tasks:
        findings.append(Finding("leftovers", "fail", f"threads {left}, tasks {tasks}", "end in `stop` what you start"))
    else:
        findings.append(Finding("leftovers", "ok", "nothing outlives an episode"))
    return findings


async def _check_attacks(env: ToolEnv, floor: Played) -> list[Finding]:
    """No attack may earn more than chance does."""
    best = max((score.reward for score in floor.scores), default=0.0)
    findings, faults = [], []
    for name, policy in attacks(env).items():
        played = await play(env, policy, 4)
        faults += played.faults
        earned = max((score.reward for score in played.scores), default=0.0)
        if earned > max(best, 0.0):
            hint = "pay for the outcome alone, not for text or for calling"
            findings.append(Finding("attacks", "fail", f"{name}: earned {earned:.3f}", hint))
    if faults:
        findings.append(_faulty(faults))
    return findings or [Finding("attacks", "ok", f"earn nothing: {', '.join(attacks(env))}")]


def _faulty(faults: list[str]) -> Finding:
    hint = "state the component's range, and return a finite number for every way an episode may end"
    return Finding("rewards", "fail", f"{len(faults)} episodes errored, the first: {faults[0]}", hint)


async def play(env: ToolEnv, policy: Policy, episodes: int, split: Split = "train") -> Played:
    """Play tasks 0, 1, … of `split` by `policy`. A fault is noted and ends its episode only."""
    played, rng = Played(), np.random.default_rng(0)
    for index in range(episodes):
        async with _watching(played):
            try:
                first = await env.begin(split, index)
                while env.status is Status.RUNNING:
                    await env.act(await policy(env, first, rng))
                    await asyncio.sleep(2 * BEAT_S)  # lets the watch see how long that took
                for seat in env.seats:
                    env.seat = seat
                    played.scores.append(await env.score())
                played.turns += env.num_turns
            except _FAULTS as error:
                played.faults.append(f"{type(error).__name__}: {error}")
            finally:
                await env.aclose()
    return played


@asynccontextmanager
async def _watching(played: Played) -> AsyncIterator[None]:
    """Measure for how long the event loop is held up at a time."""

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            played.longest_stall_s = max(played.longest_stall_s, time.perf_counter() - before - BEAT_S)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        watching.cancel()


def _is_from(env: ToolEnv, task: asyncio.Task[object]) -> bool:
    """Whether a task runs code of the environment's own module."""
    code = getattr(task.get_coro(), "cr_code", None)
    module = sys.modules.get(type(env).__module__)
    return code is not None and code.co_filename == getattr(module, "__file__", None)
