from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

import envs
from envs import InfrastructureError, call

PASSAGES = {"lighthouse": '"Old Lighthouse"\nIt was built in 1821.', "bridge": '"Iron Bridge"\nIt is 90 metres long.'}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes" / "sea").mkdir(parents=True)
    (tmp_path / "notes" / "sea" / "lighthouse.md").write_text(
        "The old lighthouse was built in 1821. " + "Waves. " * 200
    )
    (tmp_path / "notes" / "bridge.txt").write_text("The iron bridge is 90 metres long.")
    (tmp_path / "notes" / "picture.png").write_text("lighthouse")
    rows = [
        {"question": f"When was it built? ({i})", "answers": ["1821", "in 1821"], "documents": ["sea/lighthouse"]}
        for i in range(12)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


async def test_a_folder_is_searched_and_opened(folder: Path) -> None:
    env = envs.make(f"doc_search?folder={folder / 'notes'}&questions={folder / 'questions.jsonl'}")
    (first,) = await env.begin("train", 0)
    assert first.content.startswith("question: When was it built?")
    assert env.kind == "questions"
    (reply,) = await env.act(call("search", query="lighthouse", k=3))
    assert reply.content.startswith("sea/lighthouse: The old lighthouse was built in 1821.")
    assert reply.content.endswith("…")
    (reply,) = await env.act(call("open", title="sea/lighthouse"))
    assert len(reply.content) > 1000
    await env.act(call("answer", text="In 1821.", citations=["sea/lighthouse"]))
    score = await env.score()
    assert score.components["success"] == score.components["evidence"] == score.components["citation_precision"] == 1.0


@pytest_asyncio.fixture
async def retriever() -> AsyncIterator[str]:
    async def retrieve(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked.keys() == {"queries", "topk", "return_scores"}
        hits = [text for word, text in PASSAGES.items() if word in asked["queries"][0]][: asked["topk"]]
        return web.json_response({"result": [[{"document": {"contents": text}, "score": 1.0} for text in hits]]})

    async def broken(request: web.Request) -> web.Response:
        return web.json_response({"oops": 1})

    app = web.Application()
    app.add_routes([web.post("/retrieve", retrieve), web.post("/broken", broken)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_a_remote_retriever_is_asked(folder: Path, retriever: str) -> None:
    env = envs.make(f"doc_search?retriever={retriever}/retrieve&questions={folder / 'questions.jsonl'}")
    await env.begin("train", 0)
    (reply,) = await env.act(call("search", query="the lighthouse and the bridge", k=2))
    assert reply.content == "Old Lighthouse: It was built in 1821.\nIron Bridge: It is 90 metres long."
    (reply,) = await env.act(call("search", query="nothing"))
    assert reply.content == "no result"
    (reply,) = await env.act(call("open", title="Iron Bridge"))
    assert reply.content == "It is 90 metres long."


@pytest.mark.parametrize("path", ["broken", "missing"])
async def test_a_retriever_that_fails_is_nobodys_wrong_answer(folder: Path, retriever: str, path: str) -> None:
    env = envs.make(f"doc_search?retriever={retriever}/{path}&questions={folder / 'questions.jsonl'}")
    await env.begin("train", 0)
    with pytest.raises(InfrastructureError, match=r"the retriever at .* failed"):
        await env.act(call("search", query="x"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("folder={0}/notes", "questions=FILE goes with"),
        ("questions={0}/questions.jsonl", "questions=FILE goes with"),
        ("folder={0}/none&questions={0}/questions.jsonl", r"no \.md or \.txt file"),
        ("folder={0}/notes&questions={0}/none.jsonl", "no file"),
        ("folder={0}/notes&questions={0}/notes/bridge.txt", "line 1: a row needs a question"),
        ("unanswerable=2", "a share from 0 to 1"),
    ],
)
def test_wrong_sources_are_named(folder: Path, arguments: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        envs.make(f"doc_search?{arguments.format(folder)}")
