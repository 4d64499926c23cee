"""How much each sampled token weighs in the loss of a whole batch.

The weights depend on the batch alone, never on how it is cut into micro-batches or spread over ranks, so neither does
the gradient.
"""

from __future__ import annotations

from collections import Counter


def token_mean(sizes: list[int], episodes: list[int], longest: int) -> list[float]:
    """1 / (sampled tokens of the batch): DAPO (arXiv 2503.14476)."""
    return [1 / sum(sizes)] * len(sizes)


def sequence_mean(sizes: list[int], episodes: list[int], longest: int) -> list[float]:
    """1 / (episodes x the episode's sampled tokens): GRPO (arXiv 2402.03300)."""
    tokens: Counter[int] = Counter()
    for episode, size in zip(episodes, sizes, strict=True):
        tokens[episode] += size
    return [1 / (len(tokens) * tokens[episode]) for episode in episodes]


def constant(sizes: list[int], episodes: list[int], longest: int) -> list[float]:
    """1 / (episodes x the longest possible episode): Dr. GRPO (arXiv 2503.20783)."""
    return [1 / (len(set(episodes)) * longest)] * len(sizes)


AGGREGATIONS = {"token_mean": token_mean, "sequence_mean": sequence_mean, "constant": constant}
