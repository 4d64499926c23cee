from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

import envs
from envs import ToolEnv, UnknownEnvironment, register
from envs.doc_search.env import DocSearch


@pytest.mark.parametrize(
    "text", ["doc_search", "doc_search-v0", "envs:doc_search", "envs:doc_search-v0", "envs.doc_search.env:DocSearch"]
)
def test_every_spelling_makes_the_environment(text: str) -> None:
    env = envs.make(text)
    assert type(env) is DocSearch
    assert env.env_id == text
    assert (env.registered_id, env.version, env.max_turns) == ("doc_search-v0", 0, 5)
    assert env.spec is not None
    assert env.spec.id == "doc_search-v0"


def test_arguments_are_typed() -> None:
    env = envs.make("doc_search?level=2&documents=8&max_turns=3")
    assert isinstance(env, DocSearch)
    assert (env.level, env.size, env.max_turns) == (2, 8, 3)
    assert envs.make("doc_search?level=1-2").level == (1, 2)  # type: ignore[attr-defined]
    assert DocSearch.max_turns == 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("doc_serch", "did you mean doc_search"),
        ("code_exec-v9", "did you mean code_exec"),
        ("zzz", "there are: .*code_exec"),
        ("no_such_module:X", "no_such_module"),
        ("envs:Nope", "no environment 'Nope'"),
        ("json:loads", "no environment 'loads'; it has no ToolEnv class"),
        ("no/such/file.py:X", "there is no file"),
    ],
)
def test_unknown_environments_name_the_nearest(text: str, complaint: str) -> None:
    with pytest.raises(UnknownEnvironment, match=complaint):
        envs.make(text)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("levl=2", "'levl', did you mean level"),
        ("level", "'level'"),
        ("level=x", "level='x' is not int"),
        ("level=9", "level must be one of 1, 2, 3, 4"),
        ("level=2-1", "level must be"),
        ("documents=2", "documents must be 6"),
        ("max_turns=0", "max_turns must be 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        envs.make(f"doc_search?{arguments}")


def test_ids_are_versioned_and_unique() -> None:
    with pytest.raises(ValueError, match="name-vN"):
        register("acme/NoVersion")
    with pytest.raises(ValueError, match="already registered"):

        @register("doc_search-v0")
        class Other(ToolEnv):
            pass


def test_the_newest_version_is_the_default() -> None:
    @register("acme/Twice-v1")
    class One(ToolEnv):
        pass

    @register("acme/Twice-v12", max_turns=2)
    class Twelve(ToolEnv):
        pass

    assert type(envs.make("acme/Twice")) is Twelve
    assert type(envs.make("acme/Twice-v1")) is One
    assert (Twelve.version, Twelve.max_turns, One.max_turns) == (12, 2, ToolEnv.max_turns)


def test_gymnasium_makes_wraps_and_vectorises_it() -> None:
    env = RecordEpisodeStatistics(TimeLimit(gymnasium.make("doc_search-v0", level=1), 2))
    env.reset(seed=4)
    env.step("search('x')")
    _, _, terminated, truncated, info = env.step("search('x')")
    assert (terminated, truncated, info["episode"]["l"]) == (False, True, 2)
    env.close()
    many = gymnasium.make_vec("negotiation-v0", num_envs=2, vectorization_mode="sync")
    observations, _ = many.reset(seed=1)
    assert all(text.startswith("items ") for text in observations)
    _, rewards, terminated, _, _ = many.step(("walk_away()", "say('hello')"))
    assert rewards.tolist() == [0.0, 0.0]
    assert terminated.tolist() == [True, False]
    many.close()


def test_importing_it_stays_light() -> None:
    code = "import sys, envs; print([m for m in ('torch', 'transformers', 'bm25s', 'rollout') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "[]"


def test_installed_packages_announce_their_environments(tmp_path: Path) -> None:
    (tmp_path / "acme_games.py").write_text(
        "from envs import ToolEnv, register\n\n@register('acme/Dice-v2', max_turns=3)\nclass Dice(ToolEnv):\n    pass\n"
    )
    info = tmp_path / "acme_games-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-games\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slipstream.envs]\nacme/Dice-v2 = acme_games:Dice\n")
    code = "import envs; e = envs.make('acme/Dice'); print(type(e).__name__, e.max_turns, e.version, envs.known_ids())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert out.stdout.startswith("Dice 3 2 ['acme/Dice-v2', ")
