"""Imitation, and the embedded model that it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.types import Message, ToolCall
from rollout.template import ChatTemplate
from trainer import demos, embedded, sft
from trainer.config import OptimConfig, RunConfig
from trainer.invocation import Run
from trainer.learner import load_model
from trainer.session import prepare

DEMO = demos.Demo(
    "doc_search",
    [
        Message("user", "question: where does Ann Lee live"),
        Message("assistant", "", tool_calls=(ToolCall("search", {"query": "Ann Lee"}),)),
        Message("tool", "Ann Lee: lives Oslo", name="search"),
        Message("assistant", "", tool_calls=(ToolCall("answer", {"text": "Oslo"}),)),
    ],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return embedded.blank(tmp_path_factory.mktemp("blank"), [DEMO] * 3, seed=0)


def test_only_what_the_demonstrator_said_is_imitated(folder):
    template = ChatTemplate.load(str(folder))
    [row] = sft.rows_of(template, [DEMO], demos.tools_of([DEMO]), 500)
    said = template.decode([t for t, s in zip(row.tokens, row.sampled, strict=True) if s])
    given = template.decode([t for t, s in zip(row.tokens, row.sampled, strict=True) if not s])
    assert said == 'search("Ann Lee")<|end|>answer("Oslo")<|end|>'
    assert given.startswith("<|user|>question: where does Ann Lee live<|end|><|assistant|>")
    assert "<|tool|>Ann Lee: lives Oslo<|end|>" in given


def test_demonstrations_longer_than_the_context_are_left_out(folder):
    template = ChatTemplate.load(str(folder))
    assert sft.rows_of(template, [DEMO], demos.tools_of([DEMO]), 10) == []


def test_imitation_learns_a_demonstration_by_heart(folder):
    template = ChatTemplate.load(str(folder))
    rows = sft.rows_of(template, [DEMO], demos.tools_of([DEMO]), 500)
    model = load_model(str(folder), "cpu")
    config = sft.SFTConfig(steps=40, batch=4, optim=OptimConfig(lr=3e-3, muon_lr=0.02))
    losses = []
    sft.imitate(model, rows, config, report=lambda step, loss: losses.append(loss))
    assert losses[0] > 4
    assert losses[-1] < 0.1


def test_the_command_line_stage_writes_a_model_that_transformers_opens(tmp_path):
    file = tmp_path / "demos.jsonl"
    demos.write(file, [DEMO] * 8)
    out = tmp_path / "out"
    arguments = ["--env", "doc_search", "--demos", str(file), "--out", str(out), "--steps", "2", "--threads", "1"]
    assert sft.main(arguments) == 0
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(out).chat_template == embedded.TEMPLATE
    again = [*arguments[:-6], "--out", str(tmp_path / "more"), "--model", str(out), "--steps", "1", "--threads", "1"]
    assert sft.main(again) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no demonstrations"),
        ('{"env": 3}\n', ":1: not a demonstration"),
        (None, "cannot read demonstrations"),
    ],
)
def test_bad_demonstrations_name_the_file_and_the_line(tmp_path, capsys, content, message):
    file = tmp_path / "demos.jsonl"
    if content is not None:
        file.write_text(content)
    assert sft.main(["--demos", str(file), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_an_environment_without_a_demonstrator_says_what_to_do():
    with pytest.raises(ValueError, match="no demonstrator.*--demos.*--model"):
        demos.play("tests.chaos.deterministic:Parrot", 1, 0)


def test_demonstrations_of_a_mix_are_played_with_its_weights():
    played = demos.play("doc_search,negotiation=0.5", 60, 0)
    share = sum("negotiation" in d.env for d in played) / len(played)
    assert 0.15 < share < 0.55
    assert played == demos.play("doc_search,negotiation=0.5", 60, 0)


def test_the_cache_key_follows_the_seed_and_the_environments():
    keys = {embedded._key(env, seed) for env in ("doc_search", "negotiation") for seed in (0, 1)}
    assert len(keys) == 4


def test_a_model_without_a_chat_template_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            text = file.read_bytes()
            if file.name == "tokenizer_config.json":
                settings = json.loads(text)
                settings.pop("chat_template", None)
                text = json.dumps(settings).encode()
            (tmp_path / file.name).write_bytes(text)
    with pytest.raises(ValueError, match="no chat template"):
        prepare(Run(tmp_path / "run", RunConfig(model=str(tmp_path)), None))


def test_a_path_that_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        prepare(Run(tmp_path / "run", RunConfig(model=str(tmp_path)), None))
