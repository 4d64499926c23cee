"""A whole evaluation of a model behind a server, which misbehaves."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from tests.rollout.test_endpoint import Server
from trainer import eval as evaluation
from trainer.evaluation.store import read_records

SUITE = 'attempts = 2\n[[environments]]\nenv = "tests.fakes:Dice"\ntasks = 32\n'


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """A function that serves `Server` from a thread, and gives the options of an evaluation of it."""
    monkeypatch.setattr("rollout.endpoint.FIRST_PAUSE_S", 0.01)
    (tmp_path / "dice.toml").write_text(SUITE)
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()
    threads = []

    def start(server: Server) -> list[str]:
        url, ready = [], threading.Event()

        async def run() -> None:
            async with server.serving() as client:
                url.append(client.base_url)
                ready.set()
                await ending.wait()

        threads.append(threading.Thread(target=loop.run_until_complete, args=(run(),)))
        threads[-1].start()
        assert ready.wait(10)
        options = ["--suite", str(tmp_path / "dice.toml"), "--model", "openai:some-model", "--base-url", url[0]]
        return [*options, "--out", str(tmp_path / "out"), "--request-timeout-s", "1", "--slots", "64", "--plain"]

    yield start
    loop.call_soon_threadsafe(ending.set)
    for thread in threads:
        thread.join(10)
    loop.close()


def test_no_episode_is_lost_and_every_retry_is_counted(serve, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    faults = {5: "stall", 6: "cut", 50: (429, "slow down"), 51: (500, "oops"), 52: "half", 90: (503, "busy")}
    server = Server(faults.get)
    assert evaluation.main([*serve(server), "--price-in", "2", "--price-out", "10"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    whole = result["rows"][0]
    assert (whole["scored"], whole["errored"], result["complete"]) == (64, 0, True)
    assert whole["score"]["mean"] == pytest.approx((1 + 3 + 5) / 3 / 255)
    retried = {name: count for name, count in result["faults"].items() if name.startswith("request/retry/")}
    assert sum(retried.values()) == len(faults)
    assert retried["request/retry/timeout"] == 1
    assert result["spent"]["prompt_tokens"] == 64 * 90
    assert result["spent"]["usd"] == pytest.approx((64 * 90 * 2 + 64 * 12 * 10) / 1e6)
    assert set(server.keys) == {"Bearer secret"}
    assert server.most_active > 32
    record = read_records(tmp_path / "out")[7, 1]
    assert [m.role for m in record.episode.messages] == ["user", *["assistant", "tool"] * 3]
    assert "request/retry/429 1" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "told"), [(401, "no such key"), (404, "no such model")])
def test_a_refusal_ends_it_with_one_line(serve, status, told, capsys, tmp_path):
    assert evaluation.main(serve(Server(lambda number: (status, told)))) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: http://127.0.0.1:")
    assert f"refuses model 'some-model': {status} {told}" in lines[0]
    assert lines[1] == f"go on with: python -m trainer.eval --out {tmp_path / 'out'}"
    assert read_records(tmp_path / "out") == {}


def test_what_an_outage_cost_is_played_when_the_server_is_back(serve, tmp_path):
    def down(number: int):
        return (500, "down") if 100 <= number < 100_000 and server.down else None

    server = Server(down)
    server.down = True
    options = serve(server)
    assert evaluation.main([*options, "--request-retries", "0", "--slots", "8"]) == 0
    errored = [key for key, record in read_records(tmp_path / "out").items() if record.score is None]
    assert errored
    server.down = False
    assert evaluation.main(["--out", str(tmp_path / "out"), "--plain"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["complete"], result["rows"][0]["scored"]) == (True, 64)


def test_an_endpoint_needs_its_address(capsys):
    assert evaluation.main(["--model", "openai:some-model"]) == 2
    assert capsys.readouterr().err == (
        "error: --model openai:some-model needs --base-url, such as http://127.0.0.1:8000/v1\n"
    )
