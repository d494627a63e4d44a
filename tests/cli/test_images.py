"""The whole way on generated images: train, extract, benchmark, report."""

import functools
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.helpers import program
from tests.helpers.pictures import make_noise, make_pictures
from tests.helpers.program import settings
from tests.helpers.samples import quick

import outfield as of
from outfield.benchmark import ROWS, load_run, save_run
from outfield.errors import FileFormatError
from outfield.files import read_record as read

SMALL = ("--architecture", "test_resnet", "--device", "cpu")
TINY = (*SMALL, *settings("batch_size=32", "augmentation.scale=[0.6,1.0]"))


outfield = functools.partial(program.outfield, code=0)


def save(folder, name, images):
    arrays = {"images": images.images} | ({} if images.labels is None else {"labels": images.labels})
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    save(folder, "cifar10_train", make_pictures(160))
    save(folder, "cifar10_test", make_pictures(60, seed=1))
    for seed, name in enumerate(of.PROTOCOLS["cifar10"].ood, 5):
        save(folder, name, make_noise(30, seed=seed) if seed % 2 else make_pictures(30, classes=7, seed=seed))
    return folder


@pytest.fixture(scope="module")
def networks(data):
    done = outfield("train", "cifar10", "--data", data, "-o", data / "net-{seed}.safetensors", "--seeds", 2, "--set", "epochs=4",
                    "--checkpoint", data / "kept-{seed}.safetensors", *TINY)  # fmt: skip
    assert "epoch 4 of 4" in done.stderr
    assert done.stdout.count("test accuracy") == 2
    return [data / f"net-{seed}.safetensors" for seed in range(2)]


def test_training_tells_what_it_did_and_goes_on_from_its_checkpoint(data, networks):
    again = outfield("train", "cifar10", "--data", data, "-o", data / "again.safetensors", "--set", "epochs=4",
                     "--checkpoint", data / "kept-0.safetensors", *TINY)  # fmt: skip
    assert "going on from" in again.stderr
    assert "epoch 4" not in again.stderr  # nothing was left to do
    (first, config, notes), (second, _, _) = (of.load_classifier(p) for p in (networks[0], data / "again.safetensors"))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert (config.architecture, config.classes, config.size, config.small_images) == ("test_resnet", 4, (16, 16), True)
    assert notes["images"]["n"] == 160
    assert len(notes["curve"]["loss"]) == notes["recipe"]["epochs"] == 4


def test_a_recipe_is_judged_on_held_out_training_images_and_not_on_the_test_set(data, tmp_path):
    alone = tmp_path / "alone"  # a folder without the test images: they are not even opened
    alone.mkdir()
    (alone / "cifar10_train.npz").write_bytes((data / "cifar10_train.npz").read_bytes())
    done = outfield("train", "cifar10", "--data", alone, "-o", tmp_path / "n.safetensors", "--set", "epochs=4",
                    "--set", "schedule=cosine", "--hold-out", 0.2, *TINY)  # fmt: skip
    assert "160 images of 4 classes, 0.2 of each held out" in done.stderr
    notes = of.load_classifier(tmp_path / "n.safetensors")[2]
    assert notes["recipe"]["schedule"] == "cosine"
    assert notes["held_out"]["images"] == 32
    assert f"held-out accuracy {100 * notes['held_out']['accuracy']:.2f} % on 32 training images" in done.stdout
    assert "test accuracy" not in done.stdout
    assert notes["curve"]["test_accuracy"] == [None] * 4


def test_losses_and_augmentations_have_names_and_one_needs_no_labels(data, tmp_path):
    first, second = tmp_path / "logitnorm.safetensors", tmp_path / "simclr.safetensors"
    small = (*SMALL, *settings("epochs=1", "batch_size=16"))
    named = ("--loss", "logitnorm", "--augment", "shift", "--set", "loss.temperature=0.1")
    told = outfield("train", "cifar10", "--data", data, "-o", first, *named, *small)
    assert "training accuracy" in told.stdout
    assert "training accuracy" in told.stderr
    recipe = of.load_classifier(first)[2]["recipe"]
    assert recipe["loss"] == {"type": "LogitNorm", "temperature": 0.1}
    assert recipe["augmentation"]["type"] == "PadAndShift"
    done = outfield("train", data / "lsun.npz", "-o", second, "--loss", "simclr", *small)
    assert "without labels" in done.stderr
    for said in (done.stdout, done.stderr):
        assert "pairs found" in said
        assert "accuracy" not in said
    outfield("extract", second, data / "svhn.npz", "-o", tmp_path / "f.npz", "--device", "cpu")
    assert "logits" not in of.FeatureSet.load(tmp_path / "f.npz").shapes


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_an_interrupted_training_goes_on_where_it_stopped(data, tmp_path):
    command = [*f"train cifar10 --data {data} -o {tmp_path}/n.safetensors --set epochs=6".split(), *TINY]
    running = subprocess.Popen([sys.executable, "-m", "outfield", *command], stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        if line.startswith("epoch 3 "):
            running.send_signal(signal.SIGINT)
            break
    rest = running.stderr.read()
    assert running.wait(timeout=300) == 130
    assert "finishing this epoch" in rest
    assert "the same command goes on" in rest
    kept = tmp_path / "n.checkpoint.safetensors"
    done = len(read(kept, "classifier training")[0]["curve"]["loss"])
    assert 3 <= done < 6
    again = outfield(*command)
    assert "going on from" in again.stderr
    assert f"epoch {done + 1} of 6" in again.stderr
    assert f"epoch {done} of 6" not in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["n.safetensors"]


def test_extracted_stages_and_last_layer(data, networks, tmp_path):
    for name in ("cifar10_test", "svhn"):
        asked = ("--stages", "--views", "flip", "--device", "cpu")
        outfield("extract", networks[0], data / f"{name}.npz", "-o", tmp_path / f"{name}.npz", *asked)
    found = of.FeatureSet.load(tmp_path / "svhn.npz")
    stages = {f"stage{number}": f"layer{number}" for number in (1, 2, 3)}
    assert {name: text for name, text in found.about.items() if name != "network"} == {"views": "flip"} | stages
    assert torch.allclose(found.features @ found.head_weight.T + found.head_bias, found.logits, atol=1e-4)
    knn = tmp_path / "knn.safetensors"
    outfield("fit", "KNN", tmp_path / "cifar10_test.npz", "-o", knn, "--set", "field=stage2", "--set", "k=3")
    outfield("score", knn, tmp_path / "svhn.npz", "-o", tmp_path / "scores.csv")
    outfield("extract", networks[0], data / "svhn.npz", "--stages", "-o", tmp_path / "plain.npz", "--device", "cpu")
    refused = outfield("score", knn, tmp_path / "plain.npz", "-o", tmp_path / "scores.csv", code=2)
    assert "views is 'one' here, but 'flip'" in " ".join(refused.stderr.split())


def test_extracted_features_feed_fit_and_evaluate(data, networks, tmp_path):
    for split in ("train", "test"):
        outfield("extract", networks[0], "cifar10", "--data", data, "--split", split, "--odin", "--device", "cpu",
            "-o", tmp_path / f"{split}.safetensors")  # fmt: skip
    outfield("extract", networks[0], data / "svhn.npz", "--odin", "-o", tmp_path / "svhn.npz", "--device", "cpu")
    found = of.FeatureSet.load(tmp_path / "train.safetensors")
    assert found.shapes["odin_logits"] == found.shapes["logits"] == (160, 4)
    assert "labels" not in of.FeatureSet.load(tmp_path / "svhn.npz").shapes
    outfield("fit", "SSD", tmp_path / "train.safetensors", "-o", tmp_path / "ssd.safetensors")
    sets = ("--id", tmp_path / "test.safetensors", "--ood", tmp_path / "svhn.npz")
    done = outfield("evaluate", tmp_path / "ssd.safetensors", *sets, "--json", "-")
    assert json.loads(done.stdout)[0]["n_ood"] == 30


def test_from_images_to_the_report(data, networks, tmp_path, monkeypatch):
    """In this process, because a benchmark's detectors are the paper's, which are too slow for a test: here they are quick."""
    monkeypatch.setattr(of.benchmark, "detectors_from_text", lambda *_: {name: quick(name) for name in ROWS})
    command = f"benchmark cifar10 --data {data} --out {tmp_path}/out --seeds 2 --device cpu".split()
    command += [word for path in networks for word in ("--backbone", str(path))]
    outfield(*command, "--no-report")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cache").iterdir()}
    outfield(*command)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cache").iterdir()} == kept
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"report.html", "tables.md", "tables.tex", "results.csv", "results.json", "run.safetensors"} <= written
    assert {f"figures/{name}.png" for name in ("sets", "roc", "histograms", "features", "training")} <= written
    run = load_run(tmp_path / "out" / "run.safetensors")
    # 6 without randomness, 2 with 2 seeds; on 2 backbones; against 6 sets
    assert len(run.records) == (6 + 2 * 2) * 2 * 6
    far = [record.auroc for record in run.records if record.detector == "SSD" and record.ood in ("textures", "svhn")]
    assert np.mean(far) > 0.8
    page = (tmp_path / "out" / "report.html").read_text()
    assert "CIFAR-10" in page
    assert "net-0" in page

    monkeypatch.setattr("outfield.report.figures.write_figures", lambda *_, **__: [])  # they were just drawn
    outfield("report", tmp_path / "out" / "run.safetensors", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "results.csv").read_bytes() == (tmp_path / "out" / "results.csv").read_bytes()


def test_a_kept_run_comes_back_whole(data, networks, tmp_path):
    command = f"benchmark cifar10 --data {data} --out {tmp_path} --no-report --device cpu --ood far=svhn2".split()
    command += f"--detector SSD --detector MSP --detector KNN --set KNN.k=7 --backbone {networks[1]}".split()
    save(data, "svhn2", make_noise(20, seed=40))
    outfield(*command)
    run = load_run(tmp_path / "run.safetensors")
    assert run.protocol.far == ("textures", "svhn", "svhn2")
    assert run.provenance["detectors"]["KNN"]["settings"]["k"] == 7
    assert {len(scores) for scores in run.scores.values()} == {8}
    save_run(run, tmp_path / "copy.safetensors")
    copy = load_run(tmp_path / "copy.safetensors")
    assert copy.records == run.records
    assert copy.provenance == run.provenance
    assert copy.layouts[0].sets == run.layouts[0].sets
    for key, scores in run.scores.items():
        for name, values in scores.items():
            np.testing.assert_array_equal(copy.scores[key][name], values)
    (tmp_path / "copy.safetensors").write_bytes((tmp_path / "run.safetensors").read_bytes()[:-9])
    with pytest.raises(FileFormatError):
        load_run(tmp_path / "copy.safetensors")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--seeds", "2"], 2, "put {seed} into its name"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--set", "epochs=0"], 2, "epochs is 0"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--set", "augmentation=none"], 2, "augmentation is"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--hold-out", "1"], 2, "hold_out is 1"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--hold-out", "0.99"], 2, "none would be left"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--loss", "hinge"], 2,
         "--loss is 'hinge'; it must be one of cross-entropy, smoothing, logitnorm, simclr"),
        (["train", "cifar10", "--data", "{data}", "-o", "n.safetensors", "--augment", "mixup"], 2,
         "--augment is 'mixup'; it must be one of crops, shift, recoloured"),
        (["train", "svhn", "--data", "{data}", "-o", "n.safetensors"], 3, "svhn_train.npz"),
        (["train", "{data}/lsun.npz", "-o", "n.safetensors"], 2, "no labels"),
        (["train", "{data}/cifar10_train.npz", "-o", "n.safetensors", "--architecture", "resnet0", "-s", "batch_size=9"], 2,
         "timm has no model"),
        (["extract", "{data}/none.safetensors", "{data}/svhn.npz", "-o", "f.npz"], 3, "no such file"),
        (["extract", "{data}/net-0.safetensors", "{data}/svhn.npz", "-o", "f.csv"], 2, ".safetensors or .npz"),
        (["extract", "{data}/net-0.safetensors", "{data}/lsun.npz", "-o", "f.npz", "--labels"], 2, "has no labels"),
        (["extract", "{data}/net-0.safetensors", "{data}/lsun.npz", "-o", "f.npz", "--views", "9"], 2, "from 1 to 8"),
        (["benchmark", "mnist", "--data", "{data}", "--backbone", "x"], 2, "there are cifar10, cifar100"),
        (["benchmark", "cifar10", "--data", "{data}", "--backbone", "x", "--ood", "noise"], 2, "LEVEL=NAME"),
        (["benchmark", "cifar10", "--data", "{data}", "--backbone", "x", "--set", "k=9"], 2, "DETECTOR.NAME=VALUE"),
        (["benchmark", "cifar100", "--data", "{data}", "--backbone", "{data}/net-0.safetensors"], 2, "missing"),
        (["report", "{data}/net-0.safetensors"], 3, "holds a classifier, not a benchmark run"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_and_nothing_is_left_behind(command, code, said, data, networks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = outfield(*(word.replace("{data}", str(data)) for word in command), code=code)
    assert said in done.said
    assert not list(tmp_path.iterdir())
