"""Imitation: supervised fine-tuning on demonstrations, `python -m trainer.sft --env ENV --demos FILE --out FOLDER`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro
from torch import nn
from transformers import PreTrainedModel

from envs.types import ToolSpec
from rollout.template import ChatTemplate
from trainer import demos, optimizers
from trainer.attention import packed_logits
from trainer.batch import Row, collate, microbatches, row_of
from trainer.config import Flat, OptimConfig


@dataclass(frozen=True)
class SFTConfig:
    """Fine-tune a model to imitate demonstrations, as a start for reinforcement learning."""

    env: str = "code_exec"
    """Environments, with weights for a mix, whose demonstrators are played where no `--demos` are given."""
    model: str = "embedded"
    """A transformers folder or a hub id to start from; "embedded" makes a small one from nothing."""
    out: Path = Path("sft")
    """Folder for the model, in transformers' format."""
    demos: Path | None = None
    """A JSONL file of demonstrations: {"env": ..., "messages": [...]} a line, as `--save-demos` writes it."""
    save_demos: Path | None = None
    """Write the demonstrations that were played to this file."""
    episodes: int = 3000
    """Demonstrations to play where none are given."""
    steps: int = 400
    """Optimizer steps."""
    batch: int = 48
    """Demonstrations a step."""
    seed: int = 0
    """Of the demonstrations, their order, and a new model's weights."""
    threads: int = 0
    """Threads; 0 is one a core."""
    optim: Flat[OptimConfig] = field(
        default_factory=lambda: OptimConfig(lr=3e-3, muon_lr=0.02, schedule="linear", warmup_steps=25)
    )


def rows_of(
    template: ChatTemplate, played: Sequence[demos.Demo], tools: dict[str, tuple[ToolSpec, ...]], context: int
) -> list[Row]:
    """Token rows; `sampled` marks what the demonstrator said, with the end of turn that follows. Rows longer than
    `context` are left out."""
    return [
        row_of(sequence, 1.0, index, index)
        for index, demo in enumerate(played)
        for sequence in demos.sequences_of(template, demo.messages, tools[demo.env])
        if len(sequence.tokens) <= context
    ]


def imitate(
    model: PreTrainedModel,
    rows: Sequence[Row],
    config: SFTConfig,
    *,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Minimise -mean log pi over the demonstrator's tokens. Returns the last losses' mean, in nats a token.

    Rows of similar length make a batch, so that packed attention wastes little; batches come in random order. Raises
    `ValueError` for no rows.
    """
    if not rows:
        raise ValueError("there are no demonstrations to imitate")
    draw = random.Random(config.seed)
    device = next(model.parameters()).device
    steppers = optimizers.build(model, config.optim, momentum=0.95)
    peaks = optimizers.peaks(steppers)
    queue: list[list[Row]] = []
    losses: list[float] = []
    for step in range(config.steps):
        if not queue:
            queue = _batches(rows, config.batch, draw)
        batch = queue.pop()
        share = optimizers.schedule(step, config.steps, config.optim.schedule, config.optim.warmup_steps)
        optimizers.set_learning_rate(steppers, peaks, max(0.02, share))
        scale = 1 / sum(r.size for r in batch)
        total = 0.0
        for bin_ in microbatches(batch, config.optim.micro_tokens):
            packed = collate([batch[i] for i in bin_], [scale] * len(bin_), device)
            distribution = packed_logits(model, packed.layout, packed.keep).float().log_softmax(-1)
            loss = -distribution[packed.predict, packed.targets].sum() * scale
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip or float("inf"))
        for stepper in steppers:
            stepper.step()
        model.zero_grad(set_to_none=True)
        losses.append(total)
        report(step + 1, total)
    return sum(losses[-20:]) / len(losses[-20:])


def _batches(rows: Sequence[Row], size: int, draw: random.Random) -> list[list[Row]]:
    """One pass over `rows`: windows of eight batches' rows are sorted by length and cut into batches."""
    order = list(rows)
    draw.shuffle(order)
    batches = []
    for start in range(0, len(order), 8 * size):
        window = sorted(order[start : start + 8 * size], key=lambda r: len(r.tokens))
        batches += [window[i : i + size] for i in range(0, len(window), size)]
    draw.shuffle(batches)
    return batches


def main(args: Sequence[str] | None = None) -> int:
    config = tyro.cli(SFTConfig, args=args, prog="python -m trainer.sft", config=(tyro.conf.CascadeSubcommandArgs,))
    from trainer.embedded import blank  # imports this module
    from trainer.learner import load_model, pick_device
    from trainer.live import bar

    try:
        torch.set_num_threads(config.threads or torch.get_num_threads())
        played = demos.read(config.demos) if config.demos else demos.play(config.env, config.episodes, config.seed)
        if config.save_demos:
            demos.write(config.save_demos, played)
        source = blank(config.out, played, config.seed) if config.model == "embedded" else config.model
        template = ChatTemplate.load(str(source))
        model = load_model(str(source), pick_device(config.optim.device))
        context = min(4096, getattr(model.config, "max_position_embeddings", 4096))
        rows = rows_of(template, played, demos.tools_of(played), context)
        began = time.monotonic()
        with bar("imitation", config.steps) as report:
            loss = imitate(model, rows, config, report=report)
        model.save_pretrained(config.out)
        template.tokenizer.save_pretrained(config.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(rows)} demonstrations, loss {loss:.3f} nats a token, {time.monotonic() - began:.0f} s -> {config.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
