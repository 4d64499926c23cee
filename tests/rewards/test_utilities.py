from __future__ import annotations

import pytest

from rewards.negotiation import (
    best_accepted,
    deals,
    is_deal,
    nash_product,
    pareto_distance,
    pareto_front,
    rest,
    share,
    utility,
)

COUNTS, MINE, THEIRS = (2, 1), (1, 3), (2, 1)  # everything is worth 5 to either side


def test_deals_by_hand() -> None:
    assert list(deals(COUNTS)) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert rest((2, 0), COUNTS) == (0, 1)
    assert utility((1, 1), MINE) == 4
    assert share((1, 1), COUNTS, MINE) == pytest.approx(0.8)
    assert share((0, 0), (0, 0), MINE) == 0.0


def test_the_front_by_hand() -> None:
    # (keep): mine/theirs  00: 0/5  01: 3/4  10: 1/3  11: 4/2  20: 2/1  21: 5/0
    assert pareto_front(COUNTS, MINE, THEIRS) == [(0, 0), (0, 1), (1, 1), (2, 1)]
    assert pareto_distance((0, 1), COUNTS, MINE, THEIRS) == 0.0
    # (1, 0) is at shares (0.2, 0.6); the nearest of the front is (0, 1), at (0.6, 0.8)
    assert pareto_distance((1, 0), COUNTS, MINE, THEIRS) == pytest.approx((0.4**2 + 0.2**2) ** 0.5)
    assert nash_product((0, 1), COUNTS, MINE, THEIRS) == pytest.approx(0.6 * 0.8)
    assert max(deals(COUNTS), key=lambda keep: nash_product(keep, COUNTS, MINE, THEIRS)) == (0, 1)


def test_the_best_accepted_deal() -> None:
    assert best_accepted(COUNTS, MINE, lambda keep: share(rest(keep, COUNTS), COUNTS, THEIRS) >= 0.4) == (0.8, (1, 1))
    assert best_accepted(COUNTS, MINE, lambda keep: False) is None


@pytest.mark.parametrize("keep", [(3, 0), (-1, 0), (1,), (1, 0, 0), (True, 0), (1.0, 0), ()])
def test_what_is_no_deal(keep: tuple[int, ...]) -> None:
    assert not is_deal(keep, COUNTS)


def test_every_enumerated_deal_is_one() -> None:
    assert all(is_deal(keep, COUNTS) for keep in deals(COUNTS))
