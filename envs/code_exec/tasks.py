"""What a `code_exec` task is, and sampling one of any level.

A task's tests are [arguments, expected] pairs for its function `entry`, or [stdin, stdout] pairs where `entry` is "";
the first one is public. What makes two tasks the same is what their programs *do*, on inputs that never change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import numpy as np

from envs.code_exec import pipelines, steps
from envs.splits import content_hash

LEVELS = (*pipelines.LEVELS, *steps.LEVELS)
HIDDEN_TESTS = 4
MORE_HIDDEN_TESTS = 8  # for the longer programs, with more edges to miss
PROBES = 24
_FAILURES = (ValueError, IndexError)  # of references on inputs that they are not meant for: max of nothing


def sample_task(rng: np.random.Generator, level: int) -> dict[str, Any]:
    """A program and tests that its solution passes.

    Inputs on which the solution fails are left out, and so are tests with one and the same answer, which a program
    that never looks at its input would pass.
    """
    sample = _sample_pipeline if level in pipelines.LEVELS else _sample_chain
    while True:
        made = sample(rng, level)
        if made is not None:
            return {"kind": f"level-{level}", **made}


def _sample_pipeline(rng: np.random.Generator, level: int) -> dict[str, Any] | None:
    program = pipelines.sample_program(rng, level)
    solve = pipelines.reference(program.source)
    tests = _tests(solve, lambda: pipelines.sample_input(rng, level), 1 + HIDDEN_TESTS)
    if tests is None:
        return None
    cases = [[[x], want] for x, want in tests]
    return {
        "prompt": f"python: {program.description}",
        "entry": "f",
        "public": cases[0],
        "hidden": cases[1:],
        "solution": program.source,
        "program": asdict(program),
        "behaviour": behaviour_of_program(program.source, level),
    }


def _sample_chain(rng: np.random.Generator, level: int) -> dict[str, Any] | None:
    chain = steps.sample_chain(rng, level)
    takes = steps.STEPS[chain[0]].takes
    tests = _tests(partial(steps.run_chain, chain), lambda: steps.sample_input(rng, takes), 1 + MORE_HIDDEN_TESTS)
    if tests is None:
        return None
    example = " gives ".join(map(json.dumps, tests[0]))
    by_call = level == 5
    cases = [[[x], want] if by_call else [json.dumps(x), json.dumps(want)] for x, want in tests]
    return {
        "prompt": f"{steps.describe(chain, level)} Example: {example}.",
        "entry": "f" if by_call else "",
        "public": cases[0],
        "hidden": cases[1:],
        "solution": steps.solution(chain, level),
        "chain": chain,
        "behaviour": behaviour_of_chain(tuple(chain)),
    }


def skip_a_step(payload: dict[str, Any], rng: np.random.Generator) -> str:
    """A program for a task of several steps that may leave one of them out."""
    chain = payload["chain"]
    left_out = int(rng.integers(len(chain) + 1))
    return steps.solution([name for i, name in enumerate(chain) if i != left_out], 5 if payload["entry"] else 6)


def _tests(solve: Callable[[Any], Any], draw: Callable[[], Any], count: int) -> list[tuple[Any, Any]] | None:
    """`count` inputs with their answers; None where the solution fails or the hidden answers are all the same."""
    tests = []
    for _ in range(count):
        x = draw()
        try:
            tests.append((x, solve(x)))
        except _FAILURES:
            return None
    return tests if len({json.dumps(want) for _, want in tests[1:]}) > 1 else None


def behaviour(solve: Callable[[Any], Any], probes: list[Any]) -> str:
    """A digest of what a program does on the probes."""
    said = []
    for probe in probes:
        try:
            said.append(solve(probe))
        except _FAILURES as error:
            said.append(type(error).__name__)
    return content_hash(said).hex()


@lru_cache(maxsize=8192)
def behaviour_of_program(source: str, level: int) -> str:
    return behaviour(pipelines.reference(source), _probes("number" if level == 0 else "list"))


@lru_cache(maxsize=8192)
def behaviour_of_chain(chain: tuple[str, ...]) -> str:
    return behaviour(partial(steps.run_chain, chain), _probes(steps.STEPS[chain[0]].takes))


@lru_cache(maxsize=8)
def _probes(kind: str) -> list[Any]:
    """Inputs of one type that never change."""
    rng = np.random.default_rng(0)
    if kind in ("number", "list"):
        return [pipelines.sample_input(rng, 0 if kind == "number" else 1) for _ in range(PROBES)]
    return [steps.sample_input(rng, kind) for _ in range(PROBES)]
