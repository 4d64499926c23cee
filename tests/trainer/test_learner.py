"""The gradient: independent of packing and ranks, blind to neighbours and to tokens the policy did not draw."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaForCausalLM

from tests.trainer.conftest import group
from trainer.algorithms.grpo import GRPO
from trainer.attention import NAME as PACKED_ATTENTION
from trainer.attention import Layout, packed_logits
from trainer.batch import Batch, collate, pack
from trainer.config import OptimConfig, RolloutConfig, RunConfig
from trainer.learner import Learner, load_model, pick_device


def config(**algorithm) -> RunConfig:
    return RunConfig(steps=10, algorithm=GRPO(**algorithm))


def batch(learner, lengths=(12, 9, 30, 7)):
    groups = [group(i, [0.0, 1.0, 0.25], length=n) for i, n in enumerate(lengths)]
    return pack(groups, learner.algorithm)


def assert_same_gradient(a, b, tolerance=2e-5):
    """Equal within `tolerance` of the largest entry."""
    assert a.keys() == b.keys()
    largest = max(g.abs().max().item() for g in a.values())
    assert largest > 1e-5
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance * largest, msg=name)


def draw(*lengths: int) -> list[list[int]]:
    return [torch.randint(61, (n,)).tolist() for n in lengths]


def logits_of(model, sequences):
    """A packed forward's logits, a tensor a sequence."""
    layout = Layout.of(sequences)
    logits = packed_logits(model, layout, torch.arange(len(layout.tokens)))
    return [logits[cells[: len(s)]] for cells, s in zip(layout.grid, sequences, strict=True)]


@pytest.mark.parametrize("shared", [0, 4, 8])
def test_packed_rows_equal_single_rows(tiny, tiny_folder, shared):
    """A packed forward equals transformers' own on each row alone, also of rows that begin alike."""
    plain = LlamaForCausalLM.from_pretrained(tiny_folder, attn_implementation="eager").eval()
    sequences = draw(8, 11, 1, 5, 12)
    for other in (1, 4):
        sequences[other][:shared] = sequences[0][:shared]  # one that ends where the first does not, and the whole of it
    for got, sequence in zip(logits_of(tiny, sequences), sequences, strict=True):
        want = plain(input_ids=torch.tensor([sequence])).logits[0]
        torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def test_what_rows_begin_with_is_computed_once():
    prompt, other = [1, 2, 3], [1, 2, 9, 9]
    sequences = [[*prompt, 4, 5], other, [*prompt, 4, 6, 7], prompt, [*prompt, 4, 5]]
    layout = Layout.of(sequences)
    assert sorted(layout.tokens.tolist()) == sorted([1, 2, 3, 4, 5, 6, 7, 9, 9])
    for row, sequence in enumerate(sequences):
        places = layout.grid[row, : len(sequence)]
        assert layout.tokens[places].tolist() == sequence
        assert layout.positions[places].tolist() == list(range(len(sequence)))
    assert torch.equal(layout.grid.flatten()[layout.cells], torch.arange(9))


def test_rows_that_begin_alike_have_the_gradient_of_rows_apart(tiny):
    """Sampled tokens may be shared too: each row's own advantage counts for them."""
    learner = Learner(tiny, config())
    rows = batch(learner, (12, 12)).rows
    same = [replace(r, tokens=[*rows[0].tokens[:7], *r.tokens[7:]]) for r in rows]
    together = learner.gradient(Batch(same, 2, 0))
    learner = Learner(tiny, replace(config(), optim=OptimConfig(micro_tokens=1)))
    assert_same_gradient(together, learner.gradient(Batch(same, 2, 0)))


def test_a_neighbour_changes_nothing(tiny):
    a, b = draw(6, 9)
    one, _ = logits_of(tiny, [a, b])
    two, _ = logits_of(tiny, [a, [(token + 1) % 61 for token in b]])
    torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_does_not_depend_on_micro_batches(tiny, aggregation, level):
    gradients = []
    for micro_tokens in (1, 64, 10_000):  # one row at a time, a few, all at once
        run = config(aggregation=aggregation, level=level, correction="clip")
        learner = Learner(tiny, replace(run, optim=OptimConfig(micro_tokens=micro_tokens)))
        gradients.append(learner.gradient(batch(learner)))
    assert_same_gradient(gradients[0], gradients[1])
    assert_same_gradient(gradients[0], gradients[2])


def test_gradient_does_not_depend_on_group_order(tiny):
    learner = Learner(tiny, config())
    groups = [group(i, [0.0, 1.0], length=8 + i) for i in range(4)]
    one = learner.gradient(pack(groups, learner.algorithm))
    two = learner.gradient(pack(groups[::-1], learner.algorithm))
    assert_same_gradient(one, two, 0.0)


def _rank_gradient(rank: int, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation=PACKED_ATTENTION).eval()
    learner = Learner(model, replace(config(), optim=OptimConfig(micro_tokens=40)))
    torch.save(learner.gradient(batch(learner)), f"{out}/{rank}.pt")
    learner.step(batch(learner))
    torch.save(learner.named_tensors(), f"{out}/weights-{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_of_unequal_length_equal_one(tiny, tiny_folder, tmp_path):
    mp.spawn(_rank_gradient, (str(tiny_folder), str(tmp_path)), nprocs=2)
    learner = Learner(tiny, config())
    want = learner.gradient(batch(learner))
    learner.step(batch(learner))
    for rank in range(2):
        assert_same_gradient(torch.load(Path(tmp_path, f"{rank}.pt"), weights_only=True), want)
        weights = torch.load(Path(tmp_path, f"weights-{rank}.pt"), weights_only=True)
        for name, tensor in learner.named_tensors().items():
            torch.testing.assert_close(weights[name], tensor, rtol=0, atol=2e-5)
    assert not os.environ.get("RANK")


def test_only_sampled_tokens_are_trained(tiny):
    """A tool's token has no loss term of its own: perturbing the last one, which nothing sampled follows, is free."""
    learner = Learner(tiny, config())
    rows = batch(learner).rows
    row = replace(rows[0], tokens=[*rows[0].tokens], sampled=[*rows[0].sampled])
    packed = collate([row], [1.0])
    assert packed.targets.tolist() == [t for t, s in zip(row.tokens, row.sampled, strict=True) if s]
    tool = row.sampled.index(False, 4)
    changed = replace(row, tokens=[*row.tokens[:tool], (row.tokens[tool] + 1) % 61, *row.tokens[tool + 1 :]])
    before, after = (learner._logprobs(tiny, collate([r], [1.0]))[0] for r in (row, changed))
    earlier = sum(row.sampled[:tool])
    assert torch.equal(before[:earlier], after[:earlier])  # what came before cannot see it
    assert not torch.equal(before[earlier:], after[earlier:])  # what follows is conditioned on it


def test_temperature_is_that_of_sampling(tiny):
    run = replace(config(), rollout=RolloutConfig(temperature=0.7))
    learner = Learner(tiny, run)
    row = batch(learner).rows[0]
    got = learner._logprobs(tiny, collate([row], [1.0]))[0]
    (logits,) = logits_of(tiny, [row.tokens])
    logp = (logits / 0.7).log_softmax(-1)
    want = torch.stack([logp[i - 1, row.tokens[i]] for i, s in enumerate(row.sampled) if s])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_a_step_raises_the_rewarded_and_lowers_the_rest(tiny):
    learner = Learner(tiny, config(correction="none", entropy_coef=0.0))
    rows = batch(learner, (12,)).rows
    before = [learner._logprobs(tiny, collate([r], [1.0]))[0].sum().item() for r in rows]
    stats = learner.step(batch(learner, (12,)))
    after = [learner._logprobs(tiny, collate([r], [1.0]))[0].sum().item() for r in rows]
    best = max(range(3), key=lambda i: rows[i].advantage)
    assert after[best] > before[best]
    assert learner.version == 1
    assert stats["train/tokens"] == sum(r.size for r in rows)


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [None, 1.0], [None, None]])
def test_nothing_to_learn_from_is_a_step_without_an_update(tiny, rewards):
    learner = Learner(tiny, config())
    before = {n: t.clone() for n, t in learner.named_tensors().items()}
    stats = learner.step(pack([group(0, rewards)], learner.algorithm))
    assert learner.version == 1
    assert all(torch.equal(before[n], t) for n, t in learner.named_tensors().items())
    assert all(math.isfinite(v) for v in stats.values())


def test_errored_episodes_leave_the_others_as_they_are(tiny):
    """An episode that errored is in no baseline and no loss: as if it had not been asked for."""
    learner = Learner(tiny, config())
    with_error = group(0, [0.0, 1.0, None])
    without = group(0, [0.0, 1.0])
    one, two = (learner.gradient(pack([g], learner.algorithm)) for g in (with_error, without))
    assert_same_gradient(one, two, 0.0)


def test_several_minibatches_use_the_policy_at_the_start_of_the_step(tiny):
    run = replace(config(correction="decoupled"), optim=OptimConfig(minibatches=2, micro_tokens=40))
    learner = Learner(tiny, run)
    rows = batch(learner).rows
    want = [learner._logprobs(tiny, collate([r], [1.0]))[0].detach() for r in rows]
    got = learner._proximal(rows)
    for i, logprobs in enumerate(want):
        torch.testing.assert_close(got[i], logprobs, rtol=0, atol=1e-5)
    before = learner.named_tensors()["model.norm.weight"].clone()
    learner.step(batch(learner))
    assert learner.version == 1
    assert not torch.equal(before, learner.named_tensors()["model.norm.weight"])


def test_saved_and_restored_goes_on_as_before(tiny, tmp_path):
    learner = Learner(tiny, config())
    learner.step(batch(learner))
    learner.save(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation=PACKED_ATTENTION).eval()
    other = Learner(model, config())
    other.restore(tmp_path)
    assert other.version == 1
    for one in (learner, other):
        one.step(batch(one))
    for name, tensor in learner.named_tensors().items():
        assert torch.equal(tensor, other.named_tensors()[name]), name


def test_a_damaged_optimizer_is_bad_input(tiny, tmp_path):
    learner = Learner(tiny, config())
    learner.save(tmp_path)
    whole = (tmp_path / "optimizer.pt").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no torch file"):
        (tmp_path / "optimizer.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match="the optimizer's state is damaged"):
            learner.restore(tmp_path)


def test_an_attention_that_is_not_computed_here_is_refused(tiny_folder, tmp_path):
    assert load_model(str(tiny_folder), "cpu").config._attn_implementation == PACKED_ATTENTION
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    capped = Gemma2Config(
        vocab_size=61, num_key_value_heads=2, head_dim=8, attn_logit_softcapping=0.5, initializer_range=0.5, **sizes
    )
    Gemma2ForCausalLM(capped).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Gemma2ForCausalLM cannot be trained here"):
        load_model(str(tmp_path), "cpu")


@pytest.mark.parametrize("name", ["gpuu", "cuda:7"])
def test_a_device_that_is_not_there_is_bad_input(name):
    with pytest.raises(ValueError, match=f"--device {name}: "):
        pick_device(name)
