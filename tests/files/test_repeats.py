"""Tensors that would stand in a file several times stand there once, and come back as one."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.files import storage
from outfield.files.repeats import SMALLEST, without_repeats

BANK = torch.arange(SMALLEST // 4, dtype=torch.float32)


def test_large_tensors_that_are_equal_to_the_bit_are_kept_once():
    kept, same = without_repeats({"a": BANK, "b": BANK.clone(), "c": BANK + 1, "d": BANK.clone()})
    assert list(kept) == ["a", "c"]
    assert same == {"b": "a", "d": "a"}


@pytest.mark.parametrize(
    "other",
    [BANK[:-1], BANK.view(torch.int32), BANK.reshape(2, -1), torch.cat([BANK[:-1], BANK[:1]])],
    ids=["shorter", "another type", "another shape", "another number"],
)
def test_others_are_kept(other):
    assert without_repeats({"a": BANK, "b": other})[1] == {}


def test_small_ones_are_kept():
    assert without_repeats({"a": BANK[1:], "b": BANK[1:].clone()})[1] == {}
    zero = torch.zeros_like(BANK)
    assert without_repeats({"a": zero, "b": -zero})[1] == {}  # -0.0 has other bits


def test_a_file_is_smaller_and_reads_the_same(tmp_path):
    tensors = {"a": BANK, "b": BANK.clone()}
    for once in (False, True):
        storage.write(tmp_path / f"{once}.safetensors", "thing", {"x": 1}, tensors, once=once)
        header, found = storage.read(tmp_path / f"{once}.safetensors", "thing")
        assert {name: value for name, value in header.items() if name == "x" or name == "same"} == {"x": 1}
        assert all(torch.equal(found[name], BANK) for name in "ab")
    assert found["a"] is found["b"]
    sizes = [(tmp_path / f"{once}.safetensors").stat().st_size for once in (False, True)]
    assert sizes[0] - sizes[1] > 0.9 * SMALLEST


@pytest.mark.parametrize("same", [["a"], {"b": "c"}, {"a": "a"}, {"b": 3}, "a"])
def test_names_that_stand_for_nothing(tmp_path, same):
    storage.write(tmp_path / "f.safetensors", "thing", {"same": same}, {"a": BANK})
    with pytest.raises(of.FileFormatError, match=r"broken Outfield header .same is"):
        storage.read(tmp_path / "f.safetensors", "thing")


def test_detectors_with_the_same_bank_share_it(tmp_path):
    train, held_out = make_set(3000, seed=1), make_set(100, seed=2)
    fused = of.Fused([of.KNN(k=1), of.KNN(k=5), of.KDE()]).fit(train, held_out)
    fused.save(tmp_path / "fused.safetensors")
    loaded = of.load(tmp_path / "fused.safetensors")
    one, five, kde = loaded.members_
    assert one.bank_ is five.bank_
    assert one.bank_.data_ptr() == kde.bank_.data_ptr()
    assert torch.equal(loaded.score(held_out), fused.score(held_out))
    assert loaded.fingerprint() == fused.fingerprint()
    assert (tmp_path / "fused.safetensors").stat().st_size < 1.2 * one.bank_.nbytes + 60_000
