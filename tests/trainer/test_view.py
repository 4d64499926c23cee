"""The page of a run: what is on it, what it leaves out, and that no text of an episode becomes a part of it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser

import pytest

from envs.types import Message, Status, ToolCall
from rollout.engine import Sampling
from rollout.wire import Episode, Group, Sequence, Ticket
from trainer import view
from trainer.config import OutputConfig, RunConfig, write_toml
from trainer.evals import ROUND
from trainer.ledger import Ledger
from trainer.page import assemble, curves, episodes, folder, timeline, tokens
from trainer.page.serve import PageServer

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{script}}<!-- & \u2028\u2029 \x00 \\u003c"


def episode(reward: float | None, *, kind="easy", length=12, version=0, text="hello", **more) -> Episode:
    sampled = [i >= 3 and i % 4 != 3 for i in range(length)]
    sequence = Sequence(
        list(range(length)),
        sampled,
        [-0.1234 * i if s else 0.0 for i, s in enumerate(sampled)],
        [version + (i > length // 2) if s else -1 for i, s in enumerate(sampled)],
    )
    messages = [Message("user", text), Message("assistant", text, tool_calls=(ToolCall("run", {"x": text}, "c0"),))]
    return Episode(
        Status.ERRORED if reward is None else more.pop("status", Status.TERMINATED),
        [sequence],
        messages,
        reward,
        {} if reward is None else {"success": reward},
        kind=kind,
        **more,
    )


def group(id_: int, members: list[Episode], *, purpose="train", env="demo", attempt=0) -> Group:
    split = "train" if purpose == "train" else "heldout"
    ticket = Ticket(id_, attempt, purpose, env, split, id_, len(members), Sampling(max_tokens=8))
    return Group(ticket, members, "worker-0", 1.5)


def write_run(path, groups=(), records=(), events=(), config=None):
    path.mkdir(parents=True, exist_ok=True)
    write_toml(config or RunConfig(env="demo", steps=4, output=OutputConfig(eval_tasks=4)), path / "config.toml")
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    ledger = Ledger(path / "ledger")
    for one in groups:
        ledger.append(one)
    ledger.close()
    return path


def step(number: int, **figures: float) -> dict[str, float]:
    return {"step": number, "time/elapsed_s": 10.0 * number, "time/step_s": 2.0, "reward/mean": 0.5} | figures


def event(process: str, what: str, start: float, end: float) -> dict:
    return {"process": process, "what": what, "start": start, "end": end}


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.inside = False  # a script
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def handle_endtag(self, tag):
        self.inside = False

    def data(self, name: str):
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == name)


def data_of(run, count):
    """The page's data as its scripts read it."""
    return json.loads(assemble.embed(assemble.gather(run, count)[0]))


# The page as a whole


def test_a_hostile_episode_stays_text(tmp_path):
    bad = episode(None, kind=HOSTILE, text=HOSTILE, error=HOSTILE, labels=(HOSTILE,), isolation=HOSTILE)
    run = write_run(
        tmp_path / "run",
        [group(0, [bad, episode(1.0, text=HOSTILE)], env=HOSTILE)],
        [step(1, **{f"success/{HOSTILE}/{HOSTILE}": 1.0})],
        [event(HOSTILE, HOSTILE, 0.0, 1.0)],
    )
    page = assemble.page(run, count=10)
    elements = Elements(page)
    names = [tag for tag, _ in elements.found]
    assert names.count("script") == 5  # the data, two episodes, Plotly, the page's own
    assert not {"img", "iframe", "object", "embed"} & set(names)
    assert [a for _, attributes in elements.found for a in attributes if a.startswith("on")] == []
    assert elements.data("data")["episodes"]["lines"][0]["env"] == HOSTILE
    shown = elements.data("episode-0.0")
    assert (shown["error"], shown["messages"][0]["content"]) == (HOSTILE, HOSTILE)


def test_the_policy_lets_only_the_two_scripts_of_the_page_run(tmp_path):
    elements = Elements(assemble.page(write_run(tmp_path / "run"), count=10))
    policy = next(a["content"] for tag, a in elements.found if tag == "meta" and "http-equiv" in a)
    code = [text for attributes, text in elements.scripts if "type" not in attributes]
    digests = {"sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code}
    assert len(code) == 2
    assert set(re.findall(r"sha256-[^']+", policy)) == digests
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert not [a for tag, a in elements.found if a.get("src") or (tag == "link" and a["href"] != "data:,")]


def test_the_page_s_scripts_make_no_markup_of_text():
    for name in assemble.SCRIPTS:
        script = assemble._asset(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
        assert "</script" not in script


def test_numbers_that_json_lacks_do_not_stop_the_page(tmp_path):
    run = write_run(
        tmp_path / "run", [group(0, [episode(1.0, wall_s=float("nan"))])], [step(1, **{"train/loss": float("nan")})]
    )
    data = data_of(run, count=10)
    assert data["curves"]["columns"]["train/loss"] == [None]
    assert data["episodes"]["lines"][0]["wall_s"] is None


def test_says_how_many_episodes_are_shown(tmp_path):
    run = write_run(tmp_path / "run", [group(i, [episode(0.0), episode(1.0)]) for i in range(10)])
    few = data_of(run, count=6)["episodes"]
    assert len(few["lines"]) == 6
    assert "6 of the run's 20 episodes" in few["note"]
    assert "All 20 episodes" in data_of(run, count=400)["episodes"]["note"]


def test_a_crashed_run_is_read_as_far_as_it_came(tmp_path):
    run = write_run(tmp_path / "run", [group(0, [episode(1.0)])], [step(1)], [event("trainer", "learn", 0.0, 1.0)])
    for name in ("metrics.jsonl", "events.jsonl", "ledger/groups.log"):
        with (run / name).open("ab") as file:
            file.write(b'{"step": 2, "rew')
    before = (run / "ledger/groups.log").read_bytes()
    data = data_of(run, count=10)
    assert data["curves"]["columns"]["step"] == [1]
    assert data["timeline"]["damaged"] == 1
    assert len(data["episodes"]["lines"]) == 1
    assert (run / "ledger/groups.log").read_bytes() == before  # a running trainer's file is left alone


# Curves


def test_thinning_keeps_extremes_and_counters():
    records = [step(i, **{"lag/max": float(i == 3), "groups/dropped_stale": i, "reward/mean": i}) for i in range(1, 9)]
    columns = curves.columns(records, points=2)
    assert columns["step"] == [4, 8]
    assert columns["lag/max"] == [1.0, 0.0]
    assert columns["groups/dropped_stale"] == [4, 8]
    assert columns["reward/mean"] == [2.5, 6.5]


def test_a_figure_that_a_step_lacks_is_a_hole():
    assert curves.columns([step(1), step(2, extra=3.0)])["extra"] == [None, 3.0]


def test_wilson_interval_of_a_proportion():
    low, high = curves.interval([1.0] * 8 + [0.0] * 2)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    low, high = curves.interval([0.0] * 10)
    assert (low, high) == (0.0, pytest.approx(0.2775, abs=1e-4))


def test_interval_of_graded_scores_is_of_the_mean():
    low, high = curves.interval([0.0, 0.5, 1.0, 0.5])
    assert (low, high) == (pytest.approx(0.5 - 0.4001, abs=1e-3), pytest.approx(0.5 + 0.4001, abs=1e-3))


def test_held_out_success_by_environment_and_kind():
    record = step(5, **{"eval/step": 4.0, "eval/acme/Vault-v0/success": 0.75, "eval/acme/Vault-v0/stderr": 0.1})
    record |= {"eval/acme/Vault-v0/deep/success": 0.5, "eval/success": 0.75, "eval/acme/Vault-v0/reward": 9.0}
    scores = {(4, "acme/Vault-v0", ""): [1.0, 1.0, 1.0, 0.0], (4, "acme/Vault-v0", "deep"): [1.0, 0.0]}
    whole, deep = curves.held_out([step(4), record], scores)
    assert (whole.env, whole.kind, whole.step, whole.success, whole.tasks) == ("acme/Vault-v0", "", 4, 0.75, 4)
    assert (deep.kind, deep.success, deep.tasks) == ("deep", 0.5, 2)
    assert whole.low == curves.interval([1.0, 1.0, 1.0, 0.0])[0]


def test_recorded_errors_are_used_where_the_ledger_tells_another_story():
    record = step(5, **{"eval/step": 4.0, "eval/demo/success": 0.75, "eval/demo/stderr": 0.1})
    record["eval/demo/easy/success"] = 0.5
    whole, easy = curves.held_out([record], {(4, "demo", ""): [0.0, 0.0], (4, "demo", "easy"): [1.0]})
    assert (whole.low, whole.high) == (pytest.approx(0.554, abs=1e-3), pytest.approx(0.946, abs=1e-3))
    assert (easy.success, easy.low, easy.tasks) == (0.5, None, None)


def test_evaluation_scores_come_from_the_ledger(tmp_path):
    groups = [group(2 * ROUND + i, [episode(float(i != 0))], purpose="eval") for i in range(4)]
    record = step(3, **{"eval/step": 2.0, "eval/demo/success": 0.75, "eval/demo/stderr": 0.25})
    run = write_run(tmp_path / "run", groups, [step(2), record])
    (point,) = data_of(run, count=10)["curves"]["evaluations"]
    assert (point["step"], point["elapsed_s"], point["tasks"]) == (2, 20.0, 4)
    assert (point["low"], point["high"]) == curves.interval([0.0, 1.0, 1.0, 1.0])


# Timeline


def spans(*rows) -> timeline.Timeline:
    return timeline.build([timeline.Event(*row) for row in rows])


def test_shares_of_both_sides_and_of_both_at_once():
    made = spans(
        ("trainer", "wait", 10, 14),
        ("trainer", "learn", 14, 18),
        ("trainer", "publish", 18, 20),
        ("worker-0", "generate", 5, 15),  # before the loop's first activity does not count
        ("worker-0", "tool", 13, 16),
        ("worker-1", "generate", 19, 25),
        ("worker-1", "idle", 10, 19),
    )
    shares = made.shares
    assert (shares.window_s, shares.training_s, shares.playing_s, shares.both_s) == (10, 6, 7, 3)
    assert shares.seconds["worker-0"] == {"generate": 5, "tool": 3}
    assert made.sides["both"] == [(9, 11, 2), (14, 15, 1)]
    assert list(made.bars) == ["trainer", "worker-0", "worker-1"]


def test_time_in_which_the_run_was_down_is_cut_out():
    made = spans(("trainer", "learn", 0, 10), ("trainer", "learn", 1000, 1005), ("worker-0", "idle", 1002, 1010))
    assert made.cuts == [10]
    assert made.bars["trainer"]["learn"] == [(0, 10, 10), (10, 15, 5)]
    assert made.shares.window_s == 15
    assert timeline.as_page_data(made)["length_s"] == 20


def test_overlapping_bars_of_one_kind_count_once():
    assert timeline.union([(3, 5), (0, 2), (1, 4), (7, 8)]) == [(0, 5), (7, 8)]
    assert timeline.intersection([(0, 5), (7, 8)], [(1, 2), (4, 7.5)]) == [(1, 2), (4, 5), (7, 7.5)]


def test_a_long_run_draws_fewer_bars_and_counts_all_of_them():
    rows = [timeline.Event("trainer", "learn", i, i + 0.25) for i in range(1000)]
    made = timeline.build(rows, max_bars=100)
    bars = made.bars["trainer"]["learn"]
    assert len(bars) <= 100
    assert (made.total, made.merged_s > 0) == (1000, True)
    assert sum(busy for _, _, busy in bars) == pytest.approx(250)
    assert max(end - start for start, end, _ in bars) <= made.merged_s
    assert made.shares.training_s == pytest.approx(250)


def test_bars_are_packed_as_gap_length_and_busy_time():
    assert timeline._packed([(0.5, 1.5, 1.0), (2.0, 2.25, 0.1)]) == [500, 1000, 1000, 500, 250, 100]


# Episodes


def seen(*scores: float | None) -> list[episodes.Seen]:
    return [episodes.Seen(i, 0, s, s, s is None, 10) for i, s in enumerate(scores)]


def test_the_newest_worst_best_and_faulty_are_chosen():
    many = seen(*([0.5] * 20), 0.0, *([0.5] * 20), 1.0, *([0.5] * 20), None, *([0.5] * 20))
    chosen = {group for group, _ in episodes.choose(many, 5)}
    assert {len(many) - 1, 20, 41, 62} < chosen
    assert len(chosen) == 5


def test_all_are_chosen_where_they_fit_and_none_twice():
    many = seen(0.0, 1.0, None)
    assert episodes.choose(many, 400) == {(0, 0), (1, 0), (2, 0)}
    assert episodes.choose(many, 0) == set()
    assert episodes.choose([], 5) == set()


def test_the_spread_covers_the_whole_run():
    many = [episodes.Seen(i, 0, 0.5, 0.5, False, 10) for i in range(1000)]
    chosen = sorted(group for group, _ in episodes.choose(many, 100))
    middle = [g for g in chosen if 100 <= g < 900]
    assert len(middle) > 15
    assert max(b - a for a, b in itertools.pairwise(middle)) < 120


def test_a_page_holds_a_bounded_number_of_tokens():
    assert len(episodes.choose(seen(*[0.5] * 50), 50, max_tokens=100)) == 10


def test_sampled_tokens_keep_their_log_probability_and_version(tmp_path):
    made = episode(1.0, length=12, version=3)
    (body,) = [b for _, b in _read(tmp_path, [group(0, [made])])]
    (sequence,) = body["sequences"]
    assert sequence["tokens"] == list(range(12))
    assert sequence["runs"] == [4, 3, 1, 3, 1]  # tokens 4-6 and 8-10 are sampled
    assert sequence["logprobs"] == [-494, -617, -740, -987, -1111, -1234]
    assert sequence["versions"] == [[3, 3], [4, 3]]


def test_runs_start_with_the_unsampled(tmp_path):
    whole = Sequence([1, 2], [True, True], [-0.1, -0.2], [0, 0])
    bodies = [b for _, b in _read(tmp_path, [group(0, [Episode(Status.TERMINATED, [whole], [], 1.0, {})])])]
    assert bodies[0]["sequences"][0]["runs"] == [0, 2]


def test_a_group_that_was_played_again_is_marked_as_dropped(tmp_path):
    groups = [group(0, [episode(1.0)]), group(1, [episode(1.0)]), group(0, [episode(0.0)], attempt=1)]
    lines = [line for line, _ in _read(tmp_path, groups)]
    assert [(line["position"], line["attempt"], line["stale"]) for line in lines] == [
        (0, 0, True),
        (1, 0, False),
        (0, 1, False),
    ]


def test_an_errored_episode_has_no_reward_and_says_why(tmp_path):
    ((line, body),) = _read(tmp_path, [group(0, [episode(None, error="the box went away")])])
    assert (line["reward"], line["status"], body["error"]) == (None, "errored", "the box went away")


def test_endless_messages_are_cut(tmp_path):
    ((_, body),) = _read(tmp_path, [group(0, [episode(1.0, text="x" * (episodes.MAX_CHARS + 5))])])
    content = body["messages"][0]["content"]
    assert content.endswith("[5 more characters are in the ledger]")
    assert len(content) < episodes.MAX_CHARS + 100


def _read(tmp_path, groups) -> list:
    run = write_run(tmp_path / "run", groups)
    survey = episodes.survey(run)
    return list(episodes.read(run, episodes.choose(survey.episodes, 100), survey.attempts))


# Token texts


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    marks = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {mark: i for i, mark in enumerate(marks)} | {"Ġhi": len(marks)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    path = tmp_path_factory.mktemp("tokenizer")
    made.save(str(path / "tokenizer.json"))
    return path, made


def test_texts_of_tokens_and_of_parts_of_characters(tokenizer_folder):
    path, made = tokenizer_folder
    decode, source = tokens.load(path, "embedded")
    assert decode is not None
    assert source == str(path)
    assert decode(made.token_to_id("Ġhi")) == " hi"
    assert decode(made.token_to_id("<|end|>")) == "<|end|>"
    assert decode(made.token_to_id("â")) == "â"  # the byte 0xE2 alone is no character: its name is shown
    assert decode(99_999) == ""
    assert decode(1 << 80) == ""


def test_without_a_tokenizer_ids_are_shown_and_the_page_says_so(tmp_path):
    run = write_run(tmp_path / "run", [group(0, [episode(1.0)])])
    shown = data_of(run, count=10)["episodes"]
    assert shown["texts"] == {}
    assert "Tokens are shown as ids" in shown["note"]


def test_a_damaged_tokenizer_costs_only_the_texts(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    decode, why = tokens.load(tmp_path, "embedded")
    assert decode is None
    assert "tokenizer" in why


def test_the_run_s_own_tokenizer_is_used(tmp_path, tokenizer_folder):
    run = write_run(tmp_path / "run", [group(0, [episode(1.0)])])
    shutil.copytree(tokenizer_folder[0], run / "tokenizer")
    shown = data_of(run, count=10)["episodes"]
    assert shown["texts"]["0"] == "!"


# About the run


@pytest.mark.parametrize(
    ("last", "age_s", "checkpoint", "state"),
    [(4, 9999, True, "finished"), (2, 9999, False, "stopped"), (2, 5, False, "running"), (0, 5, False, "starting")],
)
def test_status(tmp_path, last, age_s, checkpoint, state):
    records = [step(i) for i in range(1, last + 1)]
    run = write_run(tmp_path / "run", records=records)
    if checkpoint:
        (run / "checkpoints" / "step-4").mkdir(parents=True)
    found = folder.status(run, folder.read_config(run), records, folder.last_written(run) + age_s)
    assert found["state"] == state
    assert f"{last} of 4" in found["progress"]


def test_values_that_differ_from_the_defaults_are_marked():
    (run, output) = folder.sections({"seed": 7, "steps": RunConfig().steps, "output": {"log": [], "plain": True}})
    assert [(r["key"], r["changed"], r["default"]) for r in run["rows"]] == [
        ("seed", True, "0"),
        ("steps", False, str(RunConfig().steps)),
    ]
    assert [(r["key"], r["changed"]) for r in output["rows"]] == [("log", False), ("plain", True)]


def test_a_configuration_of_another_version_is_shown_as_it_is(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text('env = "demo"\nnewer = 1\n[section]\nkey = "value"\n')
    shown = data_of(run, count=10)["run"]["config"]
    assert [(part["name"], [row["key"] for row in part["rows"]]) for part in shown] == [
        ("", ["env", "newer"]),
        ("section", ["key"]),
    ]


def test_the_end_of_a_log_is_shown(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "logs").mkdir()
    (run / "logs" / "worker-0.log").write_bytes(b"a" * 20_000 + b"\xff the last words")
    (log,) = data_of(run, count=10)["run"]["logs"]
    assert log["cut"]
    assert log["text"].endswith("\ufffd the last words")
    assert len(log["text"]) == folder.LOG_CHARS


# The command


def test_writes_the_page_into_the_run_and_prints_where(tmp_path, capsys):
    run = write_run(tmp_path / "run", [group(0, [episode(1.0)])], [step(1)])
    assert view.main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "page.html")
    assert (run / "page.html").read_text().startswith("<!doctype html>")
    assert view.main([str(run), "--out", str(tmp_path / "other.html"), "--episodes", "0"]) == 0
    assert Elements((tmp_path / "other.html").read_text()).data("data")["episodes"]["lines"] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.html", "run"]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_what_is_not_a_run_is_refused_in_one_line(tmp_path, capsys, make):
    make(tmp_path / "nothing")
    assert view.main([str(tmp_path / "nothing")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "nothing" in error
    assert error.count("\n") == 1


def test_a_page_that_cannot_be_written_is_an_error(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert view.main([str(run), "--out", str(tmp_path / "missing" / "page.html")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert view.main([str(run), "--episodes", "-1"]) == 2


def test_a_damaged_configuration_is_an_error(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text("= broken")
    assert view.main([str(run)]) == 2
    assert "config.toml is not TOML" in capsys.readouterr().err


# Serving


@pytest.fixture
def server(tmp_path):
    run = write_run(tmp_path / "run", [group(0, [episode(1.0)])], [step(1)])
    with PageServer(run, 0, 10) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join(10)


def get(server: PageServer, path: str = "", host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(server.address + path, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_serves_the_page_anew_when_the_run_has_written(server):
    status, page = get(server)
    mark = get(server, "fingerprint")[1]
    assert status == 200
    assert Elements(page).data("data")["fingerprint"] == mark
    with (server.run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step(2)) + "\n")
    os.utime(server.run / "metrics.jsonl", (time.time() + 5, time.time() + 5))
    assert get(server, "fingerprint")[1] != mark
    assert Elements(get(server)[1]).data("data")["curves"]["columns"]["step"] == [1, 2]


def test_serves_nothing_else_and_nobody_else(server):
    assert get(server, "config.toml")[0] == 404
    assert get(server, "../config.toml")[0] == 404
    assert get(server, host="evil.example:80")[0] == 403
    assert server.server_address[0] == "127.0.0.1"
