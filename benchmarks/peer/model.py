"""The model that both trainers start from: the embedded one's shape and recipe, with a template that both can parse."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.peer import environments, tasks
from envs.types import Message, ToolSpec
from rollout.template import ChatTemplate
from trainer import demos, embedded, sft
from trainer.learner import load_model

ENVIRONMENTS = {"recite": "benchmarks.peer.environments:Recite", "add": "benchmarks.peer.environments:Add"}
EPISODES, STEPS = 3000, 200
CONTEXT = 256  # longer demonstrations, of which there are none, would be left out
# Calls are Hermes JSON, which the peer's library can be told to parse; tools are named, but not described, so that
# prompts are short on both sides. Assistant messages hold their calls as text here, and as data in the peer's checks.
TEMPLATE = (
    "{% if tools %}<|user|>tools:{% for t in tools %} {{ t.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}"
    "{{ '<|assistant|>' if m.role == 'assistant' else '<|tool|>' if m.role == 'tool' else '<|user|>' }}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build(report: Callable[[int, float], None] = lambda step, loss: None) -> Path:
    """The model's folder, from the cache or made now: about a minute on two cores."""
    digest = hashlib.sha256(torch.__version__.encode())
    for module in (tasks, environments, embedded, sft, demos, sys.modules[__name__]):
        digest.update(Path(str(module.__file__)).read_bytes())
    folder = embedded.cache_folder() / f"peer-{digest.hexdigest()[:16]}"
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        _make(making, report)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _make(folder: Path, report: Callable[[int, float], None]) -> None:
    played = demos.play(",".join(ENVIRONMENTS.values()), EPISODES, seed=0)
    tools = demos.tools_of(played)
    spelt = [demos.Demo(d.env, [_spelt(m, d.env, tools) for m in d.messages]) for d in played]
    embedded.blank(folder, spelt, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.init_kwargs["tool_format"] = "hermes"
    tokenizer.save_pretrained(folder)
    rows = sft.rows_of(ChatTemplate.load(str(folder)), spelt, tools, CONTEXT)
    model = load_model(str(folder), "cpu")
    sft.imitate(model, rows, sft.SFTConfig(steps=STEPS), report=report)
    model.save_pretrained(folder)


def _spelt(message: Message, env: str, tools: dict[str, tuple[ToolSpec, ...]]) -> Message:
    """An assistant's message with its calls written into the text."""
    if message.role != "assistant":
        return message
    return Message("assistant", demos.text_of(message, "hermes", tools[env]))
