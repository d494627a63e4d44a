"""Batches of rows in a known order: the same from memory and from disk, where the next one is read ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outfield as of
from outfield.energy.projection import normalise
from outfield.energy.rows import Batches, RowsOnDisk

FEATURES = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).half()
CPU = torch.device("cpu")
ORDERS = torch.stack([torch.randperm(30, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)])


@pytest.fixture
def on_disk(tmp_path):
    np.save(tmp_path / "features.npy", FEATURES.numpy())
    return RowsOnDisk(of.open_features(tmp_path / "features.npy"), CPU)


class Asked:
    """Which batches a :class:`Batches` read, in turn."""

    def __init__(self, rows, monkeypatch):
        self.firsts, read = [], rows.read
        monkeypatch.setattr(rows, "read", lambda index: self.firsts.append(index[0, 0].item()) or read(index))


@pytest.mark.parametrize("size", [7, 10, 15, 30])
def test_batches_from_disk_are_those_from_memory(on_disk, size, monkeypatch):
    asked, expected = Asked(on_disk, monkeypatch), normalise(FEATURES)
    in_memory, read = Batches(expected, size), Batches(on_disk, size)
    for orders in (ORDERS, ORDERS.flip(1)):
        for number in range(30 // size):
            chosen = orders[:, number * size : (number + 1) * size]
            assert torch.equal(read.take(orders, number), expected[chosen])
            assert torch.equal(in_memory.take(orders, number), expected[chosen])
    starts = [orders[0, number * size].item() for orders in (ORDERS, ORDERS.flip(1)) for number in range(30 // size)]
    assert asked.firsts == starts  # each once, and none beyond the last


def test_the_next_batch_is_read_ahead(on_disk, monkeypatch):
    asked, read = Asked(on_disk, monkeypatch), Batches(on_disk, 10)
    read.take(ORDERS, 0)
    read.coming[1].result()
    assert asked.firsts == [ORDERS[0, 0].item(), ORDERS[0, 10].item()]


def test_any_batch_may_be_the_first(on_disk):
    read, expected = Batches(on_disk, 7), normalise(FEATURES)
    for number in (2, 0, 3, 1, 2):
        assert torch.equal(read.take(ORDERS, number), expected[ORDERS[:, number * 7 : number * 7 + 7]])


def test_a_broken_row_is_told_when_its_turn_comes(tmp_path):
    broken = FEATURES.clone()
    broken[ORDERS[0, 12]] = torch.nan
    np.save(tmp_path / "features.npy", broken.numpy())
    read = Batches(RowsOnDisk(of.open_features(tmp_path / "features.npy"), CPU), 10)
    read.take(ORDERS[:1], 0)
    with pytest.raises(of.InputError, match=rf"features\[{ORDERS[0, 12]}, 0\] is nan"):
        read.take(ORDERS[:1], 1)
