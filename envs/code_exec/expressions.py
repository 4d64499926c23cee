"""Pure expressions: run in one shared box, once, and remembered.

The episodes of a group, and a policy that has settled, send the same programs over and over; a sandbox's fresh child
costs more than everything else in such an episode. An expression of `x`, numbers, text and a few built-in functions can
neither depend on what ran before it nor leave anything behind, so its outcome for the same input is the same every
time, and others may follow it in the same process.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import sandbox
from rewards.code import CallTest, TestOutcome, run_tests
from sandbox.protocol import Box, Limits, Sandbox, SandboxError

MAX_REMEMBERED = 20_000
MAX_CODE_CHARS = 500
LIMITS = Limits(wall_s=2.0, cpu_s=0.5)  # of one expression in the shared box
BOX_CALLS = 25  # after which it is replaced, long before it grows or its processor time is used up
_NAMES = (
    "abs all any bool divmod enumerate filter float int len list map max min pow range reversed round sorted str sum "
    "tuple zip"
)
BUILTINS = frozenset(_NAMES.split())
_NODES = (
    ast.Expression, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp,
    ast.BoolOp, ast.Compare, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Subscript, ast.Slice,
    ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.Starred,
)  # fmt: skip
_TARGETS = (ast.Name, ast.Store, ast.Tuple, ast.List, ast.Starred)


def is_pure(code: str) -> bool:
    """Whether `code` is an expression of `x`, constants and `BUILTINS`: no attribute, assignment or other name.

    A comprehension may bind names of its own, but none that means something outside it: wherever else such a name
    stands, it is not defined.
    """
    if len(code) > MAX_CODE_CHARS:
        return False
    try:
        nodes = list(ast.walk(ast.parse(code.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    targets = [part for node in nodes if isinstance(node, ast.comprehension) for part in ast.walk(node.target)]
    return (
        all(isinstance(node, _NODES) for node in nodes)
        and all(isinstance(part, _TARGETS) for part in targets)
        and not any(name.startswith("_") or hasattr(builtins, name) for name in bound)
        and used <= BUILTINS | bound | {"x"}
    )


class Memo:
    """The newest `MAX_REMEMBERED` outcomes. Those who ask for one that is being found wait for it."""

    def __init__(self) -> None:
        self.hits = 0
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    def get(self, key: Hashable) -> Any:
        """The outcome, or None."""
        if key not in self._known:
            return None
        self.hits += 1
        self._known.move_to_end(key)
        return self._known[key]

    async def find(self, key: Hashable, run: Callable[[], Awaitable[Any]], keep: Callable[[Any], bool]) -> Any:
        """The outcome of `run`, which runs once for all who ask meanwhile, and for later ones if it is to `keep`.

        Who is cancelled meanwhile leaves it running for the others. They try for themselves where it fails, for its
        failure may be that of the one episode that it ran in. Raises what `run` raises.
        """
        known = self.get(key)
        if known is not None:
            return known
        while (task := self._running.get(key)) is not None:
            try:
                outcome = await asyncio.shield(task)
                self.hits += 1
                return outcome
            except SandboxError:
                continue
        task = self._running[key] = asyncio.ensure_future(self._run(key, run, keep))
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, run: Callable[[], Awaitable[Any]], keep: Callable[[Any], bool]) -> Any:
        try:
            outcome = await run()
        finally:
            del self._running[key]
        if keep(outcome):
            self._known[key] = outcome
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return outcome


class Expressions:
    """Runs the tests of pure expressions: one after the other in one box, for a sixth of what fresh children cost.

    What goes wrong in the box may be the doing of those that came before, so it is judged again in a fresh child.
    """

    def __init__(self) -> None:
        self.memo = Memo()
        self._turn = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._box: Box | None = None
        self._calls = 0

    async def judge(self, code: str, tests: Sequence[CallTest], limits: Limits) -> TestOutcome:
        """What `run_tests` says of `code`, for which `is_pure` holds, within `limits`. Raises `SandboxError`."""
        key = (code, repr(tests))
        return await self.memo.find(key, lambda: self._run(code, tests, limits), keep=_is_for_good)

    async def _run(self, code: str, tests: Sequence[CallTest], limits: Limits) -> TestOutcome:
        async with self._turn:
            found = await self._run_in_box(code, tests)
        if found.error or "MemoryError" in found.errors:
            found = await run_tests(await sandbox.shared(), code, tests, limits=limits)
        return found

    async def _run_in_box(self, code: str, tests: Sequence[CallTest]) -> TestOutcome:
        current = await sandbox.shared()
        if self._box is None or self._sandbox is not current:
            self._sandbox, self._box, self._calls = current, await current.open(limits=LIMITS), 0
        box, self._calls = self._box, self._calls + 1
        kept = False
        try:
            found = await run_tests(box, code, tests)
            kept = self._calls < BOX_CALLS and not found.error
            return found
        finally:
            if not kept:  # also a fault of the box, and a call that was given up
                self._box = None
                await box.aclose()


def _is_for_good(found: TestOutcome) -> bool:
    """A limit on wall time may be the doing of a busy machine; all else would happen again."""
    return "limit:wall" not in found.labels


_expressions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Expressions] = weakref.WeakKeyDictionary()


def shared_expressions() -> Expressions:
    """The running event loop's."""
    return _expressions.setdefault(asyncio.get_running_loop(), Expressions())
