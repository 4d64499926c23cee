"""Which task an index means, and why no held-out task is ever a training task.

A task is a pure function of (environment name, version, split, index): these seed the generator that the environment
samples with. Splits are disjoint by construction: what is sampled is hashed, a quarter of all hashes belongs to
"heldout" and the rest to "train", and a draw that belongs to the other split is drawn again from the same generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np

from envs.types import Split

SPLITS: tuple[Split, ...] = get_args(Split)
HELDOUT_SHARE = 0.25
MAX_DRAWS = 10_000

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def task_rng(name: str, version: int, split: Split, index: int) -> np.random.Generator:
    """The generator that samples task `index`. Raises `ValueError` for an unknown split or a negative index."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if index < 0:
        raise ValueError(f"a task index must be 0 or more, got {index}")
    digest = hashlib.blake2b(f"{name}\0{version}\0{split}\0{index}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def content_hash(content: Any) -> bytes:
    """16 bytes that identify a task's content. Raises `TypeError` for what is not JSON-like data."""
    return hashlib.blake2b(_encoder.encode(content), digest_size=16).digest()


def split_of(content: Any) -> Split:
    """The split to which this content belongs, wherever and whenever it is sampled."""
    fraction = int.from_bytes(content_hash(content)[:8], "big") / 2**64
    return "heldout" if fraction < HELDOUT_SHARE else "train"


def sample_in_split(
    sample: Callable[[np.random.Generator], dict[str, Any]],
    key: Callable[[dict[str, Any]], Any],
    rng: np.random.Generator,
    split: Split,
) -> dict[str, Any]:
    """Draw payloads until one's content, `key(payload)`, belongs to `split`.

    Raises `ValueError` if none of `MAX_DRAWS` does: the environment has too few different tasks to hold any out.
    """
    for _ in range(MAX_DRAWS):
        payload = sample(rng)
        if split_of(key(payload)) == split:
            return payload
    raise ValueError(f"none of {MAX_DRAWS} sampled tasks belongs to split {split!r}: there are too few different tasks")
