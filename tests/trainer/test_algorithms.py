"""Advantages, surrogates, corrections and aggregations against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trainer.algorithms import ALGORITHMS, Outcomes, TokenTerms, advantages, aggregate, find, make, policy
from trainer.algorithms.cispo import CISPO
from trainer.algorithms.dapo import DAPO
from trainer.algorithms.dppo import DPPO
from trainer.algorithms.grpo import GRPO
from trainer.algorithms.reinforce_pp import ReinforcePP

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


def grpo(**fields) -> GRPO:
    return GRPO(**({"entropy_coef": 0.0} | fields))


def test_mean_centred():
    assert advantages.mean_centred(torch.tensor([0.0, 1.0, 0.5, 0.5])).tolist() == [-0.5, 0.5, 0.0, 0.0]


def test_standardised():
    # mean 0.5, unbiased std of (0, 1) = sqrt(0.5)
    got = advantages.standardised(torch.tensor([0.0, 1.0]), eps=0.0)
    torch.testing.assert_close(got, torch.tensor([-0.5, 0.5]) / math.sqrt(0.5))


def test_leave_one_out():
    # the others' means: 0.5, 0.5, 0
    assert advantages.leave_one_out(torch.tensor([0.0, 0.0, 1.0])).tolist() == pytest.approx([-0.5, -0.5, 1.0])


def test_batch_normalised():
    # 0, 1, 1, 2: mean 1, biased variance 1/2
    got = advantages.batch_normalised([torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])], eps=0.0)
    assert [a.tolist() for a in got] == [pytest.approx([-(2**0.5), 0.0]), pytest.approx([0.0, 2**0.5])]
    assert advantages.batch_normalised([]) == []


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
    got, _ = grpo(correction=correction).loss(terms())
    assert got.tolist() == pytest.approx(loss)


def test_grpo_gradient_is_the_policy_gradient_when_on_policy():
    """With pi = pi_prox = mu, d loss / d log pi = -A for every correction."""
    for correction in ("clip", "none", "tis", "mis", "decoupled"):
        t = terms()
        t = replace(t, proximal=t.current.detach(), behaviour=t.current.detach())
        grpo(correction=correction).loss(t)[0].sum().backward()
        assert t.current.grad.tolist() == pytest.approx([-1.0, -1.0, 1.0]), correction


def test_corrections_carry_no_gradient_of_their_own():
    t = terms()
    grpo(correction="decoupled").loss(t)[0].sum().backward()
    # d/d log pi of -w r A = -w r A, w constant
    assert t.current.grad.tolist() == pytest.approx([-2.0, -1.0, 0.5])


def test_entropy_and_reference_terms():
    base, _ = grpo().loss(terms())
    bonus, _ = grpo(entropy_coef=0.1).loss(terms())
    torch.testing.assert_close(bonus, base - 0.1 * 0.5)
    t = terms()
    penalty, _ = grpo(kl_coef=0.5).loss(replace(t, reference=t.current.detach() + LN2))
    torch.testing.assert_close(penalty, base + 0.5 * (1 - LN2))


def test_aggregations():
    sizes, episodes = [2, 6, 4], [0, 1, 1]  # episode 1 forked into two rows
    assert aggregate.token_mean(sizes, episodes, 100) == pytest.approx([1 / 12] * 3)
    assert aggregate.sequence_mean(sizes, episodes, 100) == pytest.approx([1 / 4, 1 / 20, 1 / 20])
    assert aggregate.constant(sizes, episodes, 100) == pytest.approx([1 / 200] * 3)
    for scales in (aggregate.token_mean, aggregate.sequence_mean):
        assert sum(s * n for s, n in zip(scales(sizes, episodes, 100), sizes, strict=True)) == pytest.approx(1.0)


def test_what_each_algorithm_makes_of_one_batch():
    """Returns (0, 1) and (1, 1, 1, 0.5), and the terms above: r = pi / mu = 2, 1, 1/2 and A = 1, 1, -1."""
    groups = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 0.5])]
    clipped = [-1.28, -1.0, 0.8]  # min(r A, clip(r, 0.8, 1.28) A)
    lower = [-1.2, -1.0, 0.8]  # the same, up to 1.2
    eps, std = advantages.EPSILON, 0.25  # the second group's
    centred = [[-0.5, 0.5], [0.125, 0.125, 0.125, -0.375]]
    scaled = [[a / (0.5**0.5 + eps) for a in centred[0]], [a / (std + eps) for a in centred[1]]]
    others = [[-1.0, 1.0], [1 / 6, 1 / 6, 1 / 6, -0.5]]
    mean, spread = 0.75, ((0.75**2 + 5 * 0.25**2) / 6) ** 0.5  # of all six
    batch = [[(r - mean) / (spread + eps) for r in group.tolist()] for group in groups]
    # a sequence's ratio: row 0 exp((ln 2 + 0) / 2), row 1 exp(-ln 2); bounds 1 - 3e-4 and 1 + 4e-4
    expected = {
        "grpo": (centred, clipped),
        "dr_grpo": (centred, lower),
        "dapo": (scaled, clipped),
        "gspo": (scaled, [-1.0004, -1.0004, 0.9997]),
        "cispo": (centred, [-2.0 * -1.0, -1.0 * -2.0, 0.5 * -3.0]),  # -sg(r) A log pi, log pi = -1, -2, -3
        "dppo": (centred, [-2.0, -1.0, 0.5]),
        "rloo": (others, lower),
        "reinforce_pp": (batch, lower),
    }
    assert expected.keys() == ALGORITHMS.keys()
    for name, (wanted, losses) in expected.items():
        algorithm = replace(make(name), entropy_coef=0.0)
        assert [a.tolist() for a in algorithm.advantages(groups)] == [pytest.approx(a, rel=1e-5) for a in wanted], name
        assert algorithm.loss(terms())[0].tolist() == pytest.approx(losses, rel=1e-4), name


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_on_policy_every_gradient_is_the_policy_gradient(name):
    t = terms(row=torch.tensor([0, 1, 2]))  # sequences of one token: there the levels agree
    t = replace(t, proximal=t.current.detach(), behaviour=t.current.detach())
    replace(make(name), entropy_coef=0.0).loss(t)[0].sum().backward()
    assert t.current.grad.tolist() == pytest.approx([-1.0, -1.0, 1.0])


def test_dapo_shortens_what_nears_the_limit():
    algorithm = DAPO(overlong_tokens=100, overlong_buffer=20)
    outcomes = Outcomes(torch.ones(5, dtype=torch.float64), torch.tensor([10, 80, 90, 100, 300]))
    assert algorithm.returns(outcomes).tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])
    assert DAPO().returns(outcomes).tolist() == [1.0] * 5
    hard = DAPO(overlong_tokens=100)  # no buffer: above the limit
    assert hard.returns(outcomes).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="--overlong-buffer 5"):
        DAPO(overlong_buffer=5).check()


def test_reinforce_pp_with_a_group_baseline():
    got = ReinforcePP(group_baseline=True).advantages([torch.tensor([0.0, 1.0]), torch.tensor([3.0, 4.0])])
    assert [a.tolist() for a in got] == [pytest.approx([-1.0, 1.0], rel=1e-3)] * 2


def test_what_reinforce_pp_compares():
    assert ReinforcePP().least_group == 1
    assert ReinforcePP(group_baseline=True).least_group == 2
    assert ReinforcePP(keep_zero_variance=False).least_group == 2
    with pytest.raises(ValueError, match="--advantage mean_std"):
        ReinforcePP(advantage="mean_std").check()


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    t = terms(behaviour=torch.tensor([-1.0, -2.0, -3.0]) - math.log(9))  # r = 9
    loss, clipped = CISPO(entropy_coef=0.0, clip_high=4.0).loss(t)
    loss.sum().backward()
    assert clipped.tolist() == [True] * 3
    assert t.current.grad.tolist() == pytest.approx([-5.0, -5.0, 5.0])  # -min(r, 5) A


@pytest.mark.parametrize(
    ("pi", "mu", "advantage", "outside"),
    [
        (0.5, 0.2, 1.0, True),  # |0.3| > 0.15, and a reward would raise it further
        (0.5, 0.2, -1.0, False),  # a penalty brings it back
        (0.2, 0.5, -1.0, True),
        (0.2, 0.5, 1.0, False),
        (0.02, 0.002, 1.0, False),  # ten times likelier, and still a small change of the policy
        (0.95, 0.7, 1.0, True),  # a ratio of 1.36, and a large one
    ],
)
def test_dppo_masks_by_divergence(pi, mu, advantage, outside):
    current = torch.tensor([math.log(pi)], requires_grad=True)
    t = terms(
        current=current,
        proximal=current.detach(),
        behaviour=torch.tensor([math.log(mu)]),
        entropy=torch.zeros(1),
        advantage=torch.tensor([advantage]),
        row=torch.tensor([0]),
    )
    loss, masked = DPPO(entropy_coef=0.0).loss(t)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-pi / mu * advantage)
    assert masked.item() is outside
    assert current.grad.item() == pytest.approx(0.0 if outside else -pi / mu * advantage)


def test_binary_divergences():
    p, q = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert policy.binary_tv(p, q).item() == pytest.approx(0.25)
    # KL(mu || pi), mu = 1/4: 1/4 ln(1/2) + 3/4 ln(3/2)
    assert policy.binary_kl(p, q).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert policy.binary_kl(p, p).item() == pytest.approx(0.0, abs=1e-7)


def test_an_algorithm_of_ones_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from trainer.algorithms import Algorithm\n\n"
        "@dataclass(frozen=True)\n"
        "class Plain(Algorithm):\n"
        '    """REINFORCE."""\n\n'
        "    scale: float = 2.0\n\n"
        "    def objective(self, ratio, old, terms):\n"
        "        return self.scale * ratio * terms.advantage, ratio < 0\n"
    )
    algorithm = make(f"{file}:Plain")
    assert algorithm.algorithm == f"{file}:Plain"
    assert replace(algorithm, entropy_coef=0.0).loss(terms())[0].tolist() == pytest.approx([-4.0, -2.0, 1.0])
    for name, message in (
        ("dap", "did you mean 'dapo'"),
        (f"{file}:Other", "has no dataclass Other"),
        (f"{tmp_path}/none.py:X", "there is no file"),
    ):
        with pytest.raises(ValueError, match=message):
            find(name)
