"""Scoring the episodes of one task together."""

from __future__ import annotations

from collections.abc import Sequence

from envs.scoring import Reward, run_reward
from envs.tool_env import ToolEnv
from rewards.compose import RewardError, Score, compose


async def score_group(group: Sequence[ToolEnv], seat: str = "") -> list[Score | RewardError]:
    """Score the episodes of one task for one seat, with the rewards of scope "group".

    An episode without a score has its `RewardError` instead and is left out of the group rewards; a group reward that
    fails takes the score from every episode.
    """
    results: list[Score | RewardError] = []
    values: dict[int, dict[str, float]] = {}
    for position, env in enumerate(group):
        env.seat = seat
        try:
            values[position] = await env.values()
            results.append(compose(env.components, values[position]))
        except RewardError as error:
            results.append(error)
    if not values:
        return results
    scored = [group[position] for position in values]
    rewards = [each for each in scored[0]._rewards if each.component.scope == "group"]
    try:
        for each in rewards:
            numbers = await _measure_group(each, scored)
            for own, number in zip(values.values(), numbers, strict=True):
                own[each.component.name] = number
        for position, own in values.items():
            results[position] = compose(group[position].components, own)
    except RewardError as error:
        for position in values:
            results[position] = error
    return results


async def _measure_group(reward: Reward, group: Sequence[ToolEnv]) -> list[float]:
    """One group reward's value for each of `group`. Raises `RewardError`."""
    name = reward.component.name
    function = getattr(type(group[0]), reward.method)
    numbers = await run_reward(reward.component, function, list(group))
    if not isinstance(numbers, Sequence) or len(numbers) != len(group):
        raise RewardError(f"group reward {name!r} must return a list of {len(group)} numbers, got {numbers!r:.80}")
    return [reward.component.check(number) for number in numbers]
