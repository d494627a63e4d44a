"""No output takes the place of an input or of another output, whatever the paths are called, and that is said before the work."""

import os
import sys
from pathlib import Path

import pytest
from tests.helpers.program import outfield, settings
from tests.helpers.samples import make_set

import outfield as of
from outfield.cli.options import Output, check_places
from outfield.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """A folder with every kind of file, some of them by other names too."""
    train = make_set(n=60)
    for name in ("train.safetensors", "t.npz"):
        train.save(tmp_path / name)
    values = train.features.numpy()
    header = ",".join(f"feature_{i}" for i in range(values.shape[1]))
    (tmp_path / "new.csv").write_text("\n".join([header, *(",".join(map(str, row)) for row in values.tolist())]) + "\n")
    model = of.SSD().fit(train)
    model.save(tmp_path / "d.safetensors")
    of.Threshold.fit(model.score(train), source=model.fingerprint()).save(tmp_path / "rule.safetensors")
    (tmp_path / "link.safetensors").symlink_to("train.safetensors")
    os.link(tmp_path / "train.safetensors", tmp_path / "hard.safetensors")
    (tmp_path / "elsewhere").symlink_to(".")
    (tmp_path / "far.safetensors").symlink_to("t.npz")
    for name in ("report.html", "results.csv", "run.safetensors"):
        (tmp_path / name).write_bytes((tmp_path / "d.safetensors").read_bytes())
    return tmp_path


EBM = ["EBM", "train.safetensors", *settings("training.epochs=1", "network.hidden=4", "sampler.steps=1")]
EVALUATE = ("evaluate", "d.safetensors", "--id", "t.npz", "--ood", "other=train.safetensors")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "SSD", "train.safetensors", "-o", "train.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "train.safetensors", "-o", "./train.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "train.safetensors", "-o", "elsewhere/train.safetensors"), "--out would overwrite"),
        (("fit", "SSD", "train.safetensors", "-o", "link.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "link.safetensors", "-o", "train.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "train.safetensors", "-o", "hard.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "t.npz", "-o", "far.safetensors"), "--out would overwrite the training data"),
        (("fit", "SSD", "t.npz#x", "-o", "t.npz"), "must end in .safetensors"),
        (("fit", "SSD", "t.npz", "-o", "n.safetensors", "--held-out", "train.safetensors", "--threshold-out",
          "n.safetensors"), "--threshold-out and --out are both"),
        (("fit", "SSD", "t.npz", "-o", "n.safetensors", "--held-out", "train.safetensors", "--threshold-out",
          "hard.safetensors"), "--threshold-out would overwrite the held-out data"),
        (("fit", *EBM, "-o", "n.safetensors", "--checkpoint", "elsewhere/n.safetensors"), "--checkpoint and --out are both"),
        (("fit", *EBM, "-o", "n.safetensors", "--checkpoint", "train.safetensors"), "--checkpoint would overwrite"),
        (("fit", *EBM, "-o", "n{seed}.safetensors", "--seeds", "2", "--checkpoint", "n1.safetensors"), "are both"),
        (("fit", "EBM", "t.npz", "-o", "d{seed}.safetensors", "--seeds", "2", "--held-out", "train.safetensors",
          "--threshold-out", "d{seed}.safetensors"), "are both"),
        (("score", "d.safetensors", "new.csv", "-o", "new.csv"), "--out would overwrite the data"),
        (("score", "d.safetensors", "t.npz", "-o", "t.npz"), "--out would overwrite the data"),
        (("score", "d.safetensors", "new.csv", "-o", "scores.txt"), ".csv, .parquet or .npz"),
        (("score", "d.safetensors", "new.csv", "-o", "rule.safetensors", "--threshold", "rule.safetensors"), ".csv, .parquet"),
        ((*EVALUATE, "--csv", "d.safetensors"), "--csv"),
        ((*EVALUATE, "--json", "train.safetensors"), "--json"),
        ((*EVALUATE, "--json", "r", "--csv", "./r"), "--csv and --json are both"),
        ((*EVALUATE[:-1], "new=new.csv", "--csv", "new.csv"), "--csv would overwrite the OOD set new"),
        ((*EVALUATE, "--csv", "no/results.csv"), "no folder"),
        (("extract", "d.safetensors", "t.npz", "-o", "t.npz"), "--out would overwrite the images"),
        (("extract", "d.safetensors", "t.npz", "-o", "d.safetensors"), "--out would overwrite the backbone"),
        (("extract", "timm:resnet18@d.safetensors", "t.npz", "-o", "d.safetensors"), "--out would overwrite the backbone"),
        (("extract", "d.safetensors", "t", "--data", ".", "-o", "t.npz"), "--out would overwrite the images"),
        (("train", "t.npz", "-o", "far.safetensors"), "--out would overwrite the training images"),
        (("train", "t.npz", "-o", "n.safetensors", "--checkpoint", "./n.safetensors"), "are both"),
        (("train", "t.npz", "-o", "n{seed}.safetensors", "--seeds", "2", "--checkpoint", "n{seed}.safetensors"), "are both"),
        (("report", "new.csv", "--out", "new.csv"), "there is no folder"),
        *((("report", name), "--out would overwrite the run") for name in ("report.html", "results.csv")),
        (("benchmark", "cifar10", "--data", ".", "--backbone", "run.safetensors", "--out", "."), "would overwrite the backbone"),
    ],
)  # fmt: skip
def test_nothing_is_destroyed(folder, arguments, said):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = outfield(*arguments, cwd=folder)
    assert done.returncode in (2, 3), done.stderr
    assert said in done.said
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_result_may_be_replaced(folder):
    for _ in range(2):
        assert outfield("fit", "SSD", "t.npz", "-o", "again.safetensors", cwd=folder).returncode == 0
    (folder / "to.safetensors").symlink_to("again.safetensors")
    assert outfield("fit", "SSD", "t.npz", "-o", "to.safetensors", cwd=folder).returncode == 0
    assert (folder / "to.safetensors").is_symlink()


@pytest.mark.parametrize("ending", ["xls", "safetensors"])
def test_a_wrong_ending_is_refused_before_the_work(folder, ending, monkeypatch):
    monkeypatch.setattr(of.SSD, "score", lambda *_: pytest.fail("scored before the ending was checked"))
    outfield("score", "d.safetensors", "t.npz", "-o", f"s.{ending}", cwd=folder, code=2)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_found_before_the_work(folder):
    (folder / "closed").mkdir(mode=0o500)
    for arguments in (("toy", "--out", "closed/toy"), ("demo", "--out", "closed/demo")):
        done = outfield(*arguments, cwd=folder, code=3)
        assert "not writable" in done.said


def test_a_name_that_is_none_is_told():
    with pytest.raises(InputError, match=r"--out is .* must be a path"):
        check_places([], [Output("--out", Path("\ud800.png"), (".png",))])
