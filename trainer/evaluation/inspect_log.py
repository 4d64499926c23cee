"""`inspect.eval`: an evaluation as a log of inspect_ai, whose viewer (`inspect view`) then shows it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envs.suite import Limits
from envs.types import Message
from trainer.evaluation.statistics import Estimate
from trainer.evaluation.store import EPISODES, Played, Record
from trainer.evaluation.summary import Key, Result

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

LOG = "inspect.eval"
SCORER = "score"


def check() -> None:
    """Raise `ValueError` where inspect_ai is not installed."""
    if find_spec("inspect_ai") is None:
        raise ValueError("--inspect needs inspect_ai: pip install 'slipstream-rl[inspect]'")


def write(folder: Path, played: Played, result: Result, records: Mapping[Key, Record]) -> Path:
    """Put the log into the evaluation's folder."""
    from inspect_ai.log import write_eval_log  # it and what it brings along take seconds to import

    ended = datetime.fromtimestamp((folder / EPISODES).stat().st_mtime, UTC).isoformat(timespec="seconds")
    path = folder / LOG
    write_eval_log(log_of(played, result, records, ended), str(path), format="eval")
    return path


def log_of(played: Played, result: Result, records: Mapping[Key, Record], ended: str) -> EvalLog:
    """The whole log: a sample is an episode, an epoch an attempt. Errored episodes are samples with an error."""
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
    )
    from inspect_ai.model import GenerateConfig, ModelUsage

    suite, whole = played.suite, result.whole
    metrics = _metrics("mean", whole.score)
    for k, value in whole.pass_at.items():
        metrics |= _metrics(f"pass@{k}", value)
    for k, value in whole.pass_all.items():
        metrics |= _metrics(f"pass^{k}", value)
    spent = result.spent
    usage = ModelUsage(
        input_tokens=spent.prompt_tokens,
        output_tokens=spent.sampled_tokens,
        total_tokens=spent.prompt_tokens + spent.sampled_tokens,
    )
    tasks = sorted({task for task, _ in records})
    return EvalLog(
        status="success" if result.complete else "error",
        eval=EvalSpec(
            created=ended,
            task=result.suite,
            task_version=result.suite_hash,
            dataset=EvalDataset(name=result.suite, samples=len(tasks), sample_ids=[str(task) for task in tasks]),
            model=f"slipstream/{result.model}",
            model_generate_config=GenerateConfig(
                temperature=suite.sampling.temperature,
                top_p=suite.sampling.top_p,
                max_tokens=suite.limits.max_reply_tokens,
                seed=suite.sampling.seed,
            ),
            config=EvalConfig(epochs=suite.attempts),
            metadata={
                "environments": played.environments,
                "weights": played.weights,
                "weight_version": played.weight_version,
            },
        ),
        results=EvalResults(
            total_samples=whole.planned,
            completed_samples=whole.scored,
            scores=[
                EvalScore(
                    name=SCORER,
                    scorer=SCORER,
                    scored_samples=whole.scored,
                    unscored_samples=whole.planned - whole.scored,
                    metrics={name: EvalMetric(name=name, value=value) for name, value in metrics.items()},
                )
            ],
            metadata=msgspec.to_builtins({"rows": result.rows, "baseline": result.baseline}),
        ),
        stats=EvalStats(started_at=ended, completed_at=ended, model_usage={f"slipstream/{result.model}": usage}),
        samples=[_sample(record, result.model, suite.limits) for _, record in sorted(records.items())],
    )


def _metrics(name: str, value: Estimate) -> dict[str, float]:
    found = {name: value.mean, f"{name} low": value.low, f"{name} high": value.high}
    return {key: number for key, number in found.items() if number is not None}


def _sample(record: Record, name: str, limits: Limits) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample, EvalSampleLimit
    from inspect_ai.model import ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

    episode, ticket = record.episode, record.ticket
    messages = [_message(message, name) for message in episode.messages]
    first = next((i for i, message in enumerate(episode.messages) if message.role == "assistant"), len(messages))
    last = next((m.content for m in reversed(episode.messages) if m.role == "assistant"), "")
    model = f"slipstream/{name}"
    usage = ModelUsage(
        input_tokens=episode.prompt_tokens,
        output_tokens=episode.sampled_tokens,
        total_tokens=episode.prompt_tokens + episode.sampled_tokens,
    )
    sample = EvalSample(
        id=str(record.task),
        epoch=record.attempt + 1,
        input=messages[:first] or "",
        target="",
        messages=messages,
        output=ModelOutput.from_content(model, last),
        metadata={
            "environment": ticket.env,
            "split": ticket.split,
            "index": ticket.index,
            "kind": episode.kind,
            "status": str(episode.status),
            "components": episode.components,
            "labels": list(episode.labels),
            "counts": episode.counts,
            "isolation": episode.isolation,
            "weight_versions": sorted(set(episode.versions())),
        },
        model_usage={model: usage},
        total_time=episode.wall_s,
        turn_count=episode.turns,
    )
    if record.score is None:
        sample.error = EvalError(message=episode.error, traceback=episode.error, traceback_ansi=episode.error)
        return sample
    sample.scores = {
        SCORER: Score(value=record.score, answer=last, metadata={"reward": episode.reward, **episode.components})
    }
    for reason, kind, most in (
        ("turns", "turn", episode.turns),
        ("tokens", "token", limits.max_reply_tokens),
        ("context", "context", limits.context),
    ):
        if episode.counts.get(f"truncated_{reason}"):
            sample.limit = EvalSampleLimit.model_validate({"type": kind, "limit": most})
    return sample


def _message(message: Message, model: str) -> Any:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser
    from inspect_ai.tool import ToolCall

    if message.role == "assistant":
        calls = [
            ToolCall(id=c.id, function=c.name, arguments=c.arguments, parse_error=c.error or None)
            for c in message.tool_calls
        ]
        return ChatMessageAssistant(content=message.content, tool_calls=calls or None, model=model, source="generate")
    if message.role == "tool":
        return ChatMessageTool(content=message.content, tool_call_id=message.tool_call_id, function=message.name)
    return (ChatMessageSystem if message.role == "system" else ChatMessageUser)(content=message.content)
