"""The embedded engine: any transformers causal LM, on a CPU or one GPU, in this process.

Requests are batched continuously. Passes run one at a time in a worker thread, so the event loop stays responsive;
between two of them requests come and go, and new weights are taken.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_log

from rollout import weights
from rollout.engine import Completion, EngineError, NoRoom, Sampling, WeightsError
from rollout.engines.slots import Plan, Request, Slots
from rollout.engines.torch_cache import ATTENTION, Pass, SlotCache
from rollout.engines.torch_sampling import draw

# How far the engine's log-probabilities may be from transformers' own on the same tokens: nats, on average.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}


class TorchEngine:
    """An `Engine` in this process. `version` is 0 until weights are loaded.

    slots: how many requests are generated at once; a session that is idle keeps one as long as nobody needs it.
    context: the most tokens of prompt and reply together. threads: of the CPU, for one pass. seed: mixed into every
    request's own.
    """

    def __init__(
        self,
        model_path: str,
        *,
        slots: int = 64,
        context: int = 2048,
        threads: int = 1,
        seed: int = 0,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        if slots < 1 or context < 2 or threads < 1:
            raise ValueError(f"an engine needs slots, context and threads: not {slots}, {context} and {threads}")
        if getattr(torch, dtype, None) not in TOLERANCE:
            raise ValueError(f"dtype {dtype!r} is none of {', '.join(str(d)[6:] for d in TOLERANCE)}")
        self.version = 0
        self.model_path, self.context, self.seed = model_path, context, seed
        self.drawn_tokens = 0
        self.slots = Slots(slots)
        self._device, self._dtype = torch.device(device), getattr(torch, dtype)
        self._cache = SlotCache(slots, context)
        self._thread = ThreadPoolExecutor(1, "engine", torch.set_num_threads, (threads,))
        self._loads: list[tuple[str, int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None
        self._model: Any = None

    async def start(self) -> None:
        """Load the model. Raises `ValueError` if it cannot be loaded, or computes something else here."""
        if self._task is None:
            await self._in_thread(self._open)
            self._task = asyncio.create_task(self._run(), name="engine")
            self._task.add_done_callback(self._stopped)

    async def generate(self, token_ids: list[int], sampling: Sampling, *, session: str) -> Completion:
        """See `Engine.generate`."""
        self.check()
        if sampling.temperature < 0 or sampling.top_p <= 0:
            raise ValueError(f"temperature {sampling.temperature} and top_p {sampling.top_p} are no distribution")
        if not token_ids or sampling.max_tokens < 1:
            raise ValueError(f"a prompt of {len(token_ids)} tokens and a reply of at most {sampling.max_tokens}")
        if len(token_ids) >= self.context:
            raise NoRoom(f"a prompt of {len(token_ids)} tokens leaves no room in a context of {self.context}")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        stop = frozenset(sampling.stop_ids)
        self.slots.waiting.append(Request(list(token_ids), sampling, session, future, len(token_ids), stop))
        self._wake.set()
        try:
            return await future  # the worker always answers: with a completion, or with the error that ended it
        finally:
            self._wake.set()  # if this call was cancelled, its slot is free to take

    def end_session(self, session: str) -> None:
        """See `Engine.end_session`."""
        self.slots.end_session(session)

    async def load(self, path: str, version: int) -> None:
        """See `Engine.load`. Raises `WeightsError`, and goes on with the old weights, if the file is not right."""
        self.check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loads.append((path, version, future))
        self._wake.set()
        await future

    async def aclose(self) -> None:
        """Stop; requests that are under way raise `EngineError`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    def check(self) -> None:
        """See `Engine.check`."""
        if self._task is None or self._task.done():
            raise EngineError(str(self._failure or "the engine was not started")) from self._failure

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """The worker ended: nobody may wait for it any longer."""
        error = None if task.cancelled() else task.exception()
        why = EngineError("the engine was closed" if error is None else f"the engine failed: {error!r}")
        why.__cause__ = error
        self._failure = why
        for future in [r.future for r in (*self.slots.waiting, *self.slots.active)] + [load[2] for load in self._loads]:
            if not future.done():
                future.set_exception(why)

    async def _in_thread(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _run(self) -> None:
        """Pass after pass. What goes wrong in one ends the engine: `_stopped` tells everybody."""
        while True:
            while self._loads:
                await self._take_weights()
            if not self.slots.active:
                await asyncio.sleep(0)  # let everybody who is ready ask first: they are prefilled together
            plan = self.slots.plan()
            if plan.rows:
                tokens, logprobs = await self._in_thread(self._forward, plan)
                self._settle(plan, tokens, logprobs)
            elif not self._loads:
                self._wake.clear()
                await self._wake.wait()  # for as long as nobody asks for anything

    async def _take_weights(self) -> None:
        path, version, future = self._loads[0]
        try:
            await self._in_thread(self._read, path, version)
        except WeightsError as error:
            if not future.done():
                future.set_exception(error)
        else:
            self.version = version
            self.slots.new_weights()
            if not future.done():
                future.set_result(None)
        self._loads.pop(0)

    def _settle(self, plan: Plan, tokens: list[int], logprobs: list[float]) -> None:
        """Hand out what was drawn, and release the requests that are over."""
        self.slots.fed(plan)
        self.drawn_tokens += len(tokens)
        for (request, _), token, logprob in zip(plan.draws, tokens, logprobs, strict=True):
            if request.future.done():  # cancelled: the next plan releases it
                continue
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            if math.isnan(logprob):
                self.slots.release(request, keep=False)
                request.future.set_exception(EngineError("the model's log-probabilities are not finite"))
            elif token in request.stop:
                self.slots.release(request, keep=True)
                request.future.set_result(request.finish("stop"))
            elif len(request.logprobs) >= request.sampling.max_tokens or len(request.tokens) >= self.context:
                self.slots.release(request, keep=True)
                request.future.set_result(request.finish("length"))

    # What runs in the worker thread.

    def _open(self) -> None:
        transformers_log.disable_progress_bar()  # it would draw over whatever this process shows
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                self.model_path, dtype=self._dtype, attn_implementation="eager"
            )
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"cannot load {self.model_path!r}: {str(error).strip().splitlines()[0]}") from error
        self._model = model.to(self._device).eval().requires_grad_(False)
        accepted = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._check()

    @torch.inference_mode()
    def _check(self) -> None:
        """Compare two short conversations with transformers' own forward: not every architecture fits."""
        model, name = self._model, type(self._model).__name__
        vocabulary = model.get_input_embeddings().num_embeddings
        length = min(9, self.context - 1)
        ids = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0))
        expected = model(ids.to(self._device), use_cache=False).logits.float().log_softmax(-1)
        model.set_attn_implementation(ATTENTION)
        got = []
        try:
            for row, slot in ((0, 0), (1, self._cache.slots - 1)):
                for start, count in ((0, length - 1), (length - 1, 1)):
                    step = Pass(np.array([slot]), np.array([start]), np.array([count]), self._device)
                    part = ids[row, start : start + count]
                    got.append(self._logits(part, step, torch.arange(count)).float().log_softmax(-1))
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            raise ValueError(f"{name} does not run on the embedded engine: {error}") from error
        difference = (torch.cat(got).view_as(expected) - expected).abs()
        off = (expected.exp() * difference).sum(-1).max().item()
        if not off < TOLERANCE[self._dtype]:
            raise ValueError(f"{name} does not run on the embedded engine: log-probabilities are off by {off:.2g}")

    def _logits(self, ids: torch.Tensor, step: Pass, keep: torch.Tensor) -> torch.Tensor:
        """[len(keep), vocabulary]: the logits after the tokens `keep` (indices) of the pass. ids: [N] int64."""
        self._cache.step = step
        output = self._model(
            input_ids=ids.to(self._device)[None],
            position_ids=step.positions[None],
            use_cache=True,
            logits_to_keep=keep.to(self._device),
            slot_pass=step,
            **{self._cache_name: self._cache},
        )
        return output.logits[0]

    @torch.inference_mode()
    def _forward(self, plan: Plan) -> tuple[list[int], list[float]]:
        """One pass; returns a token and its log-probability for each of `plan.draws`."""
        for copy in plan.before:
            self._cache.copy_prefix(copy.source, copy.targets, copy.length)
        ids: list[int] = []
        for request, count in zip(plan.rows, plan.counts, strict=True):
            ids += request.tokens[request.fed : request.fed + count]
        counts = np.array(plan.counts)
        slots = np.array([request.slot.index for request in plan.rows if request.slot is not None])
        step = Pass(slots, np.array([request.fed for request in plan.rows]), counts, self._device)
        ends = np.cumsum(counts) - 1
        keep = (
            torch.from_numpy(ends[[row for _, row in plan.draws]]) if plan.draws else torch.zeros(0, dtype=torch.long)
        )
        logits = self._logits(torch.tensor(ids), step, keep)
        for copy in plan.after:
            self._cache.copy_prefix(copy.source, copy.targets, copy.length)
        if not plan.draws:
            return [], []
        requests = [request for request, _ in plan.draws]
        return draw(logits, [r.sampling for r in requests], [len(r.tokens) for r in requests], self.seed)

    def _read(self, path: str, version: int) -> None:
        """Copy the weights at `path` into the model; on any mismatch, none of them. Raises `WeightsError`."""
        tensors = weights.read(path, version)
        own = dict(self._model.named_parameters(remove_duplicate=False)) | dict(self._model.named_buffers())
        wanted = {name for name, _ in self._model.named_parameters()}
        by_tensor = {id(own[name]): name for name in wanted}
        for name, tensor in tensors.items():
            if name not in own or own[name].shape != tensor.shape:
                what = "no such tensor" if name not in own else f"shape {list(own[name].shape)}"
                raise WeightsError(f"{path} holds {name} {list(tensor.shape)}; the model has {what}")
            wanted.discard(by_tensor.get(id(own[name]), name))
        if wanted:
            raise WeightsError(f"{path} lacks {len(wanted)} tensors of the model, {min(wanted)} among them")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
