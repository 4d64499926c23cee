"""One evaluation from its options to its result."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from envs.suite import Suite
from rollout.wire import Episode
from trainer.config import differences, dump_toml
from trainer.evaluation import inspect_log, models, report, show
from trainer.evaluation.config import EvalConfig, ReadConfig, words
from trainer.evaluation.play import Unit, play, units
from trainer.evaluation.rescore import rescore
from trainer.evaluation.store import (
    CONFIG,
    EPISODES,
    REPORT,
    RESULT,
    SUITE,
    TOKENIZER,
    Played,
    Record,
    Store,
    groups_of,
    read_model_name,
    read_played,
    read_records,
    write_file,
    write_played,
    write_records,
)
from trainer.evaluation.summary import Key, Result, compare, summarise

BASELINE = "baseline"  # the folder of one that was played, inside the evaluation's

Records = Mapping[Key, Record]


def run(config: EvalConfig, console: Console) -> Result:
    """Play what is missing, compare with the baseline, write everything, and print it.

    Raises `ValueError`, one line, for bad input; `KeyboardInterrupt`; and `EngineError`, `SandboxError`, `CannotPlay`
    or `OSError` for what ended it on the way.
    """
    if config.output.inspect:
        inspect_log.check()
    if config.read.rescore:
        return rescored(config, console)
    check_baseline(config)
    result, records = evaluate(config, console)
    others: Records = {}
    if config.output.baseline:
        other, others = baseline(config, result, console)
        against = compare(result, records, config.output.baseline, other, others)
        result = msgspec.structs.replace(result, baseline=against)
    present(config, config.folder, result, records, others, console)
    return result


def present(
    config: EvalConfig, folder: Path, result: Result, records: Records, others: Records, console: Console
) -> None:
    """Write the result, its page and what else was asked for, and print it."""
    write_result(folder, result)
    page = report.page(folder, read_played(folder), result, records, others)
    write_file(folder / REPORT, page.encode())
    written = [f"folder: {folder}", f"page: {folder / REPORT}"]
    if config.output.inspect:
        written.append(f"inspect: {inspect_log.write(folder, read_played(folder), result, records)}")
    show.print_result(result, console)
    if config.read.show:
        show.print_episodes(groups_of(records), config.read.show, config.read.order, console)
    console.print("\n".join(written), soft_wrap=True, highlight=False)


def rescored(config: EvalConfig, console: Console) -> Result:
    """Score the folder's episodes anew, into a folder of their own inside it, and compare with the old scores."""
    if not (config.folder / EPISODES).exists():
        raise ValueError("--rescore needs --out DIR, the folder of an evaluation that was played")
    old, text = read_records(config.folder), config.read.rescore
    new, diverged = rescore(old, text, config.play)
    folder = config.folder / f"rescored-{words(Path(text).name)}"
    folder.mkdir(exist_ok=True)
    played = read_played(config.folder)
    if (config.folder / TOKENIZER).exists():
        shutil.copytree(config.folder / TOKENIZER, folder / TOKENIZER, dirs_exist_ok=True)
    write_file(folder / CONFIG, dump_toml(replace(config.kept(), read=ReadConfig(rescore=text))).encode())
    write_played(folder, played)
    write_records(folder, new.values())
    name = read_model_name(config.folder)
    before = summarise((Path(config.suite).stem, name), played, old, {})
    result = summarise((before.suite, f"{name}, rescored by {text}"), played, new, {})
    result = msgspec.structs.replace(result, baseline=compare(result, new, "the old rewards", before, old))
    present(config, folder, result, new, old, console)
    told = f"{len(new)} episodes replayed; {diverged} diverged from what was saved, and have no score"
    console.print(told, soft_wrap=True, highlight=False)
    return result


def evaluate(config: EvalConfig, console: Console) -> tuple[Result, Records]:
    """Play what the evaluation's folder does not hold yet."""
    suite = config.load_suite()
    model = None if _is_complete(config.folder) else models.find(config.model, suite)
    with Store(config.folder, config, _played(suite, model, config.folder)) as store:
        missing = missing_of(suite, store.records)
        if missing:
            assert model is not None, "a folder that lacks episodes is not complete"
            _keep_tokenizer(model.path, config.folder)
            planned = {part.label: part.tasks * suite.attempts for part in suite.parts()}
            plain = config.output.plain or not console.is_terminal
            with show.Progress(_title(config), planned, store.records, console, plain=plain) as progress:

                def on_played(unit: Unit, episodes: Sequence[Episode], faults: dict[str, int]) -> None:
                    numbered = enumerate(episodes, unit.first)
                    store.append((Record.of(unit.task, n, unit.ticket, e) for n, e in numbered), faults)
                    progress.tick()

                play(config, suite, model, missing, on_played)
        prices = None
        if config.output.price_in is not None and config.output.price_out is not None:
            prices = config.output.price_in, config.output.price_out
        names = Path(config.suite).stem, config.model
        return summarise(names, store.played, store.records, store.faults, prices), store.records


def check_baseline(config: EvalConfig) -> None:
    """Raise `ValueError` for a baseline that cannot be compared with, before anything is played."""
    name, suite = config.output.baseline, config.load_suite()
    if (Path(name) / SUITE).exists() and name:
        played = read_played(Path(name))
        if played.suite_hash != suite.content_hash():
            changed = differences(played.suite, suite) or ["an environment's version"]
            raise ValueError(f"--baseline {name} is of another suite: {'; '.join(changed)}")
    elif name and not _is_complete(config.folder / BASELINE):
        models.find(name, suite)


def baseline(config: EvalConfig, result: Result, console: Console) -> tuple[Result, Records]:
    """The evaluation to compare with: loaded from its folder, or played into a folder of its own inside this one."""
    name = config.output.baseline
    folder = Path(name)
    if (folder / SUITE).exists():
        found = read_records(folder)
        return summarise((result.suite, read_model_name(folder)), read_played(folder), found, {}), found
    output = replace(config.output, out=config.folder / BASELINE, baseline="")
    other, records = evaluate(replace(config, model=name, output=output), console)
    write_result(config.folder / BASELINE, other)
    return other, records


def missing_of(suite: Suite, records: Records) -> list[Unit]:
    """What is to be played: all that was not, and what ended errored."""

    def is_there(key: Key) -> bool:
        return key in records and records[key].score is not None

    return [u for u in units(suite) if not all(is_there((u.task, u.first + i)) for i in range(u.ticket.group_size))]


def write_result(folder: Path, result: Result) -> None:
    write_file(folder / RESULT, msgspec.json.format(msgspec.json.encode(result)))


def _is_complete(folder: Path) -> bool:
    """Whether the folder holds an evaluation that needs no model any more."""
    if not ((folder / CONFIG).exists() and (folder / SUITE).exists()):
        return False
    return not missing_of(read_played(folder).suite, read_records(folder))


def _played(suite: Suite, model: models.Model | None, folder: Path) -> Played:
    ids = sorted({part.env_id for part in suite.parts()})
    if model is None:
        saved = read_played(folder)
        return Played(suite, suite.content_hash(), ids, saved.weights, saved.weight_version)
    return Played(suite, suite.content_hash(), ids, model.fingerprint, model.version)


def _keep_tokenizer(model: str, folder: Path) -> None:
    """Copy the model's tokenizer, so that tokens can be read wherever the folder goes."""
    source = Path(model) / "tokenizer.json"
    if source.exists():
        (folder / TOKENIZER).mkdir(exist_ok=True)
        write_file(folder / TOKENIZER / "tokenizer.json", source.read_bytes())


def _title(config: EvalConfig) -> str:
    return f"{Path(config.suite).stem} · {config.model} → {config.folder}"
