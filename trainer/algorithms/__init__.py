"""Policy-gradient algorithms: each is one file that composes the shared pieces.

`advantages.py` turns a group's rewards into advantages, `policy.py` turns log-probabilities into a surrogate objective,
`aggregate.py` says how much each token weighs.
"""

from trainer.algorithms.base import Algorithm, TokenTerms
from trainer.algorithms.grpo import GRPO

ALGORITHMS: dict[str, type[Algorithm]] = {"grpo": GRPO}

__all__ = ["ALGORITHMS", "GRPO", "Algorithm", "TokenTerms"]
