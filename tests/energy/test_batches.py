"""Training rows on disk: those from memory, read ahead; files whose rows cannot be picked are copied and leave nothing."""

import resource
import tempfile

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy import batches, projection_for, rows_of
from outfield.energy.batches import Batches, RowsOnDisk
from outfield.features import normalise

DATA = make_set(n=20_000, width=6)
CPU = torch.device("cpu")


@pytest.fixture(params=["packed.npz", "table.parquet"])
def stream(request, tmp_path, monkeypatch):
    path = tmp_path / request.param
    if request.param == "packed.npz":
        np.savez_compressed(path, features=DATA.features.numpy())
    else:
        import pyarrow
        import pyarrow.parquet

        columns = {f"feature_{i}": DATA.features[:, i].numpy() for i in range(6)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return of.open_features(path)


def test_a_copy_has_the_rows_of_the_file(stream):
    expected, index = normalise(DATA.features), torch.randint(0, 20_000, (25, 20))
    with rows_of(stream, CPU) as rows:
        assert (len(rows), rows.shape) == (20_000, (20_000, 6))
        assert torch.equal(torch.cat([*rows.pieces()]), expected)
        assert torch.equal(rows[index], expected[index])


def test_a_killed_fit_leaves_nothing(stream, tmp_path):
    with rows_of(stream, CPU) as rows:
        assert not list((tmp_path / "temporary").iterdir())  # while it is there, it has no name
        assert torch.allclose(rows[5:9], torch.nn.functional.normalize(DATA.features[5:9]))


def test_a_folder_that_becomes_full(stream, tmp_path):
    """The kernel refuses to let the file grow, as it does when a disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(of.StorageError, match=r"480,000 bytes.*temporary: File too large.*TMPDIR"):
            quick("EBM").fit(stream)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "temporary").iterdir())


def test_no_folder_at_all(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(of.StorageError, match=r"no temporary file could be made.*TMPDIR"):
        quick("EBM").fit(stream)


FEATURES = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).half()
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


def test_a_broken_row_is_told_when_its_turn_comes(tmp_path):
    broken = FEATURES.clone()
    broken[ORDERS[0, 12]] = torch.nan
    np.save(tmp_path / "features.npy", broken.numpy())
    read = Batches(RowsOnDisk(of.open_features(tmp_path / "features.npy"), CPU), 10)
    read.take(ORDERS[:1], 0)
    with pytest.raises(of.InputError, match=rf"features\[{ORDERS[0, 12]}, 0\] is nan"):
        read.take(ORDERS[:1], 1)


def test_rows_of_a_set_are_its_features_normalised_piece_by_piece(monkeypatch):
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 7)
    data = of.FeatureSet(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).double())
    with rows_of(data, CPU) as z:
        torch.testing.assert_close(z, normalise(data.features), rtol=0, atol=0)
        assert batches.fingerprint_of_rows(z) == batches.fingerprint_of_rows(RowsOnDisk(data, CPU))
    on_disk = RowsOnDisk(data, CPU)
    chosen = torch.tensor([[3, 29], [0, 3]])
    assert torch.equal(on_disk[chosen], normalise(data.features)[chosen])
    assert torch.equal(on_disk[5:9], normalise(data.features)[5:9])
    assert (len(on_disk), on_disk.shape, on_disk.dtype) == (30, (30, 4), torch.float32)
    assert projection_for("auto", on_disk) == "sphere"
