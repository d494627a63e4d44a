"""outfield stand-ins, outfield choose and outfield fit auto: what they write and say, and what they refuse."""

import csv
import os

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.pictures import make_pictures
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.report import in_words


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, data in {
        "train": make_set(n=200),
        "val": make_set(n=80, seed=7),
        "turned": make_set(n=60, seed=2, shift=0.1),
        "blocks": make_set(n=50, seed=3, shift=0.4),
        "svhn": make_set(n=40, seed=4, shift=0.3),
    }.items():
        data.save(folder / f"{name}.npz")
    return folder


def loaded(files):
    return {name: of.FeatureSet.load(files / f"{name}.npz") for name in ("train", "val", "turned", "blocks", "svhn")}


def choose(files, *more, out="d.safetensors"):
    given = ("--held-out", files / "val.npz", "-o", files / out, "--most-members", 2, "--no-progress")
    return outfield("choose", files / "train.npz", *given, *more)


def test_it_chooses_writes_and_tells(files):
    done = choose(
        files, "--near", files / "turned.npz", "--far", f"far={files}/blocks.npz", "--real", files / "svhn.npz",
        "--csv", files / "trials.csv", "--plot", files / "choice.png", "--seed", 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = loaded(files)
    stand_ins = {"near": {"turned": data["turned"]}, "far": {"far": data["blocks"]}}
    expected = of.choose(data["train"], data["val"], stand_ins, most_members=2, seed=3, real={"svhn": data["svhn"]})
    found = of.load(files / "d.safetensors")
    assert found.fingerprint() == expected.detector.fingerprint()
    assert torch.allclose(found.score(data["svhn"]), expected.detector.score(data["svhn"]), rtol=1e-5)
    first = done.stdout.splitlines()
    assert first[0] == "FPR95 on stand-ins (%), the chosen one first"
    assert first[1].split()[:2] == ["members", "near-like"]
    assert first[2].startswith(in_words(expected.chosen))
    assert all(f"{weight:.2f} {name}" in first[2] for name, weight in expected.weights.items())
    rows = list(csv.DictReader((files / "trials.csv").open()))
    assert len(rows) == 1 + len(expected.trials) + len(expected.singles)
    assert [row["members"] for row in rows[:2]] == [in_words(expected.chosen), in_words(expected.trials[0])]
    for row, trial in zip(rows[:2], (expected.chosen, expected.trials[0]), strict=True):
        assert float(row["turned"]) == pytest.approx(trial.fpr95["turned"])
        assert (float(row["mean"]), float(row["loss"])) == pytest.approx((trial.mean, trial.loss))
    assert float(rows[-1]["real svhn"]) == pytest.approx(expected.singles[-1].real["svhn"])
    assert (files / "choice.png").read_bytes().startswith(b"\x89PNG")
    assert f"of {len(expected.singles)} candidates" in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "there are no stand-ins; name at least one set with --near or --far"),
        (("--near", "{f}/turned.npz", "--plot", "{f}/p.png"), "--plot draws stand-ins against real sets"),
        (("--near", "{f}/turned.npz", "--near", "{f}/turned.npz"), "two sets of --near have the same name"),
        (("--near", "{f}/turned.npz", "--csv", "{f}/turned.npz"), "--csv"),
        (("--near", "{f}/none.npz"), "no such file"),
        (("--near", "{f}/train.npz", "--held-out", "{f}/train.npz"), "are training rows"),
    ],
)
def test_what_it_refuses(files, more, said):
    done = choose(files, *(part.format(f=files) for part in more), out="other.safetensors")
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert not (files / "other.safetensors").exists()


class TestFitAuto:
    def test_stand_ins_choose(self, files):
        done = outfield(
            "fit", "auto", files / "train.npz", "-o", files / "auto.safetensors", "--held-out", files / "val.npz",
            "--near", files / "turned.npz", "--far", files / "blocks.npz", "--threshold-out", files / "t.safetensors",
            "--seed", 2, "--keep", 0.9, code=0,
        )  # fmt: skip
        data = loaded(files)
        stand_ins = {"near": {"turned": data["turned"]}, "far": {"blocks": data["blocks"]}}
        expected = of.choose(data["train"], data["val"], stand_ins, seed=2)
        found = of.load(files / "auto.safetensors")
        assert isinstance(found, of.Auto)
        assert torch.equal(found.score(data["svhn"]), expected.detector.score(data["svhn"]))
        assert f"took {' + '.join(expected.chosen.members)} of {len(expected.singles)} candidates" in done.stderr
        threshold = of.Threshold.load(files / "t.safetensors")
        assert torch.allclose(threshold.reference.float(), found.sum_.scores.float())
        assert threshold.keep == 0.9
        threshold.is_ood(found.score(data["svhn"]))

    def test_training_rows_alone_will_do(self, files):
        out = ("-o", files / "alone.safetensors", "--threshold-out", files / "t2.safetensors")
        done = outfield("fit", "auto", files / "train.npz", *out, code=0)
        assert "no stand-ins were named with --near or --far" in done.stderr
        data = loaded(files)
        expected, svhn = of.Auto().fit(data["train"]), data["svhn"]
        assert torch.equal(of.load(files / "alone.safetensors").score(svhn), expected.score(svhn))
        assert f"took {' + '.join(expected.names)}\n" in done.stderr
        assert len(of.Threshold.load(files / "t2.safetensors").reference) == 20

    def test_a_fused_detector_calibrates_on_held_out_rows(self, files):
        outfield(
            "fit", "Fused", files / "train.npz", "-o", files / "fused.safetensors", "--held-out", files / "val.npz",
            "--set", 'members=[{"type": "KNN", "k": 3}, {"type": "MSP"}]', "--set", "rule=z", code=0,
        )  # fmt: skip
        found, data = of.load(files / "fused.safetensors"), loaded(files)
        again = of.Fused([of.KNN(k=3), of.MSP()], rule="z").fit(data["train"], held_out=data["val"])
        assert found.fingerprint() == again.fingerprint()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("auto", "--set", "k=3"), "Auto has no setting k; it has most_members, held_out, seed"),
            (("auto", "--seeds", "2", "--checkpoint", "{f}/c.safetensors"), "--checkpoint and --seeds cannot be used"),
            (("KNN", "--near", "{f}/turned.npz"), "KNN chooses nothing"),
            (("auto", "--near", "{f}/x.npz"), "no such file"),
            (("auto", "--near", "{f}/turned.npz", "--threshold-out", "{f}/turned.npz"), "--threshold-out"),
        ],
    )
    def test_what_it_refuses(self, files, words, said):
        name, *more = (word.format(f=files) for word in words)
        done = outfield("fit", name, files / "train.npz", "-o", files / "refused.safetensors", *more)
        assert done.returncode in (2, 3)
        assert said in " ".join(done.stderr.split())
        assert not (files / "refused.safetensors").exists()


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
    done = outfield("stand-ins", folder, *(argument.format(**places) for argument in arguments), code=code)
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
