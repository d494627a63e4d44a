"""outfield benchmark with sets of one's own, in folders, .npz and files of features."""

import numpy as np
import pytest
from PIL import Image
from tests.helpers.pictures import make_noise, make_pictures
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.benchmark import load_run


def in_folders(place, images):
    for index, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
        (place / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"class {label}" / f"{index:03d}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """ID images in folders of classes, one OOD set in a folder, one in an .npz, one by name; a network, and features."""
    folder = tmp_path_factory.mktemp("own")
    in_folders(folder / "train", make_pictures(80))
    in_folders(folder / "test", make_pictures(40, seed=1))
    in_folders(folder / "others", make_pictures(24, classes=7, seed=2))
    np.savez(folder / "noise.npz", images=make_noise(20, seed=3).images)
    (folder / "data").mkdir()
    np.savez(folder / "data" / "svhn.npz", images=make_noise(16, seed=4).images)
    classifier, _ = of.classifier_for(make_pictures(80), "test_resnet")
    of.save_classifier(folder / "net.safetensors", classifier, classifier.build().state_dict())
    for seed, name in enumerate(("train", "test", "a", "b")):
        make_set(60, seed=seed, shift=0.3 * max(0, seed - 1)).save(folder / f"{name}.safetensors")
    return folder


IMAGES = ("--id-train", "train", "--id-test", "test", "--backbone", "net.safetensors", "--device", "cpu")
ROWS = ("--features", "--id-train", "train.safetensors", "--id-test", "test.safetensors", "--device", "cpu")
QUICK = ("--detector", "MSP", "--detector", "KNN", "--detector", "SSD", "--set", "KNN.k=3")


def test_two_sets_and_three_detectors(place, tmp_path):
    out = tmp_path / "out"
    outfield("benchmark", "photos", *IMAGES, "--near", "others=others", "--far", "noise=noise.npz", *QUICK, "--out", out,
             cwd=place, code=0)  # fmt: skip
    run = load_run(out / "run.safetensors")
    assert run.protocol == of.Protocol("photos", near=("others",), mid=(), far=("noise",))
    assert [(r.detector, r.ood, r.level, r.n_id, r.n_ood) for r in run.records] == [
        (name, *rest)
        for name in ("MSP", "KNN", "SSD")
        for rest in (("others", "near", 40, 24), ("noise", "far", 40, 20))
    ]
    assert run.classes == tuple(f"class {number}" for number in range(4))
    assert run.provenance["data"]["train"]["images"] == 80
    for name in ("report.html", "tables.md", "figures/sets.png", "figures/roc.png", "figures/histograms.png"):
        assert (out / name).stat().st_size > 1000
    assert "photos" in (out / "report.html").read_text()


def test_every_level_and_a_set_that_is_found_by_name(place, tmp_path):
    outfield("benchmark", "photos", *IMAGES, "--mid", "others=others", "--far", "svhn", "--data", "data",
             "--detector", "MSP", "--out", tmp_path, "--no-report", cwd=place, code=0)  # fmt: skip
    run = load_run(tmp_path / "run.safetensors")
    assert (run.protocol.near, run.protocol.mid, run.protocol.far) == ((), ("others",), ("svhn",))
    assert [record.n_ood for record in run.records] == [24, 16]


def test_files_of_features(place, tmp_path):
    command = ("benchmark", "rows", *ROWS, "--near", "a=a.safetensors", "--far", "b=b.safetensors", *QUICK)
    outfield(*command, "--no-report", "--out", tmp_path / "not/there", cwd=place, code=0)
    run = load_run(tmp_path / "not/there/run.safetensors")
    train, test, a, _ = (of.FeatureSet.load(place / f"{name}.safetensors") for name in ("train", "test", "a", "b"))
    ssd = of.SSD().fit(train)
    (record,) = [r for r in run.records if (r.detector, r.ood) == ("SSD", "a")]
    assert record.backbone == "features"
    assert record.auroc == of.auroc(ssd.score(test), ssd.score(a))


def test_fractions_of_the_training_rows(place, tmp_path):
    sets = ("--near", "a=a.safetensors", "--far", "b=b.safetensors")
    command = ("benchmark", "rows", *ROWS, *sets, *QUICK, "--out", tmp_path)
    done = outfield(*command, "--fraction", "0.5, 1,0.02", cwd=place, code=0)
    run = load_run(tmp_path / "run.safetensors")
    assert sorted({one.fraction for one in run.low_data}) == [0.02, 0.5, 1.0]
    assert {one.detector for one in run.low_data} == {"MSP", "KNN", "SSD"}
    for text in (done.stdout, (tmp_path / "tables.md").read_text(), (tmp_path / "report.html").read_text()):
        assert "fewer training rows" in text
    assert (tmp_path / "figures" / "fractions.png").exists()
    outfield(*command, cwd=place)
    assert not (tmp_path / "figures" / "fractions.png").exists()


def test_views_and_fractions_of_images(place, tmp_path):
    outfield("benchmark", "photos", *IMAGES, *NEAR, "--detector", "MSP", "--views", "flip", "--fraction", "0.5", "--no-report",
             "--out", tmp_path, cwd=place, code=0)  # fmt: skip
    run = load_run(tmp_path / "run.safetensors")
    assert run.provenance["views"] == "flip"
    found = run.low_data
    assert [(one.fraction, one.detector, one.backbone) for one in found] == [(0.5, "MSP", "net"), (1.0, "MSP", "net")]


NEAR = ("--near", "others=others")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("photos", *IMAGES), "there is no OOD set; name at least one, such as --near NAME=FOLDER"),
        (("photos", *IMAGES, *NEAR, "--far", "others=noise.npz"), "names others more than once"),
        (("photos", *IMAGES, "--near", "test=others"), "an OOD set of photos is called test"),
        (("photos", *IMAGES, "--mid", "average=others"), "--mid average=others: average is a column of the tables"),
        (("photos", *IMAGES, "--near", "others"), "cats=photos/cats; a set that is known by name needs --data"),
        (("photos", *IMAGES, "--near", "=others"), "--near =others: write NAME=FOLDER"),
        (("cifar10", *IMAGES, *NEAR), "cifar10 is a published protocol"),
        (("a/b", *IMAGES, *NEAR), "no slash"),
        (("", *IMAGES, *NEAR), "the protocol is called ''"),
        (("photos", *IMAGES, *NEAR, "--ood", "far=noise"), "--ood adds to a published protocol"),
        (
            ("photos", "--id-train", "train", *NEAR),
            "--id-test missing: --near, --mid, --far and --features are for sets of",
        ),
        (("cifar10", *NEAR), "--id-train and --id-test missing: "),
        (("cifar10", "--features"), "need both --id-train and --id-test; to a published protocol, --ood"),
        (("photos", "--backbone", "net.safetensors"), "there is no protocol 'photos'; there are cifar10"),
        (("cifar10", "--backbone", "net.safetensors"), "--data is missing: the folder in which cifar10, cifar100"),
        (("cifar10", "--data", "data"), "--backbone is missing"),
        (("rows", *ROWS, "--near", "a=a.safetensors", "--backbone", "net.safetensors"), "leave out --backbone"),
        (("rows", *ROWS, "--near", "a", "--data", "data"), "--near a: write NAME=FILE, such as cats=cats.npz"),
        (("photos", *IMAGES, "--near", "x=train"), "x and the train set of"),
        (
            ("photos", *IMAGES, *NEAR, "--fraction", "0.1,x"),
            "--fraction 0.1,x: write numbers above 0 and at most 1, such as",
        ),
        (("photos", *IMAGES, *NEAR, "--fraction", ""), "--fraction : write numbers"),
        (("photos", *IMAGES, *NEAR, "--fraction", "0,1"), "fraction is 0.0"),
    ],
)
def test_what_is_wrong_is_told_before_any_work(words, said, place, tmp_path):
    done = outfield("benchmark", *words, "--out", tmp_path / "out", "--detector", "MSP", cwd=place, code=2)
    assert said in done.said
    assert not list(tmp_path.rglob("*.safetensors"))


def test_no_output_takes_the_place_of_a_set(place, tmp_path):
    rows = make_set(30)
    for name in ("train", "test", "a"):
        rows.save(tmp_path / f"{name}.safetensors")
    rows.save(tmp_path / "run.safetensors")
    words = ("benchmark", "rows", *ROWS, "--near", "a=run.safetensors", "--out", ".", "--detector", "MSP")
    done = outfield(*words, cwd=tmp_path, code=2)
    assert "run.safetensors" in done.said
    np.savez(tmp_path / "report.html.npz", images=make_noise(4).images)
    (tmp_path / "report.html.npz").rename(tmp_path / "report.html")
    done = outfield("benchmark", "photos", "--id-train", place / "train", "--id-test", place / "test", "--near", "a=report.html",
                    "--backbone", place / "net.safetensors", "--out", ".", cwd=tmp_path, code=2)  # fmt: skip
    assert "report.html" in done.said


def test_sets_are_added_to_a_published_protocol(tmp_path):
    words = ("benchmark", "cifar10", "--ood", "near=x", "--ood", "mid=y", "--backbone", "net.safetensors")
    said = outfield(*words, "--out", tmp_path).said
    assert "cifar10, cifar100, tinyimagenet, x, lsun, places365, y, textures, svhn lie" in said
