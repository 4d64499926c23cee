"""One configuration from the command line, from a file, and in a run's folder; bad input names the thing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.algorithms import make
from trainer.config import RunConfig, differences, read_toml, write_toml
from trainer.invocation import parse


def test_a_file_and_the_command_line_give_the_same_configuration(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('env = "doc_search"\nsteps = 7\n[optim]\nlr = 0.5\n[output]\nlog = ["tensorboard"]\nname = "a"\n')
    runs = ["--runs-dir", str(tmp_path / "runs")]
    from_file = parse(["--config", str(file), *runs])
    options = ["--env", "doc_search", "--steps", "7", "--lr", "0.5", "--log", "tensorboard", "--name", "b"]
    from_options = parse([*options, *runs])
    assert differences(from_file.config, from_options.config) == ["output.name: 'a' -> 'b'"]
    assert read_toml(from_file.folder / "config.toml") == from_file.config


def test_options_override_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("steps = 7\n[optim]\nlr = 0.5\n")
    run = parse([f"--config={file}", "--steps", "9", "--runs-dir", str(tmp_path)])
    assert (run.config.steps, run.config.optim.lr) == (9, 0.5)


def test_every_default_survives_a_round_trip(tmp_path):
    write_toml(RunConfig(), tmp_path / "c.toml")
    assert read_toml(tmp_path / "c.toml") == RunConfig()


def test_an_algorithm_brings_its_options(tmp_path):
    """By name on the command line, in a file, and in a resumed run's folder; another one's options are refused."""
    runs = ["--runs-dir", str(tmp_path)]
    first = parse(["--algorithm", "dapo", "--overlong-tokens", "64", *runs, "--name", "a"])
    assert (first.config.algorithm.overlong_tokens, first.config.algorithm.advantage) == (64, "mean_std")
    assert parse(["--config", str(first.folder / "config.toml"), *runs, "--name", "b"]).config.algorithm == (
        first.config.algorithm
    )
    assert parse(["--resume", str(first.folder)]).config == first.config
    assert parse(["--algorithm=gspo", *runs, "--name", "c"]).config.algorithm == make("gspo")
    with pytest.raises(ValueError, match="--algorithm gspo: the .algorithm. section of .* is for dapo"):
        parse(["--config", str(first.folder / "config.toml"), "--algorithm=gspo", *runs, "--name", "d"])
    with pytest.raises(SystemExit):
        parse(["--algorithm", "gspo", "--overlong-tokens", "64", *runs])
    with pytest.raises(ValueError, match="another configuration.*algorithm.algorithm: 'dapo' -> 'grpo'"):
        parse(["--resume", str(first.folder), "--algorithm", "grpo"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "unknown key 'stepz'; did you mean 'steps'?"),
        ("lr = 0.1", r"unknown key 'lr'; it belongs in \[optim\]"),
        ("[optim]\nlearning = 0.1", r"\[optim\]: unknown key 'learning'"),
        ("optim = 3", r"'optim' is a section"),
        ('steps = "many"', "steps"),
        ('[algorithm]\ncorrection = "magic"', "magic|correction"),
        ("[algorithm]\noverlong_tokens = 3", r"\[algorithm\]: unknown key 'overlong_tokens'"),
        ('[algorithm]\nalgorithm = "gpso"', "did you mean 'gspo'"),
        ("algorithm = 3", "'algorithm' is a section"),
        ("steps = = 3", "not TOML"),
    ],
)
def test_bad_files_name_the_key(tmp_path, text, message):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_toml(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group-size", "1", "--advantage", "mean_std"], "--group-size 1.*grpo.*at least 2"),
        (["--algorithm", "gpso"], "'gpso', did you mean 'gspo'"),
        (["--algorithm=dapo", "--keep-zero-variance"], "--dynamic-sampling"),
        (["--top-p", "0.9"], "--top-p.*recomputes"),
        (["--top-k", "40"], "--top-k.*recomputes"),
        (["--min-p", "0.1"], "--min-p.*recomputes"),
        (["--repetition-penalty", "1.1"], "--repetition-penalty.*recomputes"),
        (["--temperature", "0"], "--temperature 0.0.*greedy"),
        (["--steps", "0"], "--steps must be above 0"),
        (["--max-lag", "-1"], "--max-lag must not be negative"),
        (["--group-size", "200"], "--group-size 200.*--slots 128"),
        (["--env", "nope"], "nope"),
        (["--env", "code_exec?levle=2"], "levle"),
        (["--env", "code_exec,doc_search=-1"], "-1"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["--resume", "/nonexistent"], "/nonexistent"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        parse([*options, "--runs-dir", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    parse(["--runs-dir", str(tmp_path), "--name", "a"])
    with pytest.raises(ValueError, match="holds a run already.*--resume"):
        parse(["--runs-dir", str(tmp_path), "--name", "a"])


def test_a_run_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write the run folder"):
        parse(["--runs-dir", str(tmp_path / "file"), "--name", "a"])


def test_resume_needs_nothing_else_and_refuses_another_configuration(tmp_path):
    first = parse(["--runs-dir", str(tmp_path), "--name", "a", "--lr", "0.25", "--steps", "5"])
    again = parse(["--resume", str(first.folder)])
    assert again.config == first.config
    assert again.checkpoint is None
    with pytest.raises(ValueError, match=r"another configuration: optim.lr: 0.25 -> 0.5"):
        parse(["--resume", str(first.folder), "--lr", "0.5"])
    longer = parse(["--resume", str(first.folder), "--steps", "9"])
    assert longer.config == dataclasses.replace(first.config, steps=9)
    with pytest.raises(ValueError, match="--steps 3 is below"):
        parse(["--resume", str(first.folder), "--steps", "3"])


def test_help_groups_the_options_and_a_typo_names_the_nearest():
    def run(*args):
        command = [sys.executable, "-m", "trainer.run", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])

    shown = run("--help")
    assert shown.returncode == 0
    for part in ("--groups-per-step", "Off-policy correction", "algorithm options", "rollout options", "--resume"):
        assert part in shown.stdout, part
    typo = run("--group-sise", "4")
    assert typo.returncode == 2
    assert "--group-size" in typo.stderr + typo.stdout
    unknown = run("--env", "nope")
    assert unknown.returncode == 2
    assert len(unknown.stderr.strip().splitlines()) == 1
    assert "code_exec" in unknown.stderr
