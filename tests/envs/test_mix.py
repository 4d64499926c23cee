from __future__ import annotations

from collections import Counter

import pytest

from envs import mix


def test_an_argument_may_be_json():
    text = 'verifiers?env=x&args={"a":1,"b":[2,3]}'
    assert mix(f"{text},code_exec=3").names == (text, "code_exec")


def test_shares_are_kept_closely_from_any_position() -> None:
    made = mix("code_exec, doc_search=0.5,negotiation?level=2&opponent=soft=2.5")
    assert made.names == ("code_exec", "doc_search", "negotiation?level=2&opponent=soft")
    assert made.shares == pytest.approx((0.25, 0.125, 0.625))
    for start in (0, 12_345):
        counted = Counter(made.pick(start + i) for i in range(160))
        assert [counted[name] for name in made.names] == pytest.approx([40, 20, 100], abs=4)
    assert [made.pick(i) for i in range(50)] == [
        mix("code_exec,doc_search=.5,negotiation?level=2&opponent=soft=2.5").pick(i) for i in range(50)
    ]


@pytest.mark.parametrize("text", ["doc_search", "doc_search?level=2", "./a.py:B?level=2&x=y=3", "acme/V=2"])
def test_one_environment_is_a_mix_of_one(text: str) -> None:
    assert {mix(text).pick(i) for i in range(20)} == {
        text.removesuffix("=3") if "x=y" in text else text.removesuffix("=2") if "/V" in text else text
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no environment"),
        ("a,a", "twice"),
        ("a=0", "above 0"),
        ("a=-1", "above 0"),
        ("a=inf", "above 0"),
        ("a=x", "not a weight"),
    ],
)
def test_wrong_mixes_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        mix(text)
