"""Small tokenizers, chat templates and models that the rollout tests share. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CORPUS = [
    "system user assistant tool",
    "run_code sum(x) the list of numbers hello world",
    "one two three four five",
] * 4

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<tool_call><|im_end|>\n' }}{% endif %}" + CHATML
# Drops earlier reasoning, as templates of reasoning models do.
REWRITING = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
TRIMMING = CHATML.replace("m['content']", "m['content'] | trim")
# Knows neither system nor tool messages, and wants the roles to alternate.
STRICT = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
)


def tokenizer(chat_template: str | None = CHATML, **config: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with ChatML's control tokens and Hermes' markup tokens (those are not special)."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<pad>", **config)
    made.add_tokens([AddedToken(t, special=False) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    made.chat_template = chat_template
    return made


def llama(path: Path, seed: int = 0, *, scale: float = 1.0, **changes: Any) -> LlamaForCausalLM:
    """A random Llama model of a few thousand parameters, saved at `path` with a tokenizer. `scale` sharpens it."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 384,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return model
