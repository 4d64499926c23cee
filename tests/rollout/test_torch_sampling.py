from __future__ import annotations

import numpy as np
import pytest
import torch

from rollout.engine import Sampling
from rollout.engines.torch_sampling import draw, uniform


def test_draws_are_a_function_of_seed_and_position():
    seeds, positions = [5, 5, 6, -1, 2**63], [0, 1, 0, 0, 0]
    together = uniform(seeds, positions)
    alone = [uniform([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    assert len(set(alone)) == 5
    assert uniform([5], [0], engine_seed=1)[0] != alone[0]


def test_draws_are_uniform_along_seeds_and_positions():
    count = 20_000
    for u in (uniform(range(count), [7] * count), uniform([7] * count, range(count))):
        assert (u >= 0).all()
        assert (u < 1).all()
        counts, _ = np.histogram(u, bins=20, range=(0, 1))
        chi_square = ((counts - count / 20) ** 2 / (count / 20)).sum()
        assert chi_square < 43.8  # 19 degrees of freedom: one in a thousand is above
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(("size", "count"), [(7, 4000), (5000, 1000)])
def test_frequencies_are_the_probabilities_that_are_reported(size, count):
    logits = torch.full((size,), -torch.inf)
    logits[[1, 3, size - 1]] = torch.tensor([0.5, 0.2, 0.3]).log()
    settings = [Sampling(max_tokens=1, seed=seed) for seed in range(count)]
    tokens, logprobs = draw(logits.expand(count, size), settings, [0] * count)
    for token, probability in [(1, 0.5), (3, 0.2), (size - 1, 0.3)]:
        assert tokens.count(token) / count == pytest.approx(
            probability, abs=2.2 / count**0.5
        )  # 4.4 standard deviations
        assert logprobs[tokens.index(token)] == pytest.approx(np.log(probability), abs=1e-5)
    assert set(tokens) == {1, 3, size - 1}


def test_each_row_has_its_own_settings():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(5, 4)
    settings = [
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, top_k=1),
        Sampling(max_tokens=1, top_p=0.1),
        Sampling(max_tokens=1, temperature=0.5, seed=1),
        Sampling(max_tokens=1, top_k=2, seed=2),
    ]
    tokens, logprobs = draw(logits, settings, [3] * 5)
    assert tokens[:3] == [0, 0, 0]
    assert logprobs[:3] == [0.0, 0.0, 0.0]
    assert logprobs[3] == pytest.approx((logits[0] / 0.5).log_softmax(-1)[tokens[3]].item(), abs=1e-6)
    assert logprobs[4] == pytest.approx(logits[0, :2].log_softmax(-1)[tokens[4]].item(), abs=1e-6)


def test_values_that_are_not_numbers_are_reported():
    tokens, logprobs = draw(torch.full((2, 5), torch.nan), [Sampling(max_tokens=1)] * 2, [0, 0])
    assert all(0 <= token < 5 for token in tokens)
    assert all(np.isnan(logprob) for logprob in logprobs)
