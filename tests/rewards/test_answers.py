from __future__ import annotations

import pytest

from rewards.exact import exact_match, normalise, numeric_match
from rewards.f1 import token_f1


@pytest.mark.parametrize(
    ("text", "normal"),
    [("The  Eiffel Tower!", "eiffel tower"), ("A.B.", "ab"), ("  ", ""), ("an", ""), ("Ünï", "ünï"), ("ﬁne", "fine")],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "gold", "match"),
    [
        ("oslo", "Oslo", 1.0),
        ("The Oslo.", ["Bergen", "Oslo"], 1.0),
        ("Oslo or Bergen", "Oslo", 0.0),
        ("", "Oslo", 0.0),
        ("", "", 0.0),
        ("the", "a", 0.0),
        ("Oslo", [], 0.0),
    ],
)
def test_exact_match(answer: str, gold: str | list[str], match: float) -> None:
    assert exact_match(answer, gold) == match


@pytest.mark.parametrize(
    ("answer", "gold", "match"),
    [
        ("1,234.50", 1234.5, 1.0),
        ("$3", 3, 1.0),
        ("12%", 12, 1.0),
        ("-1e3", -1000, 1.0),
        (".5", 0.5, 1.0),
        ("3 4", 3, 0.0),
        ("3 or 4", 3, 0.0),
        ("", 0, 0.0),
        ("nan", float("nan"), 0.0),
        ("inf", float("inf"), 0.0),
        ("1e999", 1, 0.0),
        ("1,23", 123, 0.0),
        ("3.0000001", 3, 1.0),
        ("3.001", 3, 0.0),
    ],
)
def test_numeric_match(answer: str, gold: float, match: float) -> None:
    assert numeric_match(answer, gold) == match


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("red house", "the red house", 1.0),
        ("red", "red house", 2 / 3),
        ("red red red house", "red house", 2 / 3),
        ("blue", "red house", 0.0),
        ("", "red", 0.0),
        ("", "", 0.0),
        ("red", ["blue house", "red car"], 2 / 3),
        ("red", [], 0.0),
    ],
)
def test_token_f1(answer: str, gold: str | list[str], f1: float) -> None:
    assert token_f1(answer, gold) == pytest.approx(f1)
