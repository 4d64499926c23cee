"""The model, its optimizers, and one training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from trainer import optimizers
from trainer.algorithms import TokenTerms
from trainer.attention import NAME as PACKED_ATTENTION
from trainer.attention import Layout, packed_logits
from trainer.batch import Batch, Packed, Row, collate, microbatches
from trainer.config import RunConfig
from trainer.stats import TokenStats

TOLERANCE = 1e-3  # how far packed attention may be from transformers' own: nats, on average

transformers_logging.disable_progress_bar()  # it would write into the live view


def pick_device(name: str) -> str:
    """`name`, or the GPU where it is "auto" and there is one. Raises `ValueError` for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without it asserts
        raise ValueError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return name


def load_model(path: str, device: str) -> PreTrainedModel:
    """A causal LM with float32 weights and packed attention.

    Raises `ValueError` for a path that holds none, or one whose attention is of another sort than the packed one.
    """
    try:
        AutoConfig.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=PACKED_ATTENTION)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"--model {path}: not a folder with a transformers causal LM, nor a hub id that can be fetched ({reason})"
        ) from error
    model.to(torch.device(device))  # type: ignore[arg-type]  # a decorator hides the signature
    model.eval()  # dropout would make pi differ from the policy that the engine samples
    _check_attention(model)
    return model


@torch.no_grad()
def _check_attention(model: PreTrainedModel) -> None:
    """Compare short packed sequences, two of which begin alike, with transformers' own attention on each: not every
    architecture fits."""
    device = next(model.parameters()).device
    embeddings: Any = model.get_input_embeddings()
    draw = torch.Generator().manual_seed(0)
    one, two = torch.randint(embeddings.num_embeddings, (2, 9), generator=draw).tolist()
    sequences = [one, one[:3] + two[:4], two[:5]]
    layout = Layout.of(sequences, device)
    logits = packed_logits(model, layout, torch.arange(len(layout.tokens), device=device))
    packed = torch.cat([logits[cells[: len(s)]] for cells, s in zip(layout.grid, sequences, strict=True)]).log_softmax(
        -1
    )
    model.set_attn_implementation("eager")
    alone = torch.cat([model(input_ids=torch.tensor([s], device=device), use_cache=False).logits[0] for s in sequences])
    model.set_attn_implementation(PACKED_ATTENTION)
    expected = alone.log_softmax(-1)
    off = (expected.exp() * (packed.log_softmax(-1) - expected).abs()).sum(-1).max().item()
    if not off < TOLERANCE:
        name = type(model).__name__
        raise ValueError(f"{name} cannot be trained here: packed attention is off by {off:.2g} nats")


class Learner:
    """Holds the policy. `version` counts the optimizer steps made; it is the version of the weights as they are.

    Under `torch.distributed`, every rank is given the same batch and takes its share of the micro-batches; gradients
    are summed. Token weights come from the whole batch, so ranks, micro-batches and row order leave the gradient as
    it is.
    """

    def __init__(self, model: PreTrainedModel, config: RunConfig, reference: PreTrainedModel | None = None) -> None:
        self.model = model
        self.config = config
        self.algorithm = config.algorithm
        self.reference = reference
        if self.algorithm.needs_reference and reference is None:
            raise ValueError("--kl-coef above 0 needs a reference model")
        self.optimizers = optimizers.build(model, config.optim)
        self._peaks = optimizers.peaks(self.optimizers)
        self.device = next(model.parameters()).device
        self.version = 0

    def step(self, batch: Batch) -> dict[str, float]:
        """One step on `batch`; `version` grows by 1 even where there was nothing to learn from.

        Returns figures for the metrics: `policy/...`, `train/...`.
        """
        config = self.config.optim
        share = optimizers.schedule(self.version, self.config.steps, config.schedule, config.warmup_steps)
        optimizers.set_learning_rate(self.optimizers, self._peaks, share)
        stats = TokenStats(self.version, self.device)
        proximal = self._proximal(batch.rows) if config.minibatches > 1 else None
        norms, skipped = [], 0
        for part in range(config.minibatches):
            chosen = [i for i, row in enumerate(batch.rows) if row.group % config.minibatches == part]
            if not chosen:
                continue
            self._accumulate(batch.rows, chosen, proximal, stats)
            norm = self._update()
            norms.append(norm)
            skipped += not torch.isfinite(torch.tensor(norm))
        self.version += 1
        return stats.result() | {
            "train/tokens_in": float(sum(len(row.tokens) for row in batch.rows)),
            "train/grad_norm": max(norms, default=0.0),
            "train/skipped_updates": float(skipped),
            "train/learning_rate_share": share,
            "groups/zero_variance_share": batch.zero_variance / max(1, batch.groups),
        }

    def gradient(self, batch: Batch) -> dict[str, Tensor]:
        """The gradient of the whole batch's loss by parameter name, without an update."""
        self._accumulate(batch.rows, list(range(len(batch.rows))), None, TokenStats(self.version, self.device))
        gradient = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return gradient

    def _accumulate(
        self, rows: list[Row], chosen: list[int], proximal: dict[int, Tensor] | None, stats: TokenStats
    ) -> None:
        """Leave the gradient of the rows `chosen` in the parameters' `.grad`, summed over ranks."""
        part = [rows[i] for i in chosen]
        scales = self.algorithm.scales([r.size for r in part], [r.episode for r in part], self.config.rollout.context)
        for bin_ in self._share(microbatches(part, self.config.optim.micro_tokens)):
            packed = collate([part[i] for i in bin_], [scales[i] for i in bin_], self.device)
            current, entropy = self._logprobs(self.model, packed)
            old = current.detach() if proximal is None else torch.cat([proximal[chosen[i]] for i in bin_])
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference = self._logprobs(self.reference, packed)[0]
            terms = TokenTerms(current, old, packed.behaviour, entropy, packed.advantage, packed.row, reference)
            loss, clipped = self.algorithm.loss(terms)
            total = (loss * packed.scale).sum()
            total.backward()
            stats.add(terms, clipped, total, [part[i] for i in bin_])
        if dist.is_initialized():
            for p in self.model.parameters():
                if p.requires_grad:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                    dist.all_reduce(p.grad)

    def _update(self) -> float:
        """Clip, step and clear. An update whose gradient is not finite is skipped. Returns the norm before clipping."""
        bound = self.config.optim.grad_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), bound).item()
        if norm < float("inf"):
            for optimizer in self.optimizers:
                optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return norm

    @torch.no_grad()
    def _proximal(self, rows: list[Row]) -> dict[int, Tensor]:
        """log pi of every row's sampled tokens before the step's first update."""
        found: dict[int, Tensor] = {}
        for bin_ in microbatches(rows, self.config.optim.micro_tokens):
            packed = collate([rows[i] for i in bin_], [1.0] * len(bin_), self.device)
            logprobs = self._logprobs(self.model, packed)[0]
            found |= zip(bin_, logprobs.split([rows[i].size for i in bin_]), strict=True)
        return found

    def _logprobs(self, model: PreTrainedModel, packed: Packed) -> tuple[Tensor, Tensor]:
        """log pi of the sampled tokens and the entropy at each [M], at the sampling temperature, in nats."""
        with self._autocast():
            logits = packed_logits(model, packed.layout, packed.keep)
        distribution = (logits.float() / self.config.rollout.temperature).log_softmax(-1)  # [U, vocab]
        entropy = -(distribution.exp() * distribution).sum(-1)
        return distribution[packed.predict, packed.targets], entropy[packed.predict]

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.optim.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    @staticmethod
    def _share(bins: list[list[int]]) -> Iterator[list[int]]:
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        yield from bins[rank::ranks]

    def named_tensors(self) -> dict[str, Tensor]:
        """The weights to publish. Tied parameters appear once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def save(self, folder: Path) -> None:
        """Write the model in transformers' format, and the optimizers beside it. Raises `OSError` (disk full)."""
        state = {"version": self.version, "optimizers": [o.state_dict() for o in self.optimizers]}
        try:
            self.model.save_pretrained(folder)
            torch.save(state, folder / "optimizer.pt")
        except (SafetensorError, RuntimeError) as error:  # what either library makes of a full disk
            raise OSError(f"cannot write the checkpoint {folder}: {error}") from error

    def restore(self, folder: Path) -> None:
        """Take the optimizers and the version from `folder`; the model must have been loaded from there.

        Raises `ValueError` for a damaged file.
        """
        try:
            state = torch.load(folder / "optimizer.pt", map_location=self.device, weights_only=True)
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.version = state["version"]
        except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError, ValueError) as error:
            raise ValueError(f"{folder}: the optimizer's state is damaged ({type(error).__name__}: {error})") from error
