"""What is shown when a run ends."""

from __future__ import annotations

import json

from rich.console import Console

from envs.types import Message, Status, ToolCall
from rollout.engine import Sampling
from rollout.wire import Episode, Group, Ticket
from trainer.ledger import Ledger
from trainer.report import SHOWN_LINES, draw_curve, pick, show_episodes


def group(id_: int, messages: list[Message], *rewards: float, purpose: str = "train") -> Group:
    members = [Episode(Status.TERMINATED, [], messages, r, {"success": r}, kind="easy") for r in rewards]
    return Group(Ticket(id_, 0, purpose, "demo", "train", id_, len(members), Sampling(max_tokens=8)), members, "w")


def shown(folder, *groups: Group) -> str:
    ledger = Ledger(folder / "ledger")
    for one in groups:
        ledger.append(one)
    ledger.close()
    console = Console(width=100, record=True, file=(folder / "console").open("w"))
    show_episodes(folder, console)
    return console.export_text()


def test_picks_the_worst_the_median_and_the_best():
    picked = pick([group(0, [], 0.25, 1.0, 0.0), group(1, [], 0.5, 0.75)])
    assert [(title, e.reward) for title, _, e in picked] == [("worst", 0.0), ("median", 0.5), ("best", 1.0)]
    assert pick([]) == []


def test_shows_messages_and_the_calls_that_their_text_leaves_out(tmp_path):
    messages = [
        Message("user", "[red]Add[/red] 1 and 2."),
        Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)),
        Message("assistant", 'add("1")', tool_calls=(ToolCall("add", {"a": "1"}),)),
    ]
    text = shown(tmp_path, group(0, messages, 1.0), group(1, [Message("user", "an evaluation")], 1.0, purpose="eval"))
    assert "[red]Add[/red] 1 and 2." in text
    assert "→ add(a=1, b=2)" in text
    assert text.count("→") == 3  # once an episode
    assert "an evaluation" not in text


def test_long_messages_are_shortened_and_escape_sequences_spelled_out(tmp_path):
    text = shown(tmp_path, group(0, [Message("user", "\x1b[2Jtop\n" + "line\n" * 1000 + "bottom")], 1.0))
    assert "\x1b" not in text
    assert "\\x1b[2Jtop" in text
    assert "bottom" in text
    assert text.count("│") < 3 * 2 * (SHOWN_LINES + 4)


def test_draws_a_curve_where_there_are_steps(tmp_path):
    assert draw_curve(tmp_path) is None
    records = [{"step": i, "time/elapsed_s": i, "time/step_s": 1.0, "reward/mean": 0.1 * i} for i in range(1, 4)]
    records[2] |= {"eval/step": 2.0, "eval/acme/$Vault-v0/success": 0.5, "eval/acme/$Vault-v0/stderr": 0.1}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    path = draw_curve(tmp_path)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
