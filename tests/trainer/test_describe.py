"""Means over episodes, with errors apart."""

from __future__ import annotations

import pytest

from rollout.wire import Group
from tests.trainer.conftest import episode, group, sequence, ticket
from trainer.describe import describe
from trainer.evals import evaluation_figures
from trainer.live import plain_line, sparkline
from trainer.report import pick


def test_an_error_is_in_no_mean_and_is_counted():
    figures = describe([group(0, [1.0, None]), group(1, [0.0, 1.0])])
    assert figures["reward/mean"] == pytest.approx(2 / 3)
    assert figures["episodes/success"] == pytest.approx(2 / 3)
    assert (figures["episodes/errored"], figures["episodes/count"]) == (1, 4)


def test_all_errors_give_no_mean_rather_than_a_zero():
    figures = describe([group(0, [None, None])])
    assert "reward/mean" not in figures
    assert "episodes/success" not in figures
    assert figures["episodes/errored"] == 2


def test_an_evaluation_has_a_standard_error_and_counts_errors_apart():
    def one(index, reward):
        return Group(ticket(index, purpose="eval", group_size=1), [episode(reward, sequence(9, version=3))], "w")

    figures = evaluation_figures(2, [one(0, 1.0), one(1, 0.0), one(2, None), one(3, 1.0), one(4, 0.0)])
    assert figures["eval/demo-v0/success"] == 0.5
    assert figures["eval/demo-v0/stderr"] == pytest.approx((1 / 3) ** 0.5 / 2)  # s^2 = 4 * 0.25 / 3, n = 4
    assert figures["eval/errored"] == 1
    assert figures["eval/lag"] == 1


def test_worst_median_and_best():
    picked = pick([group(0, [0.5, 0.0]), group(1, [1.0, None])])
    assert [(title, e.reward) for title, _, e in picked] == [("worst", 0.0), ("median", 0.5), ("best", 1.0)]
    assert pick([group(0, [None, None])]) == []


def test_sparkline_and_plain_line():
    assert sparkline([0.0, 0.5, 1.0]) == " ▄█"
    assert sparkline([]) == ""
    line = plain_line({"step": 3, "reward/mean": 0.25, "policy/ratio_max": 99.0}, 10)
    assert line.startswith("step 3/10  reward 0.250")
    assert "ALARM ratio 99" in line


def test_a_component_called_mean_leaves_the_reward_alone():
    one = episode(0.25)
    one.components["mean"] = 9.0
    assert describe([Group(ticket(0, group_size=1), [one], "w0")])["reward/mean"] == 0.25
