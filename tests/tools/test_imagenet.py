"""The script that judges detectors on images of a thousand classes, on a few classes and features that were made up."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import outfield as of
from outfield.files import Record, write_record
from outfield.images import KINDS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CLASSES, WIDTH = 44, 12


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("imagenet")


@pytest.fixture
def features(script, tmp_path):
    """Classes about their means; OOD sets and stand-ins about none; corrupted images with noise, and things of two categories."""
    rng = torch.Generator().manual_seed(0)
    means, folder = 4 * torch.randn(CLASSES, WIDTH, generator=rng), tmp_path / "lite0"
    (folder / "one").mkdir(parents=True)
    layer = {"weight": means, "bias": -means.square().sum(1) / 2}
    write_record(folder / "head.safetensors", "head", Record({}, layer))

    def save(name, labels=None, count=30, noise=1.0, names=None):
        about = means[labels] if labels is not None else torch.zeros(count, WIDTH)
        rows = about + noise * torch.randn(about.shape, generator=rng)
        of.FeatureSet(rows, labels=labels, names=names).save(folder / "one" / f"{name}.safetensors")

    labels = torch.arange(CLASSES).repeat_interleave(script.FOLDS)
    save("id", labels)
    for name in script.PROTOCOL.ood:
        save(name)
    for fold in range(script.FOLDS):
        for kind in KINDS:
            save(f"stand-in {kind} {fold}", count=12)
    picked = np.arange(0, len(labels), 7)
    names = [f"{labels[number]}/{number}.png" for number in picked]
    save("snow 1", labels[picked], names=names)
    save("snow 5", labels[picked], noise=9.0, names=names)
    shapes = [f"{shape}/{shape}1-{texture}2.png" for shape in ("cat", "dog") for texture in ("cat", "dog")]
    save("stylised", torch.tensor([0, 0, 0, 0]), names=shapes)
    kept = of.FeatureSet.load(folder / "one" / "stylised.safetensors")
    of.FeatureSet(kept.features, names=kept.names).save(folder / "one" / "stylised.safetensors")
    return folder


def test_every_image_judges_once_and_no_fold_fits_on_what_it_judges(script, features, monkeypatch):
    seen = []

    def choose(train, held_out, *rest, real, device):
        seen.append((train, held_out))
        return of_choose(train, held_out, *rest, real=real, device=device)

    of_choose = of.choose
    monkeypatch.setattr(of, "choose", choose)
    monkeypatch.setattr(script, "FITS", ("MSP", "SSD", "KNN"))
    found = script.studied(features, script.FITTED, {"cat": [0], "dog": [1]})
    rows = of.FeatureSet.load(features / "one" / "id.safetensors").features
    for fold, (train, held_out) in enumerate(seen):
        parts = torch.cat([rows[fold :: script.FOLDS], held_out.features, train.features])
        assert len(held_out) == CLASSES
        assert torch.equal(parts.sort(0)[0], rows.sort(0)[0])
    assert len(seen) == script.FOLDS
    assert {name: len(folds) for name, folds in found["rows"].items()} == dict.fromkeys(
        ("Auto", "MSP", "SSD", "KNN"), 5
    )
    assert all(one["fruits"][0] < 0.1 for one in found["rows"]["KNN"])
    clean, shifted = found["shifts"]["as they are"]["KNN"], found["shifts"]["snow 5"]["KNN"]
    assert clean[1] > 0.9 > shifted[1]
    assert clean[0] < 0.3 < shifted[0]
    # both images with another's texture look like class 0, which is a cat: one shape of two is a cat's
    assert found["shifts"]["stylised"]["KNN"][1] == 0.5
    assert set(found["speakers"]) == {*script.PROTOCOL.ood, "as they are", "snow 1", "snow 5", "stylised"}
    assert found["speakers"]["fruits"].total() == 30 * script.FOLDS
    low, high = found["less"]["MSP"]["over images"]
    assert low <= found["less"]["MSP"]["value"] <= high
    json.dumps(found)


def test_categories_are_read_from_code_that_does_not_run(script):
    helper = "raise SystemExit\nclass HumanCategories(object):\n    cat = ['n1', 'n9']\n    other = []\n"
    assert script.categories(helper, {"n1": 3, "n2": 4}) == {"cat": [3]}


def test_the_published_page_has_the_tables_of_its_figures(script, tmp_path):
    tables, page = (importlib.import_module(name) for name in ("imagenet_page", "photos_page"))
    published = BENCHMARKS.parent / "docs" / "results" / "imagenet.md"
    copied = tmp_path / "imagenet.md"
    copied.write_text(published.read_text(encoding="utf-8"), encoding="utf-8")
    page.fill(copied, tables.Real(published.with_suffix("")))
    assert copied.read_text(encoding="utf-8") == published.read_text(encoding="utf-8")
