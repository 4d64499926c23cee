from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import envs
from envs import Message, Status, call
from envs.doc_search import tasks
from envs.doc_search.env import DocSearch
from envs.doc_search.retrieval import Index


async def started(text: str = "doc_search", index: int = 0) -> DocSearch:
    env = envs.make(text)
    assert isinstance(env, DocSearch)
    await env.begin("train", index)
    return env


async def mean_reward(policy: str, episodes: int, text: str = "doc_search") -> float:
    env, rng, total = envs.make(text), np.random.default_rng(0), 0.0
    for index in range(episodes):
        await env.begin("heldout", index)
        while env.status is Status.RUNNING:
            await env.act(await getattr(env, policy)(rng))
        total += (await env.score()).reward
    return total / episodes


async def test_the_expert_earns_everything_and_the_demonstrator_leaves_a_gap() -> None:
    assert await mean_reward("expert", 40) == 1.0
    assert await mean_reward("expert", 16, "doc_search?level=2&documents=40") == 1.0
    assert await mean_reward("expert", 40, "doc_search?level=3-4&documents=30") > 0.97
    assert await mean_reward("expert", 20, "doc_search?unanswerable=1") == 0.5
    assert 0.4 < await mean_reward("demonstrate", 150) < 0.65
    assert await mean_reward("demonstrate", 100, "doc_search?level=2") < 0.3


async def test_two_hops_step_by_step() -> None:
    env = await started("doc_search?level=2")
    person, company = env.task.payload["path"]
    (reply,) = await env.act(call("search", query=person))
    assert reply.content.startswith(f"{person}: ")
    assert f"works {company}" in reply.content
    (reply,) = await env.act(call("search", query=f"what about {company}?", k=2))
    first, second = reply.content.split("\n")
    assert first.startswith(f"{company}: ")
    assert not second.startswith(company)
    assert (
        await env.act(
            call("answer", text=f" {env.task.payload['answer'][0].upper()}. ", citations=[person, company, "x", "y"])
        )
        == []
    )
    score = await env.score()
    assert score.reward == 1.0
    assert score.components == {
        "success": 1.0,
        "abstention": 0.0,
        "delay": 0.0,
        "f1": 1.0,
        "evidence": 1.0,
        "citation_precision": 0.5,
        "calls": 3.0,
    }


async def test_more_searches_than_needed_cost_a_little_even_within_one_reply() -> None:
    env = await started("doc_search?level=1")
    search = call("search", query="x").tool_calls[0]
    await env.act(Message("assistant", "", tool_calls=(search, search, search)))
    await env.act(call("answer", text=env.task.payload["answer"][0]))
    assert (await env.score()).reward == pytest.approx(1 - 2 * 0.05)


async def attempt(kind: str) -> tuple[DocSearch, float]:
    """Play one attack on the grader and return what it earned."""
    env = await started("doc_search?level=2")
    (answer,), path = env.task.payload["answer"], env.task.payload["path"]
    everything = sorted({value for _, text in env.documents for value in tasks.values_of(text)})
    if kind == "answer only in tool output":
        for title in path * 3:
            if env.status is Status.RUNNING:
                await env.act(call("search", query=title))
    elif kind == "answer only in plain text":
        while env.status is Status.RUNNING:
            await env.act(Message("assistant", f"The answer is {answer}."))
    elif kind == "answer as a query":
        while env.status is Status.RUNNING:
            await env.act(call("search", query=answer))
    else:
        text = {
            "empty": "",
            "punctuation": " . ",
            "every candidate": ", ".join(everything),
            "two candidates": f"{answer} or {everything[0] if everything[0] != answer else everything[1]}",
            "the question": env.task.payload["question"],
            "the documents": "\n".join(text for _, text in env.documents),
            "I don't know": "I don't know",
        }[kind]
        await env.act(call("answer", text=text))
    return env, (await env.score()).reward


@pytest.mark.parametrize(
    "kind",
    [
        "answer only in tool output",
        "answer only in plain text",
        "answer as a query",
        "empty",
        "punctuation",
        "every candidate",
        "two candidates",
        "the question",
        "the documents",
        "I don't know",
    ],
)
async def test_attacks_earn_nothing(kind: str) -> None:
    env, earned = await attempt(kind)
    assert earned == 0.0
    assert env.status in (Status.TERMINATED, Status.TRUNCATED)


async def test_without_documents_an_answer_is_a_guess() -> None:
    rng, hits = np.random.default_rng(1), 0.0
    env = envs.make("doc_search")
    for index in range(200):
        await env.begin("heldout", index)
        await env.act(call("answer", text=tasks.CITIES[int(rng.integers(len(tasks.CITIES)))]))
        hits += (await env.score()).reward
    assert hits / 200 < 0.08


@pytest.mark.parametrize("query", ["", "?!", "zzz", "\x00", "a" * 10_000])
async def test_queries_that_match_nothing(query: str) -> None:
    env = await started()
    (reply,) = await env.act(call("search", query=query))
    assert reply.content == "no result"


@pytest.mark.parametrize("k", [0, -1, 11])
async def test_k_is_bounded(k: int) -> None:
    env = await started()
    (reply,) = await env.act(call("search", query="x", k=k))
    assert reply.content == "format_error: k must be 1 to 10"


def test_titles_outrank_mentions() -> None:
    index = Index(
        (
            ("Mona Koch", "Mona Koch: works Acron"),
            ("Acron", "Acron: makes jars"),
            ("Leif Koch", "Leif Koch: works Acron"),
        )
    )
    assert index.search("acron", 3)[0] == 1
    assert index.search("mona koch", 1) == [0]
    assert index.search("Leif", 5) == [2]


def test_jax_is_kept_from_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("import os\ndef top_k(*_): print(os.environ.get('JAX_PLATFORMS'))\n")
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    search_path = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", "import envs.doc_search.retrieval"],
        env=environment | {"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "cpu\n"


def test_every_question_is_answered_by_its_path() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        level = int(rng.integers(1, 5))
        task = tasks.sample_task(rng, level, 12)
        documents = dict(map(tuple, task["documents"]))
        assert (len(documents), len(task["path"])) == (12 + 2 * tasks.CLUTTER[level], level)
        assert task["kind"] == f"{level}-hop"
        assert task["path"][0] in task["question"]
        for title, value in zip(task["path"], [*task["path"][1:], *task["answer"]], strict=True):
            assert value in tasks.values_of(documents[title])


async def test_abstaining_is_right_only_where_there_is_no_answer() -> None:
    earned = {}
    for share in (0, 1):
        env = await started(f"doc_search?level=1&unanswerable={share}")
        for text in ("unknown", "Oslo or so", *env.task.payload["answer"]):
            await env.begin("train", 0)
            await env.act(call("answer", text=text))
            earned[share, text] = (await env.score()).reward
    assert earned[0, "unknown"] == earned[0, "Oslo or so"] == earned[1, "Oslo or so"] == 0.0
    assert earned[1, "unknown"] == 0.5
    assert max(earned.values()) == 1.0


def test_an_unanswerable_question_lacks_its_last_document() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        task = tasks.sample_task(rng, 2, 12, unanswerable=1.0)
        titles = [title for title, _ in task["documents"]]
        assert task["path"][0] in titles
        assert task["path"][1] not in titles
        assert (task["answer"], task["kind"]) == ([tasks.UNKNOWN], "unanswerable")


async def test_open_shows_a_document() -> None:
    env = await started()
    title, text = env.documents[0]
    (reply,) = await env.act(call("open", title=title))
    assert reply.content == text
    (reply,) = await env.act(call("open", title="/etc/passwd"))
    assert reply.content == "format_error: no document is called '/etc/passwd'"


async def test_clutter_contradicts_and_only_the_rule_tells_which_is_right() -> None:
    seen = 0
    for index in range(30):
        env = await started("doc_search?level=4&documents=30", index)
        documents, path = dict(env.documents), env.task.payload["path"]
        assert env.task.payload["question"].endswith(tasks.OUTDATED)
        extra = [title for title in documents if title not in tasks_titles()]
        outdated = [title for title in extra if title.endswith(")")]
        assert (len(documents), len(extra), len(outdated)) == (30 + 8, 8, 4)
        for title in path:
            was = next(each for each in outdated if each.startswith(f"{title} ("))
            seen += tasks.values_of(documents[was]) != tasks.values_of(documents[title])
    assert seen > 100
    assert await mean_reward("expert", 30, "doc_search?level=3-4&documents=30") > 0.97
    assert await mean_reward("expert", 20, "doc_search?level=2&clutter=3") == 1.0
    with pytest.raises(ValueError, match="clutter must be 0 to 4"):
        envs.make("doc_search?clutter=9")


def tasks_titles() -> set[str]:
    """Titles that name something of the world itself."""
    people = {f"{first} {last}" for first in tasks.FIRST_NAMES for last in tasks.LAST_NAMES}
    return people | set(tasks.COMPANIES) | set(tasks.CITIES)
