"""One run of the peer's GRPOTrainer, in the peer's virtual environment.

    python -m benchmarks.peer.trl_side JOB.json RESULT.json

Settings that make it slow by default are off: gradient checkpointing, bfloat16 on a CPU, checkpoints, progress bars.
A whole batch is one forward pass, and one optimizer step uses each sample once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer import tasks

# How the library finds calls in a reply: Hermes JSON, as it ships it for Qwen, with this model's control tokens.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}


@dataclass(frozen=True)
class Job:
    """What to train on. `rows` are tasks' numbers, in the order of training."""

    task: str
    model: str
    rows: list[list[int]]
    steps: int
    groups: int
    group_size: int
    max_completion: int
    tool_iterations: int
    learning_rate: float
    threads: int


@dataclass(frozen=True)
class Result:
    """`ends_s[i]` is when step i ended, on a clock of its own; `logs` are the trainer's own, one object a step."""

    ends_s: list[float]
    logs: list[dict[str, float]]
    versions: dict[str, str]


def train(job: Job, scratch: Path) -> Result:
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

    torch.set_num_threads(job.threads)
    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    has_tools = job.task == "add"
    if has_tools:  # parsing costs time, which the single-turn task need not spend
        tokenizer.response_template = RESPONSE_TEMPLATE
    prompt, score = tasks.PROMPTS[job.task], tasks.SCORES[job.task]
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    def reward(completions: list[list[dict[str, str]]], numbers: list[list[int]], **kwargs: Any) -> list[float]:
        return [score(messages[-1]["content"], each) for messages, each in zip(completions, numbers, strict=True)]

    config = trl.GRPOConfig(
        output_dir=str(scratch),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=job.groups * job.group_size,
        num_generations=job.group_size,
        max_completion_length=job.max_completion,
        max_tool_calling_iterations=job.tool_iterations,
        max_steps=job.steps,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        scale_rewards="none",
        epsilon=0.2,
        epsilon_high=0.28,
        shuffle_dataset=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": prompt(row)}], "numbers": row} for row in job.rows]
        ),
        processing_class=tokenizer,
        callbacks=[Clock()],
        tools=[tasks.add] if has_tools else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    versions = {module.__name__: str(module.__version__) for module in (trl, transformers, torch)}
    return Result(ends, [log for log in trainer.state.log_history if "reward" in log], versions)


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    result = train(Job(**json.loads(source.read_text())), source.parent / "output")
    target.write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
