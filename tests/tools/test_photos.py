"""The scripts that bring a pretrained network and photographs together, on images and figures that were made up."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import outfield as of
from outfield.files import Record, write_record

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("photos_layout", "photos_extract", "photos", "photos_page")


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})


def draw(place, seed=0):
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(place)


def commit(folder):
    said = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*said, *words], check=True)


@pytest.fixture(scope="module")
def photos(scripts, tmp_path_factory):
    """What the script lays out, from two folders and a repository whose files are not checked out."""
    sources, to = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("laid") / "photos"
    for number, wnid in enumerate(scripts.photos_layout.ID_CLASSES):
        for index in range(9):
            draw(sources / "a" / "val" / wnid / f"{index}.png", 100 * number + index)
        draw(sources / "a" / "train" / wnid / "1.png", number)
    for name in ("BACKGROUND_Google", "Faces", "Faces_easy", "ant"):
        draw(sources / "b" / "101_ObjectCategories" / name / "1.png")
    (sources / "b" / "101_ObjectCategories" / "ant" / "notes.txt").write_text("no image")
    commit(sources / "b")
    subprocess.run(["rm", "-r", str(sources / "b" / "101_ObjectCategories")], check=True)
    draw(sources / "c" / "flowers" / "rose" / "1.png")
    packs = sources / "d"
    packs.mkdir()
    for name in scripts.photos_layout.PACKS:
        images = np.arange(2100, dtype=np.int64)[:, None, None, None] * np.ones((1, 1, 1, 3), np.int64)
        file = packs / ("cifar100_test.npz" if name == "cifar100" else f"{name}.npz")
        np.savez(file, images=(images % 251).astype(np.uint8))
    options = zip(("imagenette", "caltech", "flowers", "packs"), "abcd", strict=True)
    given = [f"--{name}={sources / folder}" for name, folder in options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["photos_layout.py", str(to), *given])
        scripts.photos_layout.main()
    return to


def test_folders_are_laid_out_without_the_classes_that_are_removed(photos):
    assert sorted(folder.name for folder in (photos / "caltech101").iterdir()) == ["Faces", "ant"]
    assert [file.name for file in (photos / "caltech101" / "ant").iterdir()] == ["1.png"]
    assert len(list((photos / "imagenette" / "val").rglob("*.png"))) == 90
    told = json.loads((photos / "layout.json").read_text())
    assert told["images"]["caltech101"] == 2
    assert told["images"]["svhn"] == 2000
    assert set(told["removed"]["caltech101"]) == {"BACKGROUND_Google", "Faces_easy"}
    assert told["id_classes"]["n03028079"] == {"name": "church", "imagenet": 497}
    with np.load(photos / "cifar100.npz") as pack:
        assert pack["images"].shape == (2000, 1, 1, 3)


def test_sets_are_those_of_the_benchmark_with_labels_among_the_thousand(scripts, photos):
    limits = {"train": None, "test": None} | dict.fromkeys(scripts.photos_extract.OOD, 7)
    sets = scripts.photos_extract.image_sets(photos, limits)
    ten = scripts.photos_extract.TEN
    assert sets["train"].labels.tolist() == list(ten)
    assert (len(sets["test"]), len(sets["held_out"]), len(sets["svhn"])) == (50, 40, 7)
    assert set(sets["held_out"].labels.tolist()) <= set(ten)
    made = [name for name in sets if name.startswith("stand-in ")]
    assert len(made) == 10
    assert all(len(sets[name]) == 40 for name in made)
    assert np.array_equal(sets["svhn"].images, np.load(photos / "svhn.npz")["images"][np.arange(7) * 2000 // 7])


def test_logits_are_computed_from_the_head_that_is_asked_for(scripts, tmp_path):
    rng = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(1000, 3, generator=rng), torch.randn(1000, generator=rng)
    features = torch.randn(4, 3, generator=rng).half()
    write_record(tmp_path / "head.safetensors", "head", Record({}, {"weight": weight, "bias": bias}))
    (tmp_path / "odin").mkdir()
    np.savez(tmp_path / "odin" / "test.npz", ten=np.zeros((4, 10), np.float16), thousand=np.ones((4, 1000), np.float16))
    for views in ("one", "six"):
        (tmp_path / views).mkdir()
        of.FeatureSet(features, labels=[0, 217, 701, 217]).save(tmp_path / views / "test.safetensors")
    ten = scripts.photos.load_sets(tmp_path, "ten", "one")["test"]
    thousand = scripts.photos.load_sets(tmp_path, "thousand", "six")["test"]
    assert ten.labels.tolist() == [0, 1, 9, 1]
    assert thousand.labels.tolist() == [0, 217, 701, 217]
    expected = features.float() @ weight.T + bias
    assert torch.allclose(thousand.logits, expected)
    assert torch.allclose(ten.logits, expected[:, list(scripts.photos_extract.TEN)])
    assert ten.odin_logits.shape == (4, 10)
    assert thousand.odin_logits is None
    assert torch.equal(ten.head_weight, weight[list(scripts.photos_extract.TEN)])


def test_the_published_page_has_the_tables_of_its_figures(scripts, tmp_path):
    published = BENCHMARKS.parent / "docs" / "results" / "imagenette.md"
    (tmp_path / "imagenette").symlink_to(published.with_suffix(""))
    copied = tmp_path / "imagenette.md"
    copied.write_text(published.read_text(encoding="utf-8"), encoding="utf-8")
    scripts.photos_page.fill(copied)
    assert copied.read_text(encoding="utf-8") == published.read_text(encoding="utf-8")
    for text, said in (
        ("<!-- nothing -->\n<!-- end -->\n", "'nothing'; there are levels"),
        ("<!-- summary -->\n", "an <!-- end"),
    ):
        copied.write_text(text)
        with pytest.raises(SystemExit, match=said):
            scripts.photos_page.fill(copied)
