"""Rows of files that cannot be picked one by one: a temporary copy that leaves nothing, and no room for it is an error."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections import namedtuple

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy.copied import copied
from outfield.energy.rows import rows_of

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
    with copied(stream) as copy:
        assert len(copy) == 20_000
        assert torch.equal(copy.in_memory().features, DATA.features)
        for size in (7000, 20_000, 30_000):
            assert torch.equal(torch.cat([p["features"] for p in copy.batches(size)]), DATA.features)
        index = torch.randint(0, 20_000, (500,), generator=torch.Generator().manual_seed(0))
        assert torch.equal(copy.rows(index, ["features"])["features"], DATA.features[index])
        with pytest.raises(of.InputError, match="rows go from 0 to 19999"):
            copy.rows([20_000])
        for wrong in (lambda: copy.rows([0], ["labels"]), lambda: list(copy.batches(10, ["labels"]))):
            with pytest.raises(of.MissingFieldError, match="labels"):
                wrong()


def test_a_killed_fit_leaves_nothing(stream, tmp_path):
    with rows_of(stream, CPU) as rows:
        assert not list((tmp_path / "temporary").iterdir())  # while it is there, it has no name
        assert torch.allclose(rows[5:9], torch.nn.functional.normalize(DATA.features[5:9]))


def test_a_folder_that_is_too_small_is_found_before_the_work(stream, tmp_path, monkeypatch):
    free = namedtuple("usage", "total used free")(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(
        of.StorageError, match=r"480,000 bytes.*temporary: only 1,000 bytes are free.*TMPDIR.*in_memory"
    ):
        quick("EBM").fit(stream)
    assert not list((tmp_path / "temporary").iterdir())


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
