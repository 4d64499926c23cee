"""The embedded default model: made on the spot, so that a run needs no download.

A Llama of about 1M parameters in transformers' format with a byte-level BPE tokenizer of its own, both made from the
environments' scripted demonstrations. The demonstrators are imperfect on purpose: they leave reinforcement learning
something to improve on.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import envs
from envs import levels, scoring, splits, tool_env
from rollout import chat, template, tool_calls
from rollout.template import ChatTemplate
from rollout.tool_calls import Format
from trainer import attention, batch, demos, optimizers, sft
from trainer.config import OptimConfig
from trainer.learner import load_model

VOCABULARY = 768
CONTEXT = 2048
PAD, END, USER, ASSISTANT, TOOL = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|tool|>"
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|assistant|>' if m.role == 'assistant' else '<|tool|>' if m.role == 'tool' else '<|user|>' }}"
    "{{ m.content }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL_FORMAT: Format = "pythonic"
# Digits stay single, so that numbers are spelt one way only; words, names and runs of punctuation may merge.
WORDS = r" ?\p{N}| ?[\p{L}_]+| ?[^\s\p{L}\p{N}_]+|\s+"

Progress = Callable[[str, int, int], None]  # (stage, done, of)


def imitation(seed: int) -> sft.SFTConfig:
    """The recipe of the imitation stage."""
    optim = OptimConfig(lr=3e-3, muon_lr=0.02, schedule="linear", warmup_steps=25)
    return sft.SFTConfig(episodes=3000, steps=400, batch=48, seed=seed, optim=optim)


def build(env: str, seed: int, progress: Progress = lambda stage, done, of: None) -> Path:
    """The embedded model for the mix `env`, from the cache or made now (a minute or two on one core).

    The cache's key is the content of everything that the model is made from.
    """
    folder = cache_folder() / f"embedded-{_key(env, seed)}"
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        _make(making, env, seed, progress)
        try:
            making.rename(folder)
        except OSError:  # another run made it meanwhile
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slipstream"


def _make(folder: Path, env: str, seed: int, progress: Progress) -> None:
    config = imitation(seed)
    progress("demonstrations", 0, config.episodes)
    played = demos.play(
        env, config.episodes, seed, report=lambda done: progress("demonstrations", done, config.episodes)
    )
    blank(folder, played, seed)
    template = ChatTemplate.load(str(folder))
    rows = sft.rows_of(template, played, demos.tools_of(played), CONTEXT)
    model = load_model(str(folder), "cpu")
    sft.imitate(model, rows, config, report=lambda step, loss: progress("imitation", step, config.steps))
    model.save_pretrained(folder)


def blank(folder: Path, played: Sequence[demos.Demo], seed: int) -> Path:
    """Write an untrained model to `folder`, with a tokenizer made from the demonstrations `played`."""
    tools = demos.tools_of(played)
    texts = [
        demos.text_of(m, TOOL_FORMAT, tools[demo.env]) if m.role == "assistant" else m.content
        for demo in played
        for m in demo.messages
    ]
    tokenizer = _tokenizer(texts)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    _initialise(model, config)
    model.save_pretrained(folder)
    return folder


def _initialise(model: LlamaForCausalLM, config: LlamaConfig) -> None:
    """Scale each matrix by its inputs, and those that write to the residual stream by the depth (GPT-2's rule)."""
    for name, p in model.named_parameters():
        if p.dim() == 2 and "embed" not in name:
            torch.nn.init.normal_(p, std=0.7 * p.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.data.mul_((2 * config.num_hidden_layers) ** -0.5)


def _tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END, USER, ASSISTANT, TOOL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, tool_format=TOOL_FORMAT, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _key(env: str, seed: int) -> str:
    """A hash of the recipe, of this code and of the environments' own source files."""
    digest = hashlib.sha256(f"{sorted(envs.mix(env).names)} {env} {imitation(seed)} {torch.__version__}".encode())
    shared = (sft, demos, optimizers, batch, attention, template, chat, tool_calls, levels, splits, scoring, tool_env)
    sources = {Path(__file__), *(Path(module.__file__ or "") for module in shared)}
    for name in envs.mix(env).names:
        home = Path(inspect.getfile(type(envs.make(name))))
        sources |= {home} if home.name != "env.py" else set(home.parent.glob("*.py"))
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
