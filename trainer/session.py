"""One run from its model to its last step: what is loaded, what is started, and that all of it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.console import Console

import envs
from envs import suite as suites
from rollout.engine import Sampling
from rollout.episode import Budget
from rollout.link import LinkServer
from rollout.template import ChatTemplate
from rollout.wire import Group, Purpose, Ticket
from rollout.worker import WorkerConfig
from sandbox import SandboxError
from trainer import checkpoint, embedded, interrupts, lock, scratch
from trainer.batch import is_informative
from trainer.checkpoint import Checkpoints
from trainer.config import RunConfig
from trainer.evals import Evaluations
from trainer.evaluation.beside import Beside
from trainer.inbox import Inbox
from trainer.invocation import Run
from trainer.launch import Supervisor
from trainer.learner import Learner, load_model, pick_device
from trainer.ledger import Ledger
from trainer.live import View, stages
from trainer.loop import train
from trainer.metrics import Metrics, Sink, open_sinks
from trainer.publish import Publisher

STALL_MARGIN_S = 180.0  # beyond the longest episode and its last reply, for an engine that starts


@dataclass(frozen=True)
class Prepared:
    """What bad input can no longer stop: the model is loaded, and everything that the run writes to is open."""

    run: Run
    model_path: str
    template: ChatTemplate
    learner: Learner
    state: checkpoint.State | None
    sinks: list[Sink]
    engine_threads: int
    lock: int


def prepare(run: Run) -> Prepared:
    """Raises `ValueError`, one line, for a model or a checkpoint that cannot be used."""
    config = run.config
    held = lock.hold(run.folder)
    engine_threads, trainer_threads = threads(config)
    torch.set_num_threads(trainer_threads)
    model_path = starting_model(run)
    template = ChatTemplate.load(model_path)
    torch.manual_seed(config.seed)
    template.tokenizer.save_pretrained(run.folder / "tokenizer")  # so that tokens can be read wherever the run goes
    device = pick_device(config.optim.device)
    reference = None
    if config.algorithm.needs_reference:  # of the policy that the run began with, also after a resume
        reference = load_model(starting_model(dataclasses.replace(run, checkpoint=None)), device)
    learner = Learner(load_model(model_path, device), config, reference)
    state = None
    if run.checkpoint is not None:
        state = checkpoint.read_state(run.checkpoint)
        learner.restore(run.checkpoint)
    return Prepared(run, model_path, template, learner, state, open_sinks(run.folder, config), engine_threads, held)


def starting_model(run: Run) -> str:
    """The path of the model that the run goes on from, made now if it is the embedded one."""
    if run.checkpoint is not None:
        return str(run.checkpoint)
    if run.config.model != "embedded":
        return run.config.model
    try:
        with stages() as progress:
            return str(embedded.build(run.config.env, run.config.seed, progress))
    except (OSError, SandboxError) as error:
        raise ValueError(f"the embedded model cannot be made: {error}") from error


def threads(config: RunConfig) -> tuple[int, int]:
    """(for each engine, for the trainer). In turn, both may use them all; at the same time they share them."""
    everyone = config.threads or len(os.sched_getaffinity(0))
    if config.sync:
        return max(1, everyone // config.rollout.workers), everyone
    trainer = max(1, everyone // (config.rollout.workers + 1))
    return max(1, (everyone - trainer) // config.rollout.workers), trainer


def worker_config(prepared: Prepared) -> bytes:
    """The configuration that every worker gets, as JSON."""
    config = prepared.run.config
    rollout = config.rollout
    worker = WorkerConfig(
        model=prepared.model_path,
        engine=rollout.engine,
        slots=rollout.slots,
        context=rollout.context,
        threads=prepared.engine_threads,
        seed=config.seed,
        device=pick_device(config.optim.device),
        dtype=config.optim.dtype,
        sandbox=rollout.sandbox,
        sandbox_slots=rollout.sandbox_slots,
        max_episodes=rollout.slots,
        budget=Budget(wall_s=rollout.episode_timeout_s, generate_s=rollout.episode_timeout_s),
    )
    return msgspec.json.encode(worker)


def ticket(config: RunConfig, purpose: Purpose, id_: int, index: int, attempt: int) -> Ticket:
    """The ticket of one data position: a pure function of the configuration, so that a resumed run makes it again."""
    rollout = config.rollout
    return Ticket(
        id=id_,
        attempt=attempt,
        purpose=purpose,
        env=envs.mix(config.env).pick(index),
        split="train" if purpose == "train" else "heldout",
        index=index,
        group_size=config.group_size if purpose == "train" else 1,
        sampling=Sampling(rollout.max_reply_tokens, rollout.temperature, seed=config.seed),
    )


def execute(prepared: Prepared, console: Console) -> None:
    """Train until the run's last step. Everything that was started is ended, however this ends."""
    run, config, state = prepared.run, prepared.run.config, prepared.state
    with contextlib.ExitStack() as ending:
        folder = scratch.make()
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        address = f"ipc://{folder}/link"
        ledger = Ledger(run.folder / "ledger")
        ending.callback(ledger.close)

        def on_group(group: Group) -> None:
            inbox.receive(group)  # made below: it needs the link, which delivers nothing before start()

        link = LinkServer(address, worker_config(prepared), on_group)
        ending.callback(link.close)
        supervisor = Supervisor(
            address,
            config.rollout.workers,
            run.folder / "logs",
            folder,
            tickets=max(1, config.rollout.slots),  # evaluations have one episode a ticket
            on_death=link.worker_gone,
            arrived=lambda: link.state().counts.get("accepted", 0),
        )
        ending.callback(supervisor.stop)
        ending.callback(link.stop, "the run is over")

        def check() -> None:
            interrupts.check()
            link.check()
            supervisor.check()

        inbox = Inbox(
            lambda id_, attempt: ticket(config, "train", id_, id_, attempt),
            config.steps * config.groups_per_step,
            ledger,
            link,
            state=state.inbox if state else None,
            stall_s=2 * config.rollout.episode_timeout_s + STALL_MARGIN_S,
            check=check,
            informative=lambda group: not config.algorithm.dynamic_sampling or is_informative(group, config.algorithm),
        )
        inbox.dropped.update(state.dropped if state else {})
        log = Metrics(
            run.folder,
            link,
            prepared.sinks,
            start_version=prepared.learner.version,
            elapsed_s=state.elapsed_s if state else 0.0,
        )
        ending.callback(log.close)
        beside = _beside(prepared, log, check)
        if beside is not None:
            ending.callback(beside.close)
        evals = Evaluations(
            inbox,
            lambda id_, index: ticket(config, "eval", id_, index, 0),
            every=config.output.eval_every,
            tasks=config.output.eval_tasks,
            last=config.steps,
            recorded=[int(r["eval/step"]) for r in log.history if "eval/step" in r],
            beside=beside,
        )
        checkpoints = Checkpoints(
            run.folder / "checkpoints", prepared.template.tokenizer, config.output, config.steps, run.checkpoint
        )
        link.start()
        supervisor.start()
        plain = config.output.plain or not console.is_terminal
        with View(config, log, lambda: supervisor.restarts, console, plain=plain):
            train(config, prepared.learner, inbox, Publisher(folder, link), evals, checkpoints, log)


def _beside(prepared: Prepared, log: Metrics, check: Callable[[], None]) -> Beside | None:
    """What evaluates `--eval-suite`, if there is one."""
    config = prepared.run.config
    if not (config.output.eval_suite and config.output.eval_every):
        return None

    def save(folder: Path) -> None:
        prepared.learner.model.save_pretrained(folder)
        prepared.template.tokenizer.save_pretrained(folder)

    key = f"eval/{Path(config.output.eval_suite).stem}/step"
    return Beside(
        prepared.run.folder,
        config,
        save,
        recorded=[int(r[key]) for r in log.history if key in r],
        begun_at=prepared.learner.version,
        stall_s=2 * suites.load(config.output.eval_suite).limits.reply_timeout_s + STALL_MARGIN_S,
        check=check,
    )
