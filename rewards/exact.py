"""Exact match of a short answer, after the normalisation that question answering agreed on."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"[$€£]?\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?)\s*%?")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, English articles and repeated spaces (SQuAD, 1606.05250)."""
    text = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, gold: str | Iterable[str]) -> float:
    """1.0 if `answer` equals one of the `gold` answers after `normalise`, else 0.0.

    An answer that normalises to nothing never matches, so an empty reply earns nothing even from an empty gold answer.
    """
    golds = [gold] if isinstance(gold, str) else list(gold)
    found = normalise(answer)
    return float(bool(found) and any(found == normalise(each) for each in golds))


def numeric_match(answer: str, gold: float, *, relative: float = 1e-6) -> float:
    """1.0 if `answer` is one number within `relative` of `gold` (absolute below 1), else 0.0.

    Thousands separators, a currency sign in front and a per cent sign behind are read over; a text that holds more
    than the number earns nothing, so that listing candidates does not pay.
    """
    match = _NUMBER.fullmatch(answer.strip())
    try:
        number = float(match.group(1).replace(",", "")) if match else float("nan")
    except ValueError:
        return 0.0
    return float(abs(number - gold) <= relative * max(1.0, abs(gold)))
