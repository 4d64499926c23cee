"""Gymnasium's spaces for text that may be anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789(){}[]\"'=,.:\n-éß漢🙂"
_SAMPLE_CHARS = 64


class Unicode(spaces.Text):
    """Any valid Unicode text of at most `max_length` characters, the empty one and spaces included.

    Gymnasium's own `Text` lists the characters it allows; here that list is only what `sample` draws from.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLE_ALPHABET, seed=seed)

    def contains(self, x: Any) -> bool:
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        try:
            x.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return False
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(min(self.max_length, _SAMPLE_CHARS) + 1))
        return super().sample(mask=(length, None))

    @property
    def is_np_flattenable(self) -> bool:
        return False
