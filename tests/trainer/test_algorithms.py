"""Advantages, surrogates, corrections and aggregations against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trainer.algorithms import GRPO, TokenTerms, advantages, aggregate, policy
from trainer.config import AlgorithmConfig

LN2 = math.log(2)


def terms(**changes) -> TokenTerms:
    """Two tokens of one row and one of another; pi/mu = 2, 1, 1/2 and pi_prox/mu = 4, 1, 1/4."""
    current = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    base = TokenTerms(
        current=current,
        proximal=current.detach() + torch.tensor([LN2, 0.0, -LN2]),
        behaviour=current.detach() - torch.tensor([LN2, 0.0, -LN2]),
        entropy=torch.tensor([0.5, 0.5, 0.5]),
        advantage=torch.tensor([1.0, 1.0, -1.0]),
        row=torch.tensor([0, 0, 1]),
    )
    return replace(base, **changes)


def config(**fields) -> AlgorithmConfig:
    return AlgorithmConfig(**({"entropy_coef": 0.0} | fields))


def test_mean_centred():
    assert advantages.mean_centred(torch.tensor([0.0, 1.0, 0.5, 0.5])).tolist() == [-0.5, 0.5, 0.0, 0.0]


def test_standardised():
    # mean 0.5, unbiased std of (0, 1) = sqrt(0.5)
    got = advantages.standardised(torch.tensor([0.0, 1.0]), eps=0.0)
    torch.testing.assert_close(got, torch.tensor([-0.5, 0.5]) / math.sqrt(0.5))


def test_ratio_per_token_and_per_sequence():
    t = terms()
    token = policy.ratio(t.current, t.behaviour, t.row, "token")
    torch.testing.assert_close(token, torch.tensor([2.0, 1.0, 0.5]))
    # row 0: exp((ln 2 + 0) / 2) = sqrt 2
    sequence = policy.ratio(t.current, t.behaviour, t.row, "sequence")
    torch.testing.assert_close(sequence, torch.tensor([2**0.5, 2**0.5, 0.5]))


def test_log_ratios_are_clamped():
    one, row = torch.zeros(1), torch.zeros(1, dtype=torch.long)
    assert policy.ratio(one + 1000, one, row, "token").item() == pytest.approx(math.exp(20))
    assert policy.ratio(one - 1000, one, row, "token").item() == pytest.approx(math.exp(-20))


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "objective", "clipped"),
    [
        (1.1, 1.0, 0.0, 1.1, False),
        (2.0, 1.0, 0.0, 1.28, True),  # above 1 + high, reward: capped
        (0.5, 1.0, 0.0, 0.5, False),  # below 1 - low, reward: free to come back
        (0.5, -1.0, 0.0, -0.8, True),  # below 1 - low, penalty: floored
        (9.0, -1.0, 0.0, -9.0, False),  # above, penalty: free, and unbounded without a dual clip
        (9.0, -1.0, 3.0, -3.0, True),
    ],
)
def test_clipped_surrogate(ratio, advantage, dual, objective, clipped):
    got, flag = policy.clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), 0.2, 0.28, dual)
    assert got.item() == pytest.approx(objective)
    assert flag.item() is clipped


def test_truncated_and_masked_weights():
    rho = torch.tensor([0.1, 0.5, 1.0, 4.0, 9.0])
    assert policy.truncated_weight(rho, 2.0).tolist() == pytest.approx([0.1, 0.5, 1.0, 2.0, 2.0])
    assert policy.masked_weight(rho, 0.5, 5.0).tolist() == [0.0, 0.5, 1.0, 4.0, 0.0]


def test_k3_is_zero_at_equality_and_positive_elsewhere():
    current = torch.tensor([-1.0, -1.0])
    got = policy.k3(current, torch.tensor([-1.0, -1.0 + LN2]))
    torch.testing.assert_close(got, torch.tensor([0.0, 1 - LN2]))  # r = 2: 2 - ln 2 - 1


@pytest.mark.parametrize(
    ("correction", "loss"),
    [
        # clip: r = pi/mu = 2, 1, 0.5 -> -(1.28, 1, -0.8)
        ("clip", [-1.28, -1.0, 0.8]),
        # the rest: r = pi/pi_prox = 0.5, 1, 2 -> objective 0.5, 1, -2, times w
        ("none", [-0.5, -1.0, 2.0]),
        ("tis", [-0.5 * 2.0, -1.0, 2.0 * 0.25]),
        ("mis", [-0.5 * 4.0, -1.0, 0.0]),
        ("decoupled", [-0.5 * 4.0, -1.0, 2.0 * 0.25]),
    ],
)
def test_grpo_corrections(correction, loss):
    got, _ = GRPO(config(correction=correction)).loss(terms())
    assert got.tolist() == pytest.approx(loss)


def test_grpo_gradient_is_the_policy_gradient_when_on_policy():
    """With pi = pi_prox = mu, d loss / d log pi = -A for every correction."""
    for correction in ("clip", "none", "tis", "mis", "decoupled"):
        t = terms()
        t = replace(t, proximal=t.current.detach(), behaviour=t.current.detach())
        GRPO(config(correction=correction)).loss(t)[0].sum().backward()
        assert t.current.grad.tolist() == pytest.approx([-1.0, -1.0, 1.0]), correction


def test_corrections_carry_no_gradient_of_their_own():
    t = terms()
    GRPO(config(correction="decoupled")).loss(t)[0].sum().backward()
    # d/d log pi of -w r A = -w r A, w constant
    assert t.current.grad.tolist() == pytest.approx([-2.0, -1.0, 0.5])


def test_entropy_and_reference_terms():
    base, _ = GRPO(config()).loss(terms())
    bonus, _ = GRPO(config(entropy_coef=0.1)).loss(terms())
    torch.testing.assert_close(bonus, base - 0.1 * 0.5)
    t = terms()
    penalty, _ = GRPO(config(kl_coef=0.5)).loss(replace(t, reference=t.current.detach() + LN2))
    torch.testing.assert_close(penalty, base + 0.5 * (1 - LN2))


def test_aggregations():
    sizes, episodes = [2, 6, 4], [0, 1, 1]  # episode 1 forked into two rows
    assert aggregate.token_mean(sizes, episodes, 100) == pytest.approx([1 / 12] * 3)
    assert aggregate.sequence_mean(sizes, episodes, 100) == pytest.approx([1 / 4, 1 / 20, 1 / 20])
    assert aggregate.constant(sizes, episodes, 100) == pytest.approx([1 / 200] * 3)
    for scales in (aggregate.token_mean, aggregate.sequence_mean):
        assert sum(s * n for s, n in zip(scales(sizes, episodes, 100), sizes, strict=True)) == pytest.approx(1.0)
