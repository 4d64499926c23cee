"""Policy-gradient algorithms: each is one file that composes the shared pieces.

`advantages.py` turns returns into advantages, `policy.py` log-probabilities into objectives, `aggregate.py` says how
much each token weighs, and `base.py` has the loss that they make up.
"""

from __future__ import annotations

import dataclasses
import difflib

from rewards.files import load_file
from trainer.algorithms.base import Algorithm, Outcomes, TokenTerms
from trainer.algorithms.cispo import CISPO
from trainer.algorithms.dapo import DAPO
from trainer.algorithms.dppo import DPPO
from trainer.algorithms.dr_grpo import DrGRPO
from trainer.algorithms.grpo import GRPO
from trainer.algorithms.gspo import GSPO
from trainer.algorithms.reinforce_pp import ReinforcePP
from trainer.algorithms.rloo import RLOO

ALGORITHMS: dict[str, type[Algorithm]] = {
    each().algorithm: each for each in (GRPO, DrGRPO, DAPO, GSPO, CISPO, DPPO, RLOO, ReinforcePP)
}

__all__ = ["ALGORITHMS", "Algorithm", "Outcomes", "TokenTerms", "find", "make"]


def find(name: str) -> type[Algorithm]:
    """The algorithm called `name`, or the class of `file.py:Class`.

    Raises `ValueError`, one line, with the nearest name.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    place, colon, attribute = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.0)
        raise ValueError(f"there is no --algorithm {name!r}, did you mean {near[0]!r}? Or give file.py:Class")
    found = getattr(load_file(place), attribute, None)
    if not (isinstance(found, type) and issubclass(found, Algorithm) and dataclasses.is_dataclass(found)):
        raise ValueError(f"--algorithm {name}: {place} has no dataclass {attribute} that extends Algorithm")
    return found


def make(name: str) -> Algorithm:
    """The algorithm called `name` with its defaults. Raises `ValueError` (see `find`)."""
    return find(name)(algorithm=name)
