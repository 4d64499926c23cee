"""Suite files: what they mean, and what is said of each kind of mistake in one."""

from __future__ import annotations

import msgspec
import pytest

from envs import suite

WHOLE = """
description = "two parts"
attempts = 3

[[environments]]
env = "code_exec?max_turns=3"
tasks = 4
first = 10
arguments = { level = [1, 2] }

[[environments]]
env = "negotiation"
tasks = 5
split = "train"

[limits]
max_reply_tokens = 7

[sampling]
temperature = 0.5
"""


def test_parts_are_the_combinations_of_the_arguments():
    parts = suite.parse(WHOLE, "here").parts()
    assert [(p.env, p.env_id, p.label, p.first, p.tasks) for p in parts] == [
        ("code_exec?max_turns=3&level=1", "code_exec-v0", "code_exec?max_turns=3&level=1", 10, 4),
        ("code_exec?max_turns=3&level=2", "code_exec-v0", "code_exec?max_turns=3&level=2", 10, 4),
        ("negotiation", "negotiation-v0", "negotiation [train]", 0, 5),
    ]


ENTRY = '[[environments]]\nenv = "code_exec"\ntasks = 2\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("attemps = 2", "s.toml: unknown key 'attemps'; did you mean 'attempts'?"),
        ("zzz = 2", "s.toml: unknown key 'zzz'; there are: environments, attempts"),
        (ENTRY.replace("tasks", "task"), r"s.toml \[environments\] 1: unknown key 'task'; did you mean 'tasks'?"),
        (f"{ENTRY}[limits]\nconext = 3", r"s.toml \[limits\]: unknown key 'conext'; did you mean 'context'?"),
        (f"{ENTRY}[sampling]\ntemperature = -1", r"s.toml: Expected `float` >= 0"),
        (f"{ENTRY}[sampling]\ntemperature = nan", "s.toml: (a limit or the temperature is not|Expected)"),
        (ENTRY.replace("2", "0"), r"s.toml: Expected `int` >= 1 - at `\$.environments\[0\].tasks`"),
        (ENTRY.replace("2", '"2"'), "s.toml: Expected `int`, got `str`"),
        (ENTRY.replace("_exec", "_exe"), "s.toml: no environment 'code_exe'; did you mean code_exec"),
        (f'{ENTRY}split = "test"', "s.toml: Invalid enum value 'test'"),
        (f"{ENTRY}arguments = {{ levl = [1] }}", "s.toml: CodeExec takes no argument 'levl', did you mean level=…?"),
        (f"{ENTRY}arguments = {{ level = [99] }}", "s.toml: level must be one of"),
        (f"{ENTRY}arguments = {{ level = [] }}", "s.toml: an argument of 'code_exec' has no values to go through"),
        (ENTRY * 2, "s.toml: 'code_exec' is in the suite twice"),
        (
            f"{ENTRY}[[environments]]\nenv = 'negotiation?opponent=self'\ntasks = 1",
            "s.toml: .*against itself: name an oppo",
        ),
        ("", "s.toml: .*missing required field `environments`"),
        ("environments = []", r"s.toml: there are no \[\[environments\]\]"),
        ("environments = 3", "s.toml: Expected `array`, got `int`"),
        ("attempts = ", "s.toml is not TOML"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(text, told):
    with pytest.raises(ValueError, match=told) as error:
        suite.parse(text, "s.toml")
    assert "\n" not in str(error.value)


def test_the_hash_is_of_what_is_played(monkeypatch):
    whole = suite.parse(WHOLE, "here")
    again = msgspec.structs.replace(whole, description="other words")
    assert again.content_hash() == whole.content_hash()
    for change in ({"attempts": 4}, {"limits": suite.Limits(max_reply_tokens=8)}, {"sampling": suite.Decoding()}):
        assert msgspec.structs.replace(whole, **change).content_hash() != whole.content_hash()
    before = whole.content_hash()
    monkeypatch.setattr("envs.negotiation.env.Negotiation.registered_id", "negotiation-v1")
    assert whole.content_hash() != before


@pytest.mark.parametrize("name", ["smoke", "heldout", "families"])
def test_the_suites_that_ship_are_of_held_out_tasks_of_every_family(name):
    parts = suite.load(name).parts()
    assert {p.env_id for p in parts} == {"code_exec-v0", "doc_search-v0", "negotiation-v0"}
    assert {p.split for p in parts} == {"heldout"}


def test_a_suite_by_name_or_path(tmp_path):
    with pytest.raises(ValueError, match="no suite 'heldot'; did you mean 'heldout'?"):
        suite.load("heldot")
    with pytest.raises(ValueError, match="no suite 'zzz'; there are: families, heldout, smoke"):
        suite.load("zzz")
    with pytest.raises(ValueError, match="cannot read the suite .*gone.toml: No such file"):
        suite.load(str(tmp_path / "gone.toml"))
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    assert suite.load(str(path)) == suite.parse(WHOLE, "here")
