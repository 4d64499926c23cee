"""Documents and questions of one's own: a folder of text, or a retriever that runs elsewhere, and a JSONL file."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp

from envs.tool_env import InfrastructureError

SUFFIXES = (".md", ".txt")
RETRIEVER_TIMEOUT_S = 20.0

Document = tuple[str, str]  # title, text


@lru_cache(maxsize=8)
def read_folder(folder: str) -> tuple[Document, ...]:
    """Every Markdown and text file below `folder`, titled by its path without the suffix. Raises `ValueError`."""
    root = Path(folder).expanduser()
    files = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ValueError(f"there is no {' or '.join(SUFFIXES)} file below {folder!r}")
    return tuple((str(path.relative_to(root).with_suffix("")), path.read_text("utf-8", "replace")) for path in files)


@lru_cache(maxsize=8)
def read_questions(path: str) -> tuple[dict[str, Any], ...]:
    """Rows with "question" and "answer", "answers" or "golden_answers", and maybe "documents", the titles needed.

    Raises `ValueError` naming the line that is not one.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            answers = next(row[key] for key in ("answer", "answers", "golden_answers") if key in row)
            question = str(row["question"])
        except (ValueError, TypeError, KeyError, StopIteration) as error:
            raise ValueError(f"{path!r}, line {number}: a row needs a question and an answer") from error
        answers = [str(each) for each in (answers if isinstance(answers, list) else [answers])]
        rows.append({"kind": file.stem, "question": question, "answer": answers, "path": row.get("documents", [])})
    if not rows:
        raise ValueError(f"{path!r} holds no question")
    return tuple(rows)


async def ask_retriever(url: str, query: str, k: int) -> list[Document]:
    """The `k` best passages of a server that speaks Search-R1's `/retrieve`.

    Raises `InfrastructureError` for a server that does not answer, or not in that way.
    """
    request = {"queries": [query], "topk": k, "return_scores": True}
    try:
        timeout = aiohttp.ClientTimeout(total=RETRIEVER_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=request) as response:
            response.raise_for_status()
            hits = (await response.json())["result"][0]
        return [_passage(hit) for hit in hits[:k]]
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InfrastructureError(f"the retriever at {url} failed: {type(error).__name__}: {error}") from error


def _passage(hit: dict[str, Any]) -> Document:
    """Search-R1's contents are a title in quotation marks, a line break, and the text."""
    contents = str(hit["document"]["contents"] if "document" in hit else hit["contents"])
    title, _, text = contents.partition("\n")
    return title.strip().strip('"'), text or contents
