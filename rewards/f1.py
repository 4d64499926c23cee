"""Token F1 of a short answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rewards.exact import normalise


def token_f1(answer: str, gold: str | Iterable[str]) -> float:
    """The best F1 between the words of `answer` and of one of the `gold` answers, in [0, 1] (SQuAD, 1606.05250).

    Words count as often as they occur, so listing every candidate answer costs precision.
    """
    golds = [gold] if isinstance(gold, str) else list(gold)
    return max((_f1(normalise(answer).split(), normalise(each).split()) for each in golds), default=0.0)


def _f1(found: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(found) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(found), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)
