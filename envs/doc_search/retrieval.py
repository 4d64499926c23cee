"""BM25 over a handful of documents, in the process."""

from __future__ import annotations

import os
import re
from functools import lru_cache

import numpy as np

# Where JAX is installed, bm25s runs it once on import, which would reserve most of a GPU; nothing here needs it there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import bm25s

TITLE_WEIGHT = 3  # how often a title's words count, so that a document about X outranks one that mentions X


class Index:
    """A BM25 index of (title, text) documents."""

    def __init__(self, documents: tuple[tuple[str, str], ...]) -> None:
        self.documents = documents
        self._bm25 = bm25s.BM25()
        words = [_words(title) * (TITLE_WEIGHT - 1) + _words(text) for title, text in documents]
        self._bm25.index(words, show_progress=False)

    def search(self, query: str, k: int) -> list[int]:
        """Positions of the up to `k` best documents that share a word with `query`, best first."""
        words = _words(query)
        if not words:
            return []
        scores = self._bm25.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(i) for i in best if scores[i] > 0]


@lru_cache(maxsize=256)
def index_of(documents: tuple[tuple[str, str], ...]) -> Index:
    """The index of these documents, kept: the episodes of a group search the same ones."""
    return Index(documents)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
