"""The training loop."""

from __future__ import annotations

from trainer.batch import pack
from trainer.checkpoint import Checkpoints
from trainer.config import RunConfig
from trainer.describe import describe
from trainer.evals import Evaluations
from trainer.inbox import Inbox
from trainer.learner import Learner
from trainer.metrics import Metrics
from trainer.publish import Publisher


def train(
    config: RunConfig,
    learner: Learner,
    inbox: Inbox,
    weights: Publisher,
    evals: Evaluations,
    checkpoints: Checkpoints,
    log: Metrics,
) -> None:
    """Run until `config.steps` optimizer steps exist; one step makes one weight version.

    Back-pressure is the tickets: (lag_bound + 1) steps' worth are out at any time, and a step's worth is granted only
    after its weights are published, so workers stop by themselves when the trainer falls behind.
    """
    weights.publish(learner)  # fresh or resumed, engines start here
    evals.wait(learner.version)
    log.evaluations(learner.version, evals.finished())
    ahead = config.lag_bound + 1
    inbox.grant((learner.version + ahead) * config.groups_per_step)
    while learner.version < config.steps:
        with log.timed("wait"):
            groups = inbox.take(config.groups_per_step, oldest=learner.version - config.lag_bound)
        with log.timed("learn"):
            stats = learner.step(pack(groups, learner.algorithm))  # version += 1
        with log.timed("publish"):
            weights.publish(learner)
            inbox.grant((learner.version + ahead) * config.groups_per_step)
        evals.after(learner.version)
        log.step(learner.version, stats | describe(groups) | inbox.dropped)
        log.evaluations(learner.version, evals.finished())
        checkpoints.after(learner, inbox, log.elapsed_s)
    evals.wait(learner.version)
    log.evaluations(learner.version, evals.finished())
