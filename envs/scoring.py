"""`@reward`: a method that says what an episode earned, in a stated range, with a weight."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from rewards.compose import Component, RewardError, Scope

Method = TypeVar("Method", bound=Callable[..., Any])

REWARD_MARK = "__slipstream_reward__"
UNBOUNDED_METRIC = (-1e9, 1e9)  # a metric may count anything, but must stay a finite number


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward method of an environment class."""

    component: Component
    method: str


@overload
def reward(method: Method) -> Method: ...
@overload
def reward(
    *, weight: float = 1.0, range: tuple[float, float] | None = None, scope: Scope = "episode", name: str = ""
) -> Callable[[Method], Method]: ...


def reward(
    method: Method | None = None,
    *,
    weight: float = 1.0,
    range: tuple[float, float] | None = None,
    scope: Scope = "episode",
    name: str = "",
) -> Any:
    """Make this method of a `ToolEnv` one component of the reward, sync or async.

    `range` is checked at run time and defaults to [0, 1] (a metric, with weight 0, may count anything). By `scope`:
    "episode" runs once, after the end; "step" after every reply of the model, and the values are added up; "group" is
    written without `self` and gets the list of the group's environments, for each of which it returns a number.
    A value out of range, NaN, or an exception makes the episode errored (`RewardError`), never 0.
    """

    def mark(function: Method) -> Method:
        bounds = range or ((0.0, 1.0) if weight else UNBOUNDED_METRIC)
        setattr(function, REWARD_MARK, Component(name or function.__name__, float(weight), bounds, scope))
        return function

    return mark if method is None else mark(method)


def collect_rewards(cls: type) -> tuple[Reward, ...]:
    """The rewards of an environment class in the order of their definition. Raises `TypeError` for a repeated name."""
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        methods.update(vars(base))
    found: dict[str, Reward] = {}
    for attribute, method in methods.items():
        component = getattr(method, REWARD_MARK, None)
        if component is None:
            continue
        if component.name in found:
            raise TypeError(f"{cls.__name__} has two rewards called {component.name!r}")
        found[component.name] = Reward(component, attribute)
    return tuple(found.values())


async def measure(component: Component, method: Callable[[], Any]) -> float:
    """Run one reward method and check its value. Raises `RewardError`."""
    return component.check(await run_reward(component, method))


async def run_reward(component: Component, method: Callable[..., Any], *arguments: Any) -> Any:
    """Run one reward method, sync or async. Whatever it raises becomes a `RewardError` that names the component."""
    try:
        value = method(*arguments)
        return await value if inspect.isawaitable(value) else value
    except RewardError:
        raise
    except Exception as error:  # the boundary to the author's code; what it catches makes the episode errored
        raise RewardError(f"reward {component.name!r} raised {type(error).__name__}: {error}") from error
