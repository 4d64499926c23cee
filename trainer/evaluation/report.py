"""`report.html`: the figures of an evaluation and its episodes, in one file that needs no network."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from envs.types import Status
from trainer.describe import score
from trainer.evaluation.store import TOKENIZER, Played, Record, groups_of
from trainer.evaluation.summary import Key, Result, task_means
from trainer.page import assemble, episodes, tokens

TABS = {"results": "Results", "episodes": "Episodes", "about": "About"}
SCRIPTS = ("page.js", *assemble.READER, "evaluation.js")
SHOWN = 400  # episodes at most

Records = Mapping[Key, Record]


def page(folder: Path, played: Played, result: Result, records: Records, others: Records) -> str:
    """The page of the evaluation in `folder`. `others` are the baseline's episodes, of which only scores are
    shown."""
    lines, bodies = _episodes(records)
    tokenizer = folder / TOKENIZER
    decode, source = tokens.load(tokenizer if tokenizer.exists() else None, result.model)
    ids = {token for _, body in bodies for sequence in body["sequences"] for token in sequence["tokens"]}
    missing = source if decode is None and ids else ""
    whole = result.whole
    data = {
        "name": f"{result.suite} · {result.model}",
        "status": {
            "state": "complete" if result.complete else "not complete",
            "tone": "good" if result.complete else "warn",
            "progress": f"{whole.scored} of {whole.planned} episodes scored",
        },
        "result": msgspec.to_builtins(result),
        "scores": _scores(records),
        "baselineScores": _scores(others),
        "episodes": {
            "lines": lines,
            "texts": episodes.texts(ids, decode),
            "note": _note(len(lines), len(records), missing),
        },
        "about": _about(folder, played, result),
    }
    return assemble.document("evaluation.html", TABS, SCRIPTS, data, bodies)


def _scores(records: Records) -> list[float]:
    """The mean score of each task."""
    return [round(value, 6) for _, value in task_means(records.values(), lambda r: r.score).values()]


def _episodes(records: Records) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """(the lines of the reader's list, each one's details by its name)."""
    groups = groups_of(records)
    seen = [
        episodes.Seen(
            number,
            member,
            None if episode.reward is None else score(episode),
            episode.reward,
            episode.status is not Status.TERMINATED or bool(episode.labels),
            sum(len(s.tokens) for s in episode.sequences),
        )
        for number, group in enumerate(groups)
        for member, episode in enumerate(group.episodes)
    ]
    lines, bodies = [], []
    for number, member in sorted(episodes.choose(seen, SHOWN)):
        line = episodes.line(number, member, groups[number], stale=False)
        lines.append(line)
        bodies.append((line["id"], episodes.body(groups[number].episodes[member], groups[number])))
    return lines, bodies


def _note(shown: int, total: int, without_texts: str) -> str:
    if not total:
        return "No episode was played."
    note = f"{shown:,} of {total:,} episodes are on this page; all of them are in episodes.jsonl."
    return f"{note} Tokens are shown as ids: {without_texts}." if without_texts else note


def _about(folder: Path, played: Played, result: Result) -> list[dict[str, Any]]:
    """The cards of the last tab: a title and its lines each."""
    suite, spent = played.suite, result.spent
    cards: dict[str, list[tuple[str, Any]]] = {
        "suite": [
            ("name", result.suite),
            ("what", suite.description),
            ("content", played.suite_hash),
            ("environments", ", ".join(played.environments)),
            ("attempts", suite.attempts),
            *((part.label, f"{part.tasks} tasks from {part.first} on") for part in suite.parts()),
        ],
        "limits and sampling": [
            *msgspec.to_builtins(suite.limits).items(),
            *msgspec.to_builtins(suite.sampling).items(),
        ],
        "model": [
            ("name", result.model),
            ("weights", played.weights or "not known"),
            ("weight version", played.weight_version),
        ],
        "spent": [
            ("prompt tokens", f"{spent.prompt_tokens:,}"),
            ("sampled tokens", f"{spent.sampled_tokens:,}"),
            ("cost", "no prices given" if spent.usd is None else f"{spent.usd:.4f} USD"),
        ],
        "faults of the infrastructure": sorted(result.faults.items()) or [("none", "")],
        "reward components": [(name, f"{value:.4g}") for name, value in result.whole.components.items()],
        "page": [
            ("folder", str(folder.resolve())),
            ("made at", time.strftime("%Y-%m-%d %H:%M:%S")),
            ("Python", platform.python_version()),
        ],
    }
    return [
        {"title": title, "rows": [(name, str(value)) for name, value in rows]} for title, rows in cards.items() if rows
    ]
