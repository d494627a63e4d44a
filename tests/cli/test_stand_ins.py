"""outfield stand-ins: folders of PNG files and a sheet of examples."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from tests.helpers.pictures import make_pictures
from tests.helpers.program import outfield

import outfield as of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of two sizes in a folder for each class."""
    place = tmp_path_factory.mktemp("photos")
    for index, (image, label) in enumerate(zip(make_pictures(n=12).images, np.arange(12) % 3, strict=True)):
        (place / f"class {label}").mkdir(exist_ok=True)
        Image.fromarray(image[: 10 + index]).save(place / f"class {label}" / f"{index:02d}.png")
    return place


def test_every_kind(folder, tmp_path):
    done = outfield("stand-ins", folder, "--out", tmp_path / "made", code=0)
    assert "120 images of 10 kinds" in done.stderr
    made = of.stand_ins(of.open_images(folder))
    assert {*made.levels.values()} == {"near", "far"}
    for name, level in made.levels.items():
        found = of.open_images(tmp_path / "made" / level / name)
        assert len(found) == 12
        assert all(np.array_equal(found[i], made[name][i]) for i in range(12))
    assert Image.open(tmp_path / "made/examples.png").size[0] > 500


def test_some_of_some(tmp_path):
    images = make_pictures(n=20)
    np.savez(tmp_path / "cifar10_test.npz", images=images.images, labels=images.labels)
    outfield("stand-ins", "cifar10", "--data", tmp_path, "-o", tmp_path / "made", "--kinds", "halves, phase",
                    "--count", 5, "--seed", 7, code=0)  # fmt: skip
    assert sorted(os.listdir(tmp_path / "made")) == ["examples.png", "far", "near"]
    found = of.open_images(tmp_path / "made/near/halves")
    expected = of.stand_ins(images, "halves", seed=7, count=5)["halves"]
    assert all(np.array_equal(found[i], expected[i]) for i in range(5))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--out", "{folder}"], 2, "holds something"),
        (["--out", "{new}", "--kinds", "blurred"], 2, "there are no stand-ins of the kind 'blurred'"),
        (["--out", "{new}", "--kinds", ","], 2, "it must be names of stand-ins"),
        (["--out", "{new}", "--count", "13"], 2, "count is 13"),
        (["--out", "{new}/deeper"], 3, "there is no folder"),
    ],
)
def test_what_is_refused(arguments, code, message, folder, tmp_path):
    places = {"folder": folder, "new": tmp_path / "made"}
    done = outfield("stand-ins", folder, *(argument.format(**places) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
