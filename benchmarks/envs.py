"""How many steps a second does each environment play with a scripted policy, and what do 1,000 episodes hold?

    python -m benchmarks.envs

The expert plays groups of eight, one after the other, as a rollout worker would. Its programs are judged without the
sandbox, so for code_exec two more numbers have them run as a model's would be, eight episodes at a time: all of them,
or the same one once for its group. Beside them stands the sandbox's own rate (programs run in fresh children). The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable

import numpy as np

import envs
import sandbox
from envs import Message, Status, ToolEnv, call
from envs.code_exec.env import CodeExec

GROUP = 8
Play = Callable[[ToolEnv, np.random.Generator], Awaitable[Message]]


async def episode(env: ToolEnv, index: int, policy: Play, rng: np.random.Generator) -> int:
    """Play one episode; returns its number of steps."""
    await env.begin("train", index)
    while env.status is Status.RUNNING:
        await env.act(await policy(env, rng))
    await env.score()
    await env.aclose()
    return env.num_turns


async def steps_per_s(name: str, policy: Play, seconds: float, at_once: int = 1) -> float:
    """Steps a second over whole groups, `at_once` episodes side by side."""
    rng, steps, index = np.random.default_rng(0), 0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(GROUP // at_once):
            made = [envs.make(name) for _ in range(at_once)]
            steps += sum(await asyncio.gather(*(episode(env, index, policy, rng) for env in made)))
        index += 1
    return steps / (time.perf_counter() - started)


async def as_a_model(env: ToolEnv, rng: np.random.Generator) -> Message:
    """The solution of code_exec as a model would send it: the first of a group runs it in the sandbox."""
    assert isinstance(env, CodeExec)
    return call("submit") if env.code else call("run_code", code=env.task.payload["solution"])


async def as_an_exploring_model(env: ToolEnv, rng: np.random.Generator) -> Message:
    """The same in a form whose outcome is never remembered: every episode runs it."""
    assert isinstance(env, CodeExec)
    return call("submit") if env.code else call("run_code", code=f"(lambda x: {env.task.payload['solution']})(x)")


async def sandbox_per_s(seconds: float, at_once: int) -> float:
    """Fresh children a second, `at_once` in flight: one program, nothing to compare."""
    shared = await sandbox.shared()
    runs, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        await asyncio.gather(*(shared.run("print(1)") for _ in range(at_once)))
        runs += at_once
    return runs / (time.perf_counter() - started)


async def mb_per_1000(name: str) -> float:
    """Growth of the process, in MiB, with 1,000 episodes begun and one reply played in each."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = [envs.make(name) for _ in range(1000)]
    for index, env in enumerate(made):
        await env.begin("train", index)
        await env.act(Message("assistant", "hello"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for env in made:
        await env.aclose()
    return grown / 1024


async def main(seconds: float) -> None:
    rates: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name in ("doc_search", "negotiation", "code_exec"):
        memory[name] = round(await mb_per_1000(name), 1)
        rates[name] = round(await steps_per_s(name, lambda env, rng: env.expert(rng), seconds))
    await sandbox.shared()  # started before the clock
    rates["code_exec, every program run"] = round(await steps_per_s("code_exec", as_an_exploring_model, seconds, GROUP))
    rates["code_exec, groups that agree"] = round(await steps_per_s("code_exec", as_a_model, seconds, GROUP))
    rates["sandbox alone"] = round(await sandbox_per_s(seconds, GROUP))
    await sandbox.close_shared()
    print(json.dumps({"benchmark": "envs", "steps_per_s": rates, "mb_per_1000": memory}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure each (default 3)")
    asyncio.run(main(parser.parse_args().seconds))
