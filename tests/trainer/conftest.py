"""Small models and groups for the trainer's tests."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from envs.types import Status
from rollout.engine import Sampling
from rollout.wire import Episode, Group, Sequence, Ticket
from trainer.attention import NAME as PACKED_ATTENTION

VOCAB = 61


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A random 2-layer Llama in transformers' format."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tiny_folder):
    return LlamaForCausalLM.from_pretrained(tiny_folder, attn_implementation=PACKED_ATTENTION).eval()


def ticket(index: int, *, attempt: int = 0, group_size: int = 2, purpose: str = "train") -> Ticket:
    return Ticket(index, attempt, purpose, "demo-v0", "train", index, group_size, Sampling(max_tokens=8))


def sequence(length: int, *, seed: int = 0, prompt: int = 3, version: int = 0) -> Sequence:
    """Random tokens; all after the prompt are sampled but every fourth, which stands for a tool's."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (length,), generator=draw).tolist()
    sampled = [i >= prompt and i % 4 != 3 for i in range(length)]
    logprobs = [-3.0 - torch.rand(1, generator=draw).item() if s else 0.0 for s in sampled]
    return Sequence(tokens, sampled, logprobs, [version if s else -1 for s in sampled])


def episode(reward: float | None, *sequences: Sequence, error: str = "") -> Episode:
    status = Status.ERRORED if reward is None else Status.TERMINATED
    components = {} if reward is None else {"success": reward}
    return Episode(status, list(sequences), [], reward, components, error=error)


def group(index: int, rewards: list[float | None], *, version: int = 0, attempt: int = 0, length: int = 12) -> Group:
    episodes = [
        episode(r, sequence(length + 2 * i, seed=100 * index + i, version=version)) for i, r in enumerate(rewards)
    ]
    return Group(ticket(index, attempt=attempt, group_size=len(rewards)), episodes, "w0")
