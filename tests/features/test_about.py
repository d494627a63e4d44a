"""What a set knows of where it comes from, and another field in the place of its features."""

from __future__ import annotations

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import outfield as of
from outfield.files import storage

ABOUT = {"views": "flip", "stage2": "layer2"}


def a_set(n=6, **others):
    rng = np.random.default_rng(0)
    return of.FeatureSet(
        rng.random((n, 4)), stage2=rng.random((n, 3)), labels=np.arange(n) % 2, logits=rng.random((n, 2)), **others
    )


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_it_stays_with_the_rows(tmp_path, ending):
    data = a_set(about=ABOUT)
    data.save(tmp_path / f"f{ending}")
    for found in (
        data,
        data[1:3],
        of.FeatureSet.join([data[:1], data[1:]]),
        of.FeatureSet.load(tmp_path / f"f{ending}"),
        of.open_features(tmp_path / f"f{ending}"),
        of.open_features(tmp_path / f"f{ending}").in_memory(),
        data.on("stage2"),
        of.open_features(tmp_path / f"f{ending}").on("stage2"),
    ):
        assert found.about == ABOUT
    data.about["views"] = "six"
    assert data.about == ABOUT
    assert a_set().about == {}


def test_what_is_no_such_text(tmp_path):
    for bad in (3, "flip", [("views", "flip")], {"views": 2}, {2: "views"}):
        with pytest.raises(of.InputError, match="about is"):
            a_set(about=bad)
    for large in ({"views": "x" * 1001}, {str(i): "x" for i in range(65)}):
        with pytest.raises(of.InputError, match="holds too much"):
            a_set(about=large)
    a_set(about={"x" * 1000: "y" * 1000} | {str(i): "" for i in range(63)})
    storage.write(tmp_path / "f.safetensors", "FeatureSet", {"about": 3}, a_set().tensors())
    for read in (of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError, match=r"f.safetensors: about is 3"):
            read(tmp_path / "f.safetensors")


def test_sets_from_different_places_are_not_joined():
    with pytest.raises(of.InputError, match="different places"):
        of.FeatureSet.join([a_set(about=ABOUT), a_set()])


def test_another_field_in_the_place_of_the_features(tmp_path):
    data = a_set(spread=np.ones((6, 4)), head_weight=np.ones((2, 4)))
    data.save(tmp_path / "f.npz")
    columns = {name: list(value.numpy()) for name, value in data.tensors().items() if name != "head_weight"}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    for source, picks in (
        (data, True),
        (of.open_features(tmp_path / "f.npz"), True),
        (of.open_features(tmp_path / "f.parquet"), False),
    ):
        seen = source.on("stage2")
        assert seen.shapes == {"features": (6, 3), "labels": (6,), "logits": (6, 2)}
        assert len(seen) == 6
        assert seen.picks_rows == picks
        assert torch.equal(seen.in_memory().features, data.stage2)
        assert torch.equal(torch.cat([piece["features"] for piece in seen.batches(4)]), data.stage2)
        (first, _) = seen.batches(4, ["logits"])
        assert first.keys() == {"logits"}
        assert torch.equal(first["logits"], data.logits[:4])
        if picks:
            assert torch.equal(seen.rows([5, 2], ["features"])["features"], data.stage2[[5, 2]])
        assert source.on("features") is source
        with pytest.raises(of.InputError, match="on is 'logits'; it must be one of features, spread, stage1"):
            source.on("logits")
        with pytest.raises(of.MissingFieldError, match="no field 'stage1'"):
            source.on("stage1")
