"""The engine and the trainer mean the same thing by a log-probability."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout import weights
from rollout.engine import Sampling
from rollout.engines.torch_engine import TorchEngine
from rollout.wire import Sequence
from trainer.batch import collate, row_of
from trainer.config import RolloutConfig, RunConfig
from trainer.learner import Learner


async def play(engine: TorchEngine, seed: int, temperature: float) -> Sequence:
    """Three replies with a tool's tokens between them, as one sequence."""
    tokens, sampled, logprobs, versions = [3, 1, 4, 1, 5], [False] * 5, [0.0] * 5, [-1] * 5
    for turn in range(3):
        sampling = Sampling(max_tokens=6, temperature=temperature, seed=seed)
        drawn = await engine.generate(tokens, sampling, session=f"episode-{seed}")
        given = [turn, 7, 9]
        tokens = tokens + drawn.token_ids + given
        sampled += [True] * len(drawn.token_ids) + [False] * 3
        logprobs += drawn.logprobs + [0.0] * 3
        versions += drawn.versions + [-1] * 3
    engine.end_session(f"episode-{seed}")
    return Sequence(tokens, sampled, logprobs, versions)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_recomputed_log_probabilities_equal_the_engines(tiny, tiny_folder, temperature):
    engine = TorchEngine(str(tiny_folder), slots=4, context=64, threads=1, seed=0)
    await engine.start()
    try:
        played = [await play(engine, seed, temperature) for seed in range(6)]
    finally:
        await engine.aclose()
    learner = Learner(tiny, replace(RunConfig(), rollout=RolloutConfig(temperature=temperature)))
    packed = collate([row_of(s, 1.0, 0, 0) for s in played], [1.0] * len(played))
    got = learner._logprobs(tiny, packed)[0]
    torch.testing.assert_close(got, packed.behaviour, rtol=0, atol=1e-4)


async def test_after_a_step_is_published_both_agree_again(tiny, tiny_folder, tmp_path):
    engine = TorchEngine(str(tiny_folder), slots=4, context=64, threads=1, seed=0)
    await engine.start()
    try:
        before = await play(engine, 0, 1.0)
        with torch.no_grad():
            for p in tiny.parameters():
                p.add_(0.05 * torch.randn_like(p))
        learner = Learner(tiny, RunConfig())
        await engine.load(weights.write(tmp_path, 1, learner.named_tensors()), 1)
        after = await play(engine, 0, 1.0)
    finally:
        await engine.aclose()
    packed = collate([row_of(after, 1.0, 0, 0)], [1.0])
    got = learner._logprobs(tiny, packed)[0]
    torch.testing.assert_close(got, packed.behaviour, rtol=0, atol=1e-4)
    assert {v for v in after.versions if v >= 0} == {1}
    stale = collate([row_of(before, 1.0, 0, 0)], [1.0])
    assert (learner._logprobs(tiny, stale)[0] - stale.behaviour).abs().max() > 1e-3
