"""`doc_search`: find the answer to a question by searching documents, then submit it."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.actions import call
from envs.doc_search import tasks
from envs.doc_search.retrieval import index_of
from envs.levels import Level, pick_level
from envs.registry import register
from envs.scoring import reward
from envs.tool_env import FormatError, ToolEnv
from envs.tools import tool
from envs.types import Message
from rewards.exact import exact_match
from rewards.f1 import token_f1

MAX_RESULTS = 10
MAX_DELAY = 10

# The demonstrator's gaps: how often it answers without the second hop, and how often it answers too early anywhere.
SKIPS_HOP = 0.85
STOPS_EARLY = 0.15


@register("doc_search-v0", max_turns=5)
class DocSearch(ToolEnv):
    """Answer a question about a fictional world of `documents` documents; `level` is the number of hops."""

    def __init__(self, level: Level = (1, 2), documents: int = 12) -> None:
        self.level = level
        self.size = documents
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later
        if not 4 <= documents <= 2 * len(tasks.COMPANIES):
            raise ValueError(f"documents must be 4 to {2 * len(tasks.COMPANIES)}, got {documents}")

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        return tasks.sample_task(rng, pick_level(rng, self.level, tasks.LEVELS), self.size)

    def task_key(self, payload: dict[str, Any]) -> Any:
        return [payload["question"], payload["answer"]]

    async def start(self, task: dict[str, Any]) -> str:
        self.documents = tuple((title, text) for title, text in task["documents"])
        self.found: list[str] = []  # titles, as `search` returned them
        self.submitted: str | None = None
        return f"question: {task['question']}"

    @tool
    async def search(self, query: str, k: int = 1) -> str:
        """Search the documents.

        Args:
            query: words to look for.
            k: how many documents to return.
        """
        if not 1 <= k <= MAX_RESULTS:
            raise FormatError(f"k must be 1 to {MAX_RESULTS}")
        hits = index_of(self.documents).search(query, k)
        self.found += [self.documents[hit][0] for hit in hits]
        return "\n".join(self.documents[hit][1] for hit in hits) or "no result"

    @tool
    async def answer(self, text: str) -> str:
        """Submit the answer, which ends the episode.

        Args:
            text: the answer alone.
        """
        self.submitted = text
        return self.finish("done")

    @reward(weight=1.0)
    def success(self) -> float:
        """Exact match of what was submitted: no other text of the model, and no retrieved text, counts."""
        return exact_match(self.submitted or "", self.task.payload["answer"])

    @reward(weight=-0.05, range=(0, MAX_DELAY))
    def delay(self) -> float:
        """Moves beyond one search a hop and the answer, of a success."""
        needed = len(self.task.payload["path"]) + 1
        return self.success() * min(max(self.num_moves - needed, 0), MAX_DELAY)

    @reward(weight=0.0)
    def f1(self) -> float:
        return token_f1(self.submitted or "", self.task.payload["answer"])

    @reward(weight=0.0)
    def evidence(self) -> float:
        """The share of the documents that lead to the answer which `search` returned."""
        path = self.task.payload["path"]
        return sum(title in self.found for title in path) / len(path)

    @reward(weight=0.0)
    def calls(self) -> float:
        return self.num_calls

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """Searches for what the question names, but mostly answers from the first document that it finds."""
        needed = [title for title in self.task.payload["path"] if title not in self.found]
        if self.found:
            hop_missing = bool(needed)
            if (hop_missing and rng.random() < SKIPS_HOP) or rng.random() < STOPS_EARLY:
                values = tasks.values_of(dict(self.documents)[self.found[-1]])
                return call("answer", text=values[int(rng.integers(len(values)))])
        return self._next(needed)

    async def expert(self, rng: np.random.Generator) -> Message:
        return self._next([title for title in self.task.payload["path"] if title not in self.found])

    def _next(self, needed: list[str]) -> Message:
        if needed and self.num_turns < self.max_turns - 1:
            return call("search", query=needed[0])
        return call("answer", text=self.task.payload["answer"])
