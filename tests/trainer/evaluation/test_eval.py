"""`python -m trainer.eval` as a whole; what is played is a pure function of the ticket."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from envs import InfrastructureError, reward
from envs import suite as suites
from envs.types import Message, Status
from rollout.engine import EngineError
from tests.chaos.deterministic import HashEngine, Parrot, make_model
from trainer import eval as evaluation
from trainer.config import RunConfig, write_toml
from trainer.evaluation import inspect_log, models, report, store
from trainer.evaluation.store import read_records
from trainer.page import assemble

HERE = "tests.trainer.evaluation.test_eval"
PARROT = "tests.chaos.deterministic:Parrot"
FOREVER_S = 60.0

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload(["trainer.evaluation.session", "trainer.learner", "rollout.chat", HERE])


class Other(Parrot):
    """Other rewards for the same episodes."""

    @reward(weight=1.0)
    def success(self) -> float:
        return float("a" in self.heard)

    @reward(weight=0.0)
    def length(self) -> float:
        return len(self.heard)


class Forgetful(Parrot):
    """Answers otherwise than it did."""

    async def on_text(self, text):
        self.heard += text
        return "less" if self.task.payload["word"] % 2 else "more"


class Moody(Parrot):
    """Fails on some tasks, as long as the file at `path` exists. What is said last tells how it is rewarded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def is_bad(self) -> bool:
        return Path(self.path).exists()

    async def on_text(self, text):
        if self.num_turns == 2 and self.task.payload["word"] % 3 == 0 and self.is_bad():
            raise InfrastructureError("the world is gone")
        return await super().on_text(text)

    async def act(self, message: Message) -> list[Message]:
        replies = await super().act(message)
        if self.num_turns == 1 and self.task.payload["word"] % 2:
            self.label("odd_word")
        return replies


class Broken(HashEngine):
    async def generate(self, token_ids, sampling, *, session):
        raise EngineError("out of order")


class Better(HashEngine):
    """Draws other tokens."""

    async def generate(self, token_ids, sampling, *, session):
        return await super().generate([*token_ids, 7], sampling, session=session)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def write_suite(folder: Path, *, env: str = PARROT, tasks: int = 12, attempts: int = 2, more: str = "") -> Path:
    path = folder / "mine.toml"
    path.write_text(f'attempts = {attempts}\n[[environments]]\nenv = "{env}"\ntasks = {tasks}\n{more}')
    return path


def options(suite: Path, model: Path, out: Path, *more: str) -> list[str]:
    engine = [] if "--engine" in more else ["--engine", "tests.chaos.deterministic:HashEngine"]
    machine = ["--device", "cpu", "--threads", "1", "--slots", "8", "--plain"]
    return ["--suite", str(suite), "--model", str(model), "--out", str(out), *engine, *machine, *more]


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def lasting(folder: Path) -> dict:
    """The result without how long it took, and without faults, which are of the day."""
    result = result_of(folder)
    del result["faults"], result["spent"]["seconds"]
    return result


def test_an_evaluation_writes_its_figures_and_every_episode(model, tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluation.main(options(write_suite(tmp_path), model, out)) == 0
    result, records = result_of(out), read_records(out)
    assert list(records) == [(task, attempt) for task in range(12) for attempt in range(2)]
    whole = result["rows"][0]
    means = [(records[t, 0].score + records[t, 1].score) / 2 for t in range(12)]
    assert whole["score"]["mean"] == pytest.approx(sum(means) / 12)
    assert whole["score"]["low"] < whole["score"]["mean"] < whole["score"]["high"]
    solved = [[records[t, a].score == 1 for a in range(2)] for t in range(12)]
    assert whole["pass_at"]["2"]["mean"] == pytest.approx(sum(map(any, solved)) / 12)
    assert whole["pass_all"]["2"]["mean"] == pytest.approx(sum(map(all, solved)) / 12)
    assert (whole["planned"], whole["scored"], whole["errored"], result["complete"]) == (24, 24, 0, True)
    episode = records[3, 1].episode
    assert [m.role for m in episode.messages] == ["user", *["assistant", "user"] * 3]
    assert sum(episode.sequences[0].sampled) == episode.sampled_tokens == 18
    assert episode.components.keys() == {"success"}
    assert len(result["suite_hash"]) == 32
    assert result["environments"] == ["tests/Parrot-v0"]
    assert f"{whole['score']['mean']:.3f}" in capsys.readouterr().out


def test_a_second_start_plays_nothing_again_and_needs_no_model(model, tmp_path):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    before, written = lasting(out), (out / store.EPISODES).read_bytes()
    assert evaluation.main(["--out", str(out), "--show", "2", "--order", "best"]) == 0
    assert (out / store.EPISODES).read_bytes() == written
    assert lasting(out) == before


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--tasks", "3"), "overrides.tasks: None -> 3"),
        (("--temperature", "0.5"), "overrides.temperature: None -> 0.5"),
        (("--engine", f"{HERE}:Better"), "engine.engine: 'tests.chaos.deterministic:HashEngine' -> "),
    ],
)
def test_another_configuration_is_refused_with_the_difference_named(model, tmp_path, capsys, more, told):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    assert evaluation.main(options(suite, model, out, *more)) == 2
    error = capsys.readouterr().err
    assert "holds another evaluation" in error
    assert told in error


def test_another_suite_of_the_same_name_and_other_weights_are_refused(model, tmp_path, capsys):
    mine = Path(shutil.copytree(model, tmp_path / "model"))
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, mine, out)) == 0
    write_suite(tmp_path, more="[sampling]\nseed = 1")
    assert evaluation.main(options(suite, mine, out)) == 2
    assert "suite.sampling.seed: 0 -> 1" in capsys.readouterr().err
    write_suite(tmp_path)
    path = out / store.EPISODES
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))  # so that the model is needed
    weights = mine / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert evaluation.main(options(suite, mine, out)) == 2
    assert "weights: '" in capsys.readouterr().err


def test_two_processes_cannot_write_one_folder(model, tmp_path, capsys):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    held = store.lock.hold(out)
    assert evaluation.main(options(suite, model, out)) == 2
    assert "is in use" in capsys.readouterr().err
    os.close(held)
    assert evaluation.main(options(suite, model, out)) == 0


def test_a_torn_line_is_cut_off_and_a_damaged_one_is_named(model, tmp_path, capsys):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    before = lasting(out)
    path = out / store.EPISODES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:200])
    assert evaluation.main(options(suite, model, out)) == 0
    assert lasting(out) == before
    assert len(path.read_bytes().splitlines()) == 24
    path.write_bytes(b"{}\n" + path.read_bytes())
    assert evaluation.main(options(suite, model, out)) == 2
    assert f"{path}:1 is damaged" in capsys.readouterr().err


def test_errored_episodes_are_apart_and_are_played_again(model, tmp_path, capsys):
    mood = tmp_path / "mood"
    mood.touch()
    suite = write_suite(tmp_path, env=f"{HERE}:Moody?path={mood}", attempts=1)
    out = tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    result, records = result_of(out), read_records(out)
    errored = [r for r in records.values() if r.score is None]
    whole = result["rows"][0]
    assert 0 < whole["errored"] == len(errored) < 12
    assert whole["scored"] + whole["errored"] == 12
    assert not result["complete"]
    assert whole["score"]["mean"] == pytest.approx(
        sum(r.score for r in records.values() if r.score is not None) / whole["scored"]
    )
    assert result["errors"] == {"InfrastructureError: the world is gone": len(errored)}
    assert result["faults"]["fault/InfrastructureError"] == 3 * len(errored)
    assert {e.episode.status for e in errored} == {Status.ERRORED}
    assert "missing or errored" in capsys.readouterr().out
    assert whole["labels"] == {"odd_word": whole["labelled"]}
    mood.unlink()
    assert evaluation.main(options(suite, model, out)) == 0
    fresh = tmp_path / "fresh"
    assert evaluation.main(options(suite, model, fresh)) == 0
    assert lasting(out) == lasting(fresh)
    assert result_of(out)["complete"]


def test_an_engine_that_never_works_ends_it(model, tmp_path, capsys):
    suite = write_suite(tmp_path, tasks=40)
    assert evaluation.main(options(suite, model, tmp_path / "out", "--engine", f"{HERE}:Broken")) == 1
    error = capsys.readouterr().err
    assert "out of order" in error
    assert f"go on with: python -m trainer.eval --out {tmp_path / 'out'}" in error


def test_a_baseline_is_played_or_loaded_and_compared_task_by_task(model, tmp_path, capsys):
    suite, out, other = write_suite(tmp_path, tasks=30), tmp_path / "out", tmp_path / "other"
    assert evaluation.main(options(suite, model, other, "--engine", f"{HERE}:Better")) == 0
    assert evaluation.main(options(suite, model, out, "--baseline", str(other))) == 0
    found = result_of(out)["baseline"]["differences"]["all"]
    mine, theirs = read_records(out), read_records(other)
    gaps = [sum(mine[t, a].score - theirs[t, a].score for a in range(2)) / 2 for t in range(30)]
    assert found["mean"] == pytest.approx(sum(gaps) / 30)
    assert found["tasks"] == 30
    assert found["low"] < found["mean"] < found["high"]
    assert f"against {other}: {found['sentence']}" in capsys.readouterr().out
    # The same model as its own baseline is played into a folder of its own, and differs nowhere.
    again = tmp_path / "again"
    assert evaluation.main(options(suite, model, again, "--baseline", str(model))) == 0
    same = result_of(again)["baseline"]["differences"]["all"]
    assert same["mean"] == 0.0
    assert same["low"] < 0 < same["high"]
    assert lasting(again / "baseline")["rows"] == lasting(again)["rows"]
    # A baseline of another suite is refused.
    short = tmp_path / "short"
    assert evaluation.main(options(suite, model, short, "--tasks", "5", "--baseline", str(other))) == 2
    assert "is of another suite: environments" in capsys.readouterr().err
    assert evaluation.main(options(suite, model, short, "--baseline", f"{model}l")) == 2
    assert "there is no such folder; did you mean" in capsys.readouterr().err
    assert not short.exists()  # it was told before anything was played


def test_new_rewards_by_replaying_what_was_said(model, tmp_path, capsys):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    written = (out / store.EPISODES).read_bytes()
    assert evaluation.main(["--out", str(out), "--rescore", f"{HERE}:Other"]) == 0
    new = read_records(next(out.glob("rescored-*")))
    assert new.keys() == read_records(out).keys()
    for record in new.values():
        heard = "".join(m.content for m in record.episode.messages if m.role == "assistant")
        assert record.score == float("a" in heard)
        assert record.episode.components["length"] == len(heard)
    assert (out / store.EPISODES).read_bytes() == written
    assert "24 episodes replayed; 0 diverged" in capsys.readouterr().out


def test_a_replay_that_diverges_is_counted_apart(model, tmp_path, capsys):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out)) == 0
    assert evaluation.main(["--out", str(out), "--rescore", f"{HERE}:Forgetful"]) == 0
    new = read_records(next(out.glob("rescored-*")))
    diverged = [r for r in new.values() if r.score is None]
    assert 0 < len(diverged) < 24
    assert all("answers turn 1 otherwise: 'less', saved is 'more'" in r.episode.error for r in diverged)
    assert f"24 episodes replayed; {len(diverged)} diverged" in capsys.readouterr().out


def test_inspect_ai_is_imported_for_its_log_alone_and_missed_before_playing(model, tmp_path, capsys, monkeypatch):
    code = "import sys; from trainer.evaluation import session; print('inspect_ai' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=FOREVER_S)
    assert told.stdout.strip() == "False"
    monkeypatch.setattr(inspect_log, "find_spec", lambda name: None)
    assert evaluation.main(options(write_suite(tmp_path), model, tmp_path / "out", "--inspect")) == 2
    assert "pip install 'slipstream-rl[inspect]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_log_is_what_inspect_ai_reads(model, tmp_path):
    suite, out = write_suite(tmp_path, tasks=4), tmp_path / "out"
    assert evaluation.main(options(suite, model, out, "--inspect")) == 0
    from inspect_ai.log import read_eval_log, read_eval_log_sample

    path, records = str(out / inspect_log.LOG), read_records(out)
    log = read_eval_log(path)
    assert (log.status, log.eval.task, log.eval.config.epochs) == ("success", "mine", 2)
    assert log.results.scores[0].metrics["mean"].value == result_of(out)["rows"][0]["score"]["mean"]
    assert {(s.id, s.epoch, s.scores["score"].value) for s in log.samples} == {
        (str(task), attempt + 1, record.score) for (task, attempt), record in records.items()
    }
    sample = read_eval_log_sample(path, id="2", epoch=2)
    assert [m.text for m in sample.messages] == [m.content for m in records[2, 1].episode.messages]
    assert sample.limit.type == "turn"


def test_a_model_that_is_none_leaves_no_folder(model, tmp_path, capsys):
    suite = write_suite(tmp_path)
    for name, told in (
        (str(tmp_path), "neither a model in transformers' format"),
        (f"{model}l", f"--model {model}l: there is no such folder; did you mean {model}?"),
        ("runs/none-of-this-name", "there is no such folder"),  # and no hub is asked
    ):
        out = tmp_path / "out"
        assert evaluation.main(["--suite", str(suite), "--model", name, "--out", str(out)]) == 2
        assert told in capsys.readouterr().err
        assert not out.exists()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    assert evaluation.main(options(suite, broken, tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()


def test_a_run_s_steps_are_models(model, tmp_path):
    suite = suites.load(str(write_suite(tmp_path)))
    for step in (20, 40):
        shutil.copytree(model, tmp_path / "run" / "checkpoints" / f"step-{step}")
    write_toml(RunConfig(env=PARROT, model=str(model)), tmp_path / "run" / "config.toml")
    run = str(tmp_path / "run")
    assert [models.find(run + step, suite).version for step in ("", "@40", "@20", "@0")] == [40, 40, 20, 0]
    assert models.find(f"{run}@0", suite).path == str(model)
    with pytest.raises(ValueError, match=r"no checkpoint at step 30; there are: 0 \(its start\), 20, 40"):
        models.find(f"{run}@30", suite)


class Scripts(HTMLParser):
    """The text of each script, by its id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.data, self._id = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._id = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data):
        if self._id:
            self.data[self._id] = json.loads(data)
            self._id = None


def test_the_page_holds_the_result_and_the_episodes_and_fetches_nothing(model, tmp_path):
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert evaluation.main(options(suite, model, out, "--baseline", str(model))) == 0
    page = (out / "report.html").read_text()
    found = Scripts(page).data
    data = found["data"]
    assert data["result"]["rows"] == result_of(out)["rows"]
    assert data["scores"] == data["baselineScores"]
    assert len(data["scores"]) == 12
    assert len(data["episodes"]["lines"]) == 24
    assert found["episode-3.1"]["messages"][1]["content"] == read_records(out)[3, 1].episode.messages[1].content
    assert data["episodes"]["texts"]  # the tokenizer was kept
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=.http", page)
    for name in report.SCRIPTS:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", assemble._asset(name))


def _main(arguments: list[str]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os._exit(evaluation.main(arguments))


def start(arguments: list[str]) -> multiprocessing.Process:
    process = forkserver.Process(target=_main, args=(arguments,))
    process.start()
    return process


def size(folder: Path) -> int:
    path = folder / store.EPISODES
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_twenty_times_the_result_is_that_of_an_uninterrupted_evaluation(model, tmp_path):
    suite = write_suite(tmp_path, tasks=200)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert evaluation.main(options(suite, model, whole)) == 0
    draw = random.Random(0)
    for _ in range(20):
        process, before, deadline = start(options(suite, model, killed)), size(killed), time.monotonic() + FOREVER_S
        # Some at any moment of the start, most while episodes are written.
        grown = draw.choice([0, 1, 1, 1])
        while process.exitcode is None and size(killed) < before + grown:
            assert time.monotonic() < deadline
            process.join(0.002)
        process.join(draw.uniform(0.0, 0.03 if grown else 0.6))
        assert process.exitcode is None, "the evaluation ended before it was killed often enough to mean anything"
        process.kill()
        process.join()
    process = start(options(suite, model, killed))
    process.join(FOREVER_S)
    assert process.exitcode == 0
    assert lasting(killed) == lasting(whole)
    keys = [(r.task, r.attempt) for _, r in store._lines(killed / store.EPISODES)]
    assert len(keys) == len(set(keys)) == 400  # nothing was played twice


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_in_order(model, tmp_path, number):
    suite, out = write_suite(tmp_path, tasks=2000), tmp_path / "out"
    process, deadline = start(options(suite, model, out)), time.monotonic() + FOREVER_S
    while size(out) == 0:
        assert time.monotonic() < deadline
        assert process.exitcode is None
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join(FOREVER_S)
    assert process.exitcode == evaluation.INTERRUPTED
    assert 0 < len(read_records(out)) < 4000
