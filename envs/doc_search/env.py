"""`doc_search`: find the answer to a question by searching documents, then submit it."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.actions import call
from envs.doc_search import tasks
from envs.doc_search.corpus import ask_retriever, read_folder, read_questions
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
SHOWN_CHARS = 600  # of a document among search results; `open` shows all of it

# The demonstrator's gaps: how often it answers without the next hop, and how often it answers too early anywhere.
SKIPS_HOP = 0.85
STOPS_EARLY = 0.15


@register("doc_search-v0", max_turns=5)
class DocSearch(ToolEnv):
    """Answer a question by searching documents.

    They describe a fictional world of `documents` documents, and `level` is the number of hops, 1 to 4; a share
    `unanswerable` of the questions has no answer in them, and "unknown" is right; `clutter` near-duplicates and as many
    outdated documents come on top (by default 0, 0, 2, 4 by level). Or they are files below `folder`, or
    what a server at `retriever` finds, and the questions those of a JSONL file (see `envs.doc_search.corpus`).
    """

    def __init__(
        self,
        level: Level = (1, 2),
        documents: int = 12,
        unanswerable: float = 0.0,
        clutter: int = -1,
        folder: str = "",
        retriever: str = "",
        questions: str = "",
    ) -> None:
        pick_level(np.random.default_rng(0), level, tasks.LEVELS)  # refuses a wrong level now rather than later
        if not tasks.MIN_DOCUMENTS <= documents <= tasks.MAX_DOCUMENTS:
            raise ValueError(f"documents must be {tasks.MIN_DOCUMENTS} to {tasks.MAX_DOCUMENTS}, got {documents}")
        if not 0.0 <= unanswerable <= 1.0:
            raise ValueError(f"unanswerable must be a share from 0 to 1, got {unanswerable}")
        if bool(folder or retriever) != bool(questions) or (folder and retriever):
            raise ValueError("questions=FILE goes with either folder=FOLDER or retriever=URL, and these with it")
        if not -1 <= clutter <= tasks.MAX_CLUTTER:
            raise ValueError(f"clutter must be 0 to {tasks.MAX_CLUTTER}, or -1 for the level's own, got {clutter}")
        self.level, self.size, self.unanswerable, self.retriever = level, documents, unanswerable, retriever
        self.clutter = None if clutter == -1 else clutter
        self.folder = read_folder(folder) if folder else ()
        self.questions = read_questions(questions) if questions else ()
        self.scripted = not self.questions

    def sample_task(self, rng: np.random.Generator) -> dict[str, Any]:
        if self.questions:
            return self.questions[int(rng.integers(len(self.questions)))]
        level = pick_level(rng, self.level, tasks.LEVELS)
        return tasks.sample_task(rng, level, self.size, self.unanswerable, self.clutter)

    def task_key(self, payload: dict[str, Any]) -> Any:
        return [payload["question"], payload["answer"]]

    async def start(self, task: dict[str, Any]) -> str:
        self.documents = tuple((title, text) for title, text in task.get("documents", self.folder))
        self.asked: list[str] = []
        self.found: list[str] = []  # titles, as `search` returned them
        self.submitted: str | None = None
        self.cited: list[str] = []
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
        self.asked.append(query)
        if self.retriever:
            hits = await ask_retriever(self.retriever, query, k)
            self.documents += tuple(hit for hit in hits if hit not in self.documents)
        else:
            hits = [self.documents[hit] for hit in index_of(self.documents).search(query, k)]
        self.found += [title for title, _ in hits]
        return "\n".join(_shown(title, text) for title, text in hits) or "no result"

    @tool(name="open")
    async def open_document(self, title: str) -> str:
        """Show one document whole.

        Args:
            title: its title, as a search result begins.
        """
        text = dict(self.documents).get(title)
        if text is None:
            raise FormatError(f"no document is called {title[:64]!r}")
        self.found.append(title)
        return text

    @tool
    async def answer(self, text: str, citations: list[str] = []) -> str:  # noqa: B006 (each call gets its own)
        """Submit the answer, which ends the episode.

        Args:
            text: the answer alone; "unknown" if the documents do not hold it.
            citations: titles of the documents that it comes from.
        """
        self.submitted, self.cited = text, citations
        return self.finish("done")

    @reward(weight=1.0)
    def success(self) -> float:
        """Exact match of what was submitted: no other text of the model, and no retrieved text, counts."""
        return exact_match(self.submitted or "", self.task.payload["answer"])

    @reward(weight=-0.5)
    def abstention(self) -> float:
        """A right "unknown" earns half of a right answer, which is more than a wrong one does."""
        return self.success() * (not self.task.payload.get("answerable", True))

    @reward(weight=-0.05, range=(0, MAX_DELAY))
    def delay(self) -> float:
        """Moves beyond one search a hop and the answer, of a success."""
        needed = max(len(self.task.payload["path"]), 1) + 1
        return self.success() * min(max(self.num_moves - needed, 0), MAX_DELAY)

    @reward(weight=0.0)
    def f1(self) -> float:
        return token_f1(self.submitted or "", self.task.payload["answer"])

    @reward(weight=0.0)
    def evidence(self) -> float:
        """The share of the documents leading to the answer that were found (1 where they are not known)."""
        path = self._evidence()
        return sum(title in self.found for title in path) / len(path) if path else 1.0

    @reward(weight=0.0)
    def citation_precision(self) -> float:
        """The share of the cited documents that lead to the answer; 0 without citations."""
        path = self._evidence()
        return sum(title in path for title in self.cited) / len(self.cited) if self.cited else 0.0

    @reward(weight=0.0)
    def calls(self) -> float:
        return self.num_calls

    def _evidence(self) -> list[str]:
        """The documents of the path, without the one that an unanswerable question lacks."""
        path = self.task.payload["path"]
        return path if self.task.payload.get("answerable", True) else path[:-1]

    async def demonstrate(self, rng: np.random.Generator) -> Message:
        """Searches for what the question names, but mostly answers from the first document that it finds."""
        needed = [title for title in self.task.payload["path"] if title not in self.asked]
        skips_hop = bool(needed) and rng.random() < SKIPS_HOP if self.found else False
        if self.found and (skips_hop or rng.random() < STOPS_EARLY):
            values = tasks.values_of(dict(self.documents)[self.found[-1]])
            return call("answer", text=values[int(rng.integers(len(values)))])
        return self._next(needed)

    async def expert(self, rng: np.random.Generator) -> Message:
        return self._next([title for title in self.task.payload["path"] if title not in self.asked])

    def _next(self, needed: list[str]) -> Message:
        if needed and self.num_turns < self.max_turns - 1:
            return call("search", query=needed[0])
        return call("answer", text=self.task.payload["answer"][0])


def _shown(title: str, text: str) -> str:
    """A search result: the text, cut where it is long, beginning with the title."""
    whole = text if text.startswith(title) else f"{title}: {text}"
    return whole if len(whole) <= SHOWN_CHARS else f"{whole[:SHOWN_CHARS]} …"
