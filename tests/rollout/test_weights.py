from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from rollout import weights
from rollout.engine import WeightsError


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(5, 3, generator=generator),
        "half": torch.randn(4, generator=generator).to(torch.bfloat16),
        "across": torch.randn(3, 6, generator=generator).T,
    }


def test_round_trip_is_exact(tmp_path):
    written = tensors()
    path = weights.write(tmp_path / "new", 7, written)
    assert os.path.basename(path) == "weights-0000000007.safetensors"
    read = weights.read(path, 7)
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_tied_tensors_are_written_once(tmp_path):
    shared = torch.ones(8, 8)
    path = weights.write(tmp_path, 0, [("embed", shared), ("head", shared), ("other", torch.ones(8, 8))])
    assert set(weights.read(path)) == {"embed", "other"}


def test_views_of_one_storage_are_different_tensors(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    read = weights.read(weights.write(tmp_path, 0, {"top": whole[:1], "rest": whole[1:], "whole": whole}))
    assert torch.equal(read["rest"], whole[1:])
    assert torch.equal(read["whole"], whole)


def test_another_version_is_refused(tmp_path):
    path = weights.write(tmp_path, 3, tensors())
    with pytest.raises(WeightsError, match="version 3, not 4"):
        weights.read(path, 4)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_torn_files_are_refused(tmp_path, keep):
    path = weights.write(tmp_path, 3, tensors())
    file = Path(path)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(WeightsError, match="not a whole weights file"):
        weights.read(path, 3)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="not a whole weights file"):
        weights.read(tmp_path / "weights-0000000001.safetensors")


def test_prune_keeps_the_newest_and_clears_leftovers(tmp_path):
    for version in (1, 2, 10, 9):
        weights.write(tmp_path, version, tensors())
    (tmp_path / ".writing-1-weights-0000000011.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert weights.prune(tmp_path, keep=2) == [9, 10]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "notes.txt",
        "weights-0000000009.safetensors",
        "weights-0000000010.safetensors",
    ]


def test_a_reader_keeps_what_it_mapped(tmp_path):
    written = tensors()
    read = weights.read(weights.write(tmp_path, 1, written))
    weights.prune(tmp_path, keep=0)
    assert torch.equal(read["a"], written["a"])


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(AttributeError):
        weights.write(tmp_path, 1, {"a": "not a tensor"})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_an_os_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match="cannot write the weights to .*: No space left on device"):
        weights.write(tmp_path, 1, {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == []
