from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM

from rollout import weights
from rollout.engine import Completion, EngineError, NoRoom, Sampling
from rollout.engines.torch_engine import TorchEngine
from rollout.weights import WeightsError
from tests.rollout.tiny_models import llama

VOCABULARY = 384
# What this version of transformers calls the cache.
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model")
    llama(path)
    return str(path)


@pytest.fixture(scope="module")
def model(model_path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(model_path).eval()


@asynccontextmanager
async def running(path: str, **settings) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(path, **{"slots": 8, "context": 128} | settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


def prompt(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(length)]


@torch.no_grad()
def expected(model: LlamaForCausalLM, given: list[int], completion: Completion, temperature: float) -> list[float]:
    """The log-probabilities of a whole forward pass by transformers itself."""
    ids = torch.tensor([given + completion.token_ids])
    logits = model(ids).logits[0, len(given) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(given) :, None])[:, 0].tolist()


def check(model: LlamaForCausalLM, given: list[int], completion: Completion, temperature: float) -> None:
    assert completion.logprobs == pytest.approx(expected(model, given, completion, temperature), abs=1e-4)


async def test_logprobs_over_turns_with_kept_prefixes_and_groups(model_path, model):
    async with running(model_path, slots=6, context=200) as engine:

        async def episode(group: int, member: int) -> None:
            ids = prompt(20 + 7 * group, group)
            for turn in range(3):
                settings = Sampling(max_tokens=6 + member, temperature=0.7, seed=100 * group + 10 * member + turn)
                completion = await engine.generate(ids, settings, session=f"{group}.{member}")
                assert len(completion.token_ids) == 6 + member
                check(model, ids, completion, 0.7)
                ids = ids + completion.token_ids + prompt(1 + 9 * turn, turn)
            engine.end_session(f"{group}.{member}")

        await asyncio.gather(*(episode(group, member) for group in range(4) for member in range(4)))
        assert engine.slots.reused_tokens > engine.slots.fed_tokens
        assert engine.slots.free == 6


async def test_equal_prompts_are_computed_once(model_path, model):
    async with running(model_path) as engine:
        ids = prompt(50)
        settings = [Sampling(max_tokens=4, seed=seed) for seed in range(6)]
        completions = await asyncio.gather(*(engine.generate(ids, s, session=str(s.seed)) for s in settings))
        assert engine.slots.fed_tokens == 50
        for completion in completions:
            check(model, ids, completion, 1.0)
        assert len({tuple(c.token_ids) for c in completions}) == 6
        later = await engine.generate([*ids[:40], 1, 2, 3], settings[0], session="later")
        assert engine.slots.fed_tokens == 53  # the shared beginning was copied
        check(model, [*ids[:40], 1, 2, 3], later, 1.0)


async def test_a_session_only_adds_what_is_new(model_path, model):
    async with running(model_path) as engine:
        first = prompt(30)
        reply = await engine.generate(first, Sampling(max_tokens=5, seed=1), session="s")
        second = first + reply.token_ids + [7, 8]
        await engine.generate(second, Sampling(max_tokens=5, seed=2), session="s")
        assert engine.slots.fed_tokens == 30 + 3  # the last token drawn, and two new ones
        rewritten = [*first[:10], *prompt(20, 9)]
        check(model, rewritten, await engine.generate(rewritten, Sampling(max_tokens=5, seed=3), session="s"), 1.0)
        assert engine.slots.fed_tokens == 33 + 20


async def test_weights_are_swapped_between_two_tokens(model_path, model, tmp_path):
    new = llama(tmp_path / "new", seed=1)
    path = weights.write(tmp_path, 5, new.state_dict())
    given = prompt(20)
    async with running(model_path) as engine:
        request = asyncio.create_task(engine.generate(given, Sampling(max_tokens=100, seed=3), session="s"))
        while engine.drawn_tokens < 10:
            await asyncio.sleep(0)
        await engine.load(path, 5)
        drawn_before_load_returned = engine.drawn_tokens
        completion = await request
    split = completion.versions.index(5)
    assert completion.versions == [0] * split + [5] * (100 - split)
    assert 10 <= split <= drawn_before_load_returned
    # The old span is the old model's; from there on the new weights read the cache as the old ones left it.
    old_span = Completion(completion.token_ids[:split], completion.logprobs[:split], [], "length")
    check(model, given, old_span, 1.0)
    ids = given + completion.token_ids
    with torch.no_grad():
        cache = DynamicCache()
        model(torch.tensor([ids[: len(given) + split - 1]]), **{CACHE: cache})
        logits = new(torch.tensor([ids[len(given) + split - 1 : -1]]), **{CACHE: cache}).logits[0]
    got = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids[split:])[:, None])[:, 0].tolist()
    assert completion.logprobs[split:] == pytest.approx(got, abs=1e-4)


async def test_no_kept_prefix_outlives_its_weights(model_path, tmp_path):
    new = llama(tmp_path / "new", seed=1)
    path = weights.write(tmp_path, 1, new.state_dict())
    given = prompt(60)
    greedy = Sampling(max_tokens=5, temperature=0.0)
    async with running(model_path) as engine:
        await engine.generate(given, greedy, session="kept")
        spanning = asyncio.create_task(engine.generate(given, Sampling(max_tokens=40, seed=1), session="spanning"))
        while engine.drawn_tokens < 10:
            await asyncio.sleep(0)
        await engine.load(path, 1)
        spanned = await spanning
        assert set(spanned.versions) == {0, 1}
        for session, ids in [("kept", given), ("new", given), ("spanning", given + spanned.token_ids + [3])]:
            completion = await engine.generate(ids, Sampling(max_tokens=5, seed=2), session=session)
            assert completion.versions == [1] * 5
            check(new, ids, completion, 1.0)
            async with running(str(tmp_path / "new")) as fresh:
                assert await fresh.generate(ids, Sampling(max_tokens=5, seed=2), session="x") == Completion(
                    completion.token_ids, pytest.approx(completion.logprobs, abs=1e-4), [0] * 5, "length"
                )


async def test_wrong_weights_are_refused_and_change_nothing(model_path, model, tmp_path):
    state = model.state_dict()
    norm = "model.norm.weight"
    cases = [
        ({k: v for k, v in state.items() if k != norm}, 1, "lacks 1 tensors"),
        (state | {norm: torch.ones(3)}, 1, "norm.weight"),
        (state | {"extra": torch.ones(3)}, 1, "no such tensor"),
        (state, 2, "version 1, not 2"),
    ]
    async with running(model_path) as engine:
        for tensors, version, message in cases:
            doubled = {name: tensor * 2 for name, tensor in tensors.items()}
            with pytest.raises(WeightsError, match=message):
                await engine.load(weights.write(tmp_path, 1, doubled), version)
        completion = await engine.generate(prompt(9), Sampling(max_tokens=4), session="s")
        assert completion.versions == [0] * 4
        check(model, prompt(9), completion, 1.0)


async def test_a_request_does_not_depend_on_its_neighbours(model_path):
    settings = [
        Sampling(max_tokens=20, temperature=t, top_k=k, top_p=p, seed=seed)
        for seed, (t, k, p) in enumerate([(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8)])
    ]
    async with running(model_path) as engine:
        alone = [await engine.generate(prompt(25, i), s, session=f"a{i}") for i, s in enumerate(settings)]
    async with running(model_path) as engine:
        noise = [engine.generate(prompt(10 + i, 50 + i), Sampling(max_tokens=9), session=f"n{i}") for i in range(9)]
        mine = [engine.generate(prompt(25, i), s, session=f"m{i}") for i, s in enumerate(settings)]
        together = (await asyncio.gather(*noise, *mine))[len(noise) :]
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


async def test_limited_sampling_reports_the_limited_distribution(model_path, model):
    given = prompt(15)
    async with running(model_path) as engine:
        for top_k, top_p in [(4, 1.0), (0, 0.6), (7, 0.9)]:
            settings = Sampling(max_tokens=12, temperature=0.9, top_k=top_k, top_p=top_p, seed=4)
            completion = await engine.generate(given, settings, session="s")
            with torch.no_grad():
                logits = model(torch.tensor([given + completion.token_ids])).logits[0, len(given) - 1 : -1] / 0.9
            for row, token, logprob in zip(logits, completion.token_ids, completion.logprobs, strict=True):
                kept = row.argsort(descending=True)[: top_k or None]
                probabilities = row[kept].softmax(-1)
                count = int((probabilities.cumsum(-1) - probabilities < top_p).sum())
                assert token in kept[:count]
                at = kept[:count].tolist().index(token)
                assert logprob == pytest.approx(row[kept[:count]].log_softmax(-1)[at].item(), abs=1e-4)


async def test_greedy_is_the_likeliest_and_certain(model_path, model):
    given = prompt(15)
    async with running(model_path) as engine:
        completion = await engine.generate(given, Sampling(max_tokens=10, temperature=0.0), session="s")
    with torch.no_grad():
        best = model(torch.tensor([given + completion.token_ids])).logits[0, len(given) - 1 : -1].argmax(-1)
    assert completion.token_ids == best.tolist()
    assert completion.logprobs == [0.0] * 10


async def test_stop_tokens_and_lengths(model_path):
    given = prompt(15)
    async with running(model_path, context=40) as engine:
        free = await engine.generate(given, Sampling(max_tokens=20, seed=5), session="a")
        assert (free.finish, len(free.token_ids)) == ("length", 20)
        stop = free.token_ids[7]
        at = free.token_ids.index(stop)
        stopped = await engine.generate(given, Sampling(max_tokens=20, seed=5, stop_ids=(stop,)), session="b")
        assert (stopped.finish, stopped.token_ids) == ("stop", free.token_ids[: at + 1])
        full = await engine.generate(given, Sampling(max_tokens=1000, seed=5), session="c")
        assert (full.finish, len(full.token_ids)) == ("length", 25)
        with pytest.raises(NoRoom, match="40 tokens leaves no room in a context of 40"):
            await engine.generate(prompt(40), Sampling(max_tokens=1), session="d")
        for ids, most in [([], 1), (given, 0)]:
            with pytest.raises(ValueError, match="tokens and a reply of at most"):
                await engine.generate(ids, Sampling(max_tokens=most), session="d")
        last = await engine.generate(prompt(39), Sampling(max_tokens=9), session="e")
        assert (last.finish, len(last.token_ids)) == ("length", 1)


async def test_cancelling_frees_the_slot(model_path):
    async with running(model_path, slots=2, context=512) as engine:
        endless = Sampling(max_tokens=500)
        first, second, third = (
            asyncio.create_task(engine.generate(prompt(5, i), endless, session=str(i))) for i in range(3)
        )
        while engine.drawn_tokens < 4:
            await asyncio.sleep(0)
        assert engine.slots.free == 0
        for task in (first, third):  # one that has a slot, one that waits for one
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await engine.generate(prompt(5, 9), Sampling(max_tokens=3), session="next")
        assert not second.done()
        second.cancel()
        await asyncio.wait([second])
        while engine.slots.free < 2:
            await asyncio.sleep(0.001)
        assert not engine.slots.waiting


async def test_three_hundred_requests_through_sixteen_slots(model_path, model):
    async with running(model_path, slots=16, context=64) as engine:

        async def one(i: int) -> None:
            given = prompt(3 + i % 30, i)
            completion = await engine.generate(given, Sampling(max_tokens=2 + i % 7, seed=i), session=str(i % 150))
            assert len(completion.token_ids) == 2 + i % 7
            if i % 10 == 0:
                check(model, given, completion, 1.0)
            if i % 3 == 0:
                engine.end_session(str(i % 150))

        await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(300))), 60)
        assert engine.slots.free == 16


async def test_prompts_longer_than_a_pass(model_path, model, monkeypatch):
    monkeypatch.setattr("rollout.engines.slots.MAX_PASS_TOKENS", 16)
    async with running(model_path) as engine:
        prompts = [prompt(n, n) for n in (50, 3, 16, 17, 40)] + [prompt(50, 50)]
        settings = [Sampling(max_tokens=5, seed=i) for i in range(len(prompts))]
        asked = [engine.generate(p, s, session=str(s.seed)) for p, s in zip(prompts, settings, strict=True)]
        for given, completion in zip(prompts, await asyncio.gather(*asked), strict=True):
            check(model, given, completion, 1.0)


@pytest.mark.parametrize(
    "changes",
    [{"num_key_value_heads": 4}, {"num_key_value_heads": 1, "head_dim": 16}, {"tie_word_embeddings": False}],
)
async def test_other_shapes(tmp_path, changes):
    model = llama(tmp_path, **changes)
    async with running(str(tmp_path)) as engine:
        completion = await engine.generate(prompt(12), Sampling(max_tokens=6), session="s")
        check(model, prompt(12), completion, 1.0)


@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "Qwen3", "Gemma2", "GPT2"])
async def test_other_families(tmp_path, family):
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "sliding_window": 8, "head_dim": 8}
    if family == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
    settings = getattr(transformers, f"{family}Config")(
        **sizes, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    model = getattr(transformers, f"{family}ForCausalLM" if family != "GPT2" else "GPT2LMHeadModel")(settings).eval()
    model.save_pretrained(tmp_path)
    async with running(str(tmp_path)) as engine:
        given = prompt(20)
        for i in range(2):
            completion = await engine.generate(given, Sampling(max_tokens=6, seed=i), session="s")
            model.set_attn_implementation("eager")
            check(model, given, completion, 1.0)
            given = given + completion.token_ids + prompt(3)


async def test_a_model_that_the_attention_does_not_fit_is_refused(tmp_path):
    from transformers import BloomConfig, BloomForCausalLM

    BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=VOCABULARY)).save_pretrained(tmp_path)
    engine = TorchEngine(str(tmp_path))
    with pytest.raises(ValueError, match="embedded engine|cannot load"):
        await engine.start()
    await engine.aclose()


async def test_bfloat16_is_close(model_path, model):
    async with running(model_path, dtype="bfloat16") as engine:
        completion = await engine.generate(prompt(20), Sampling(max_tokens=10), session="s")
        assert completion.logprobs == pytest.approx(expected(model, prompt(20), completion, 1.0), abs=0.3)


async def test_closing_answers_everybody(model_path):
    engine = TorchEngine(model_path, slots=1, context=512)
    await engine.start()
    waiting = [asyncio.create_task(engine.generate([1], Sampling(max_tokens=500), session=str(i))) for i in range(3)]
    while engine.drawn_tokens < 2:
        await asyncio.sleep(0)
    await engine.aclose()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, EngineError)
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], Sampling(max_tokens=1), session="s")


async def test_broken_weights_are_an_error_not_a_token(model_path, model, tmp_path):
    broken = {name: tensor * torch.nan for name, tensor in model.state_dict().items()}
    async with running(model_path) as engine:
        await engine.load(weights.write(tmp_path, 1, broken), 1)
        with pytest.raises(EngineError, match="not finite"):
            await engine.generate(prompt(5), Sampling(max_tokens=3), session="s")
        await engine.load(weights.write(tmp_path, 2, model.state_dict()), 2)
        check(model, prompt(5), await engine.generate(prompt(5), Sampling(max_tokens=3), session="s"), 1.0)


@pytest.mark.parametrize("settings", [{"slots": 0}, {"dtype": "int8"}, {"context": 1}])
def test_bad_settings_are_refused(model_path, settings):
    with pytest.raises(ValueError, match="engine needs|dtype"):
        TorchEngine(model_path, **settings)


async def test_a_missing_model_is_one_line(tmp_path):
    engine = TorchEngine(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="cannot load") as caught:
        await engine.start()
    assert "\n" not in str(caught.value)
    await engine.aclose()
