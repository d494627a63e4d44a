"""The commands on features, on real files: what they compute, write and say."""

import csv
import io
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.helpers.program import outfield, settings
from tests.helpers.samples import make_set

import outfield as of
from outfield.scores import discovery_limit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, data in {
        "train": make_set(n=150),
        "val": make_set(n=60, seed=7),
        "test": make_set(n=50, seed=1),
        "noise": make_set(n=40, seed=2, shift=1.0),
        "other": make_set(n=30, seed=3, shift=0.5),
    }.items():
        data.save(folder / f"{name}.npz")
        data.save(folder / f"{name}.safetensors")
    outfield("fit", "SSD", folder / "train.npz", "-o", folder / "ssd.safetensors", "--held-out", folder / "val.npz",
             "--threshold-out", folder / "t.safetensors", code=0)  # fmt: skip
    return folder


def as_table(data: of.FeatureSet) -> dict[str, np.ndarray]:
    columns = {"label": data.labels.numpy()}
    for prefix, values in (("feature", data.features), ("logit", data.logits), ("odin_logit", data.odin_logits)):
        columns |= {f"{prefix}_{i}": values[:, i].numpy() for i in range(values.shape[1])}
    return columns


def write_csv(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def test_fit_says_what_it_did_and_is_quiet_on_stdout(files):
    out = ("--out", files / "knn.safetensors")
    done = outfield("fit", "KNN", files / "train.safetensors", *out, "--set", "k=7", code=0)
    assert done.stdout == ""
    assert "150 samples" in done.stderr
    assert "\x1b" not in done.stderr
    assert of.load(files / "knn.safetensors").k == 7


def test_score_equals_the_library(files):
    expected = of.SSD().fit(of.FeatureSet.load(files / "train.npz")).score(of.FeatureSet.load(files / "test.npz"))
    done = outfield("score", files / "ssd.safetensors", files / "test.npz")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    np.testing.assert_array_equal(np.array([float(row["score"]) for row in rows], np.float32), expected.numpy())


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_score_writes_every_format(files, ending, tmp_path):
    target = tmp_path / f"scores.{ending}"
    rule = ("--threshold", files / "t.safetensors")
    done = outfield("score", files / "ssd.safetensors", files / "noise.npz", *rule, "-o", target, code=0)
    assert "40 samples" in done.stderr
    if ending == "csv":
        rows = list(csv.DictReader(target.open()))
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    else:
        columns = dict(np.load(target)) if ending == "npz" else pyarrow.parquet.read_table(target).to_pydict()
    assert list(columns) == ["score", "is_ood", "p_value"]
    threshold = of.Threshold.load(files / "t.safetensors")
    flags = threshold.is_ood(np.asarray(columns["score"], float)).tolist()
    assert [str(flag) == "True" for flag in columns["is_ood"]] == flags
    expected = threshold.p_value(of.load(files / "ssd.safetensors").score(of.FeatureSet.load(files / "noise.npz")))
    np.testing.assert_array_equal(np.asarray(columns["p_value"], float), expected.numpy())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["SSD", "MSP"])
def test_tables_are_features_too(files, ending, name, tmp_path):
    for part in ("train", "test"):
        columns = as_table(of.FeatureSet.load(files / f"{part}.npz"))
        if ending == "csv":
            write_csv(tmp_path / f"{part}.csv", columns)
        else:
            pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{part}.parquet")
    outfield("fit", name, tmp_path / f"train.{ending}", "-o", tmp_path / "d.safetensors", code=0)
    outfield("score", tmp_path / "d.safetensors", tmp_path / f"test.{ending}", "-o", tmp_path / "s.npz", code=0)
    direct = (
        of.DETECTORS[name]().fit(of.FeatureSet.load(files / "train.npz")).score(of.FeatureSet.load(files / "test.npz"))
    )
    np.testing.assert_allclose(np.load(tmp_path / "s.npz")["score"], direct.numpy(), rtol=1e-4, atol=1e-5)


def test_evaluate_prints_a_table_and_writes_json_and_csv(files, tmp_path):
    arguments = ("evaluate", files / "ssd.safetensors", "--id", files / "test.npz", "--ood", files / "noise.npz",
                 "--ood", f"mild={files / 'other.npz'}")  # fmt: skip
    done = outfield(*arguments, "--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv", code=0)
    for word in ("SSD", "noise", "mild", "FPR95", "AUROC", "AUPR", "mean"):
        assert word in done.stdout
    rows = json.loads((tmp_path / "r.json").read_text())
    assert [row["ood"] for row in rows] == ["noise", "mild"]
    detector = of.load(files / "ssd.safetensors")
    scores = [detector.score(of.FeatureSet.load(files / f"{name}.npz")) for name in ("test", "noise")]
    assert rows[0]["auroc"] == of.auroc(*scores)
    assert rows[0]["fpr95"] == of.fpr95(*scores)
    assert rows[0]["aupr_in"] == of.aupr_in(*scores)
    from_csv = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert float(from_csv[0]["aupr_out"]) == of.aupr_out(*scores)
    printed = outfield(*arguments, "--json", "-")
    assert json.loads(printed.stdout) == rows


def test_evaluate_tells_risk_and_coverage_and_draws_them(files, tmp_path):
    ood = ("--ood", files / "noise.npz")
    arguments = ("evaluate", files / "ssd.safetensors", *ood, "-o", tmp_path / "risk.png", "--id")
    done = outfield(*arguments, files / "test.npz", code=0)
    assert "Risk and coverage" in done.stdout
    test = of.FeatureSet.load(files / "test.npz")
    area = of.aurc(of.load(files / "ssd.safetensors").score(test), test.logits.argmax(1) != test.labels)
    assert f"{100 * area:.1f}" in done.stdout
    (row,) = json.loads(outfield(*arguments[:4], "--id", files / "test.npz", "--json", "-", code=0).stdout)
    outfield(*arguments, files / "test.npz", "--csv", tmp_path / "r.csv", code=0)
    (from_csv,) = csv.DictReader((tmp_path / "r.csv").open())
    assert row["aurc"] == float(from_csv["aurc"]) == area
    assert 0 <= row["with_ood_coverage_at_risk_0.1"] <= row["with_ood_coverage_at_risk_0.2"] <= 1
    assert (tmp_path / "risk.png").read_bytes()[:4] == b"\x89PNG"
    of.FeatureSet(test.features).save(tmp_path / "plain.npz")
    assert "needs the labels and logits" in outfield(*arguments, tmp_path / "plain.npz", code=2).said


def test_discoveries_of_a_detector_need_its_threshold(files):
    score = ("score", files / "ssd.safetensors", files / "noise.npz", "--fdr", "0.5")
    assert "--threshold" in outfield(*score, code=2).said
    done = outfield(*score, "--threshold", files / "t.safetensors", code=0)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    limit = discovery_limit([float(row["p_value"]) for row in rows], 0.5)
    assert limit > 0
    assert [row["is_ood"] == "True" for row in rows] == [float(row["p_value"]) <= limit for row in rows]
    assert "at most 50.0 % of those called OOD are ID" in done.said


def test_a_pack_is_named_with_a_hash(files, tmp_path):
    sets = {name: of.FeatureSet.load(files / f"{name}.npz") for name in ("train", "test", "noise")}
    pack = {f"{name}_{field}": value.numpy() for name, data in sets.items() for field, value in data.tensors().items()}
    np.savez(tmp_path / "pack.npz", **pack)
    done = outfield("fit", "GaussianMixture", f"{tmp_path}/pack.npz#train", "-o", tmp_path / "g.safetensors", code=0)
    sets = ("--id", f"{tmp_path}/pack.npz#test", "--ood", f"{tmp_path}/pack.npz#noise")
    done = outfield("evaluate", tmp_path / "g.safetensors", *sets, code=0)
    assert "noise" in done.stdout


def test_learned_detectors_take_inner_settings_a_seed_and_a_checkpoint(files, tmp_path):
    arguments = ("fit", "EnergyCorrected", files / "train.npz", "-o", tmp_path / "e.safetensors", "--seed", 3,
                 "--set", "network.hidden=8", "--set", "training.epochs=2", "--set", "training.batch_size=50",
                 "--set", "sampler.step_size=[1e-5,1e-6]", "--checkpoint", tmp_path / "c.safetensors")  # fmt: skip
    outfield(*arguments, code=0)
    detector = of.load(tmp_path / "e.safetensors")
    assert (detector.seed, detector.network.hidden, detector.training.epochs) == (3, 8, 2)
    assert detector.sampler.step_size == (1e-5, 1e-6)
    assert len(detector.history_) == 2
    first = (tmp_path / "e.safetensors").read_bytes()
    assert outfield(*arguments).returncode == 0
    assert (tmp_path / "e.safetensors").read_bytes() == first


def test_the_version_is_printed():
    assert of.__version__ in outfield("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("fit", "Nonsense", "{f}/train.npz", "-o", "{t}/d.safetensors"), 2, "there is no detector 'Nonsense'"),
        (("fit", "SSD", "{f}/nothing.npz", "-o", "{t}/d.safetensors"), 3, "no such file"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d.pkl"), 2, "safetensors"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/no/d.safetensors"), 3, "cannot write"),
        (("fit", "SSD", "{f}/train.npz"), 2, "--out"),
        (("fit", "KNN", "{f}/train.npz", "-o", "{t}/d.safetensors", "--set", "q=1"), 2, "no setting q; it has k"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d.safetensors", "--checkpoint", "{t}/c"), 2, "fitted at once"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d.safetensors", "--held-out", "{f}/val.npz"), 2, "go together"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d.safetensors", "--device", "warp"), 2, "warp"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d{seed}.safetensors", "--seeds", "2"), 2, "--seeds is for detectors"),
        (("fit", "EBM", "{f}/train.npz", "-o", "{t}/d.safetensors", "--seeds", "2"), 2, "put {seed} into its name"),
        (("fit", "SSD", "{f}/train.npz", "-o", "{t}/d.safetensors", "--held-out", "{f}/val.npz", "--threshold-out",
          "{t}/t.safetensors", "--keep", "95"), 2, "keep is 95"),
        (("fit", "EBM", "{f}/train.npz", "-o", "{t}/d.safetensors", "--seed", "99999999999999999999"), 2, "seed"),
        (("score", "{f}/ssd.safetensors", "{f}/test.safetensors#part"), 2, "several sets"),
        (("evaluate", "{f}/ssd.safetensors", "--id", "{f}/test.npz", "--ood", "{f}/noise.npz", "--json", "-", "--csv", "-"),
         2, "standard output"),
        (("score", "{f}/train.safetensors", "{f}/test.npz"), 3, "holds a FeatureSet, not a detector"),
        (("score", "{f}/ssd.safetensors", "{f}/test.txt"), 2, ".npz"),
        (("score", "{f}/ssd.safetensors", "{f}/test.npz", "-o", "{t}/s.xls"), 2, ".parquet"),
        (("evaluate", "{f}/ssd.safetensors", "--id", "{f}/test.npz"), 2, "--ood"),
        (("evaluate", "{f}/ssd.safetensors", "--id", "{f}/test.npz", "--ood", "{f}/noise.npz", "--ood", "{f}/noise.npz"),
         2, "NAME=FILE"),
        (("toy", "spiral"), 2, "spiral"),
        (("frobnicate",), 2, "frobnicate"),
    ],
)  # fmt: skip
def test_mistakes_get_one_clear_line_and_an_exit_code(files, tmp_path, arguments, code, words):
    done = outfield(*(a.format(f=files, t=tmp_path, seed="{seed}") for a in arguments), code=code)
    assert words in done.said
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_threshold_belongs_to_its_detector(files):
    outfield("fit", "MSP", files / "train.npz", "-o", files / "msp.safetensors")
    done = outfield("score", files / "msp.safetensors", files / "test.npz", "--threshold", files / "t.safetensors")
    assert done.returncode == 2
    assert "was chosen for SSD" in done.stderr


def test_odd_file_names(files, tmp_path):
    for name in ("lr=0.1.npz", "run#3.npz", "with space.npz", "no[red]ise.npz"):
        (tmp_path / name).write_bytes((files / "noise.npz").read_bytes())
        done = outfield("evaluate", files / "ssd.safetensors", "--id", files / "test.npz", "--ood", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert name.removesuffix(".npz") in done.stdout


def test_divergence_has_its_own_exit_code(files, tmp_path):
    done = outfield("fit", "EBM", files / "train.npz", "-o", tmp_path / "d.safetensors", "--set", "training.learning_rate=1e30",
                    "--set", "network.hidden=8", "--set", "training.batch_size=50", "--set", "sampler.steps=2",
                    "--set", "training.l2=0", code=4)  # fmt: skip
    assert "learning_rate" in done.stderr
    assert not list(tmp_path.iterdir())


QUICK = settings("network.hidden=8", "network.depth=1", "training.epochs=1", "sampler.steps=1")


def test_several_seeds_at_once_give_a_file_each(files, tmp_path):
    outfield("fit", "EnergyCorrected", files / "train.npz", "-o", tmp_path / "ours-{seed}.safetensors", *QUICK,
             "--seeds", 2, "--seed", 3, "--held-out", files / "val.npz",
             "--threshold-out", tmp_path / "t{seed}.safetensors", code=0)  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ours-3.safetensors", "ours-4.safetensors", "t3.safetensors", "t4.safetensors",
    ]  # fmt: skip
    assert [of.load(tmp_path / f"ours-{seed}.safetensors").seed for seed in (3, 4)] == [3, 4]
    outfield(
        "score", tmp_path / "ours-4.safetensors", files / "test.npz", "--threshold", tmp_path / "t4.safetensors", code=0
    )


def test_features_too_large_for_memory_give_the_same_detector(files, tmp_path, monkeypatch):
    def fitted(name):
        outfield("fit", "EBM", files / "train.safetensors", "-o", tmp_path / name, *QUICK, "--device", "cpu", code=0)
        return (tmp_path / name).read_bytes()

    in_memory = fitted("a.safetensors")
    kept = []
    monkeypatch.setattr(of.FeatureStream, "in_memory", lambda self: kept.append(self))
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    assert fitted("b.safetensors") == in_memory
    assert not kept


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz", None])
def test_the_files_of_the_images_stand_beside_their_scores(files, tmp_path, ending):
    test = make_set(n=50, seed=1)
    names = [f'folder/{i}, "{i}".png' for i in range(50)]
    of.FeatureSet(**test.tensors(), names=names).save(tmp_path / "named.npz")
    place = () if ending is None else ("-o", tmp_path / f"s{ending}")
    done = outfield("score", files / "ssd.safetensors", tmp_path / "named.npz", *place, code=0)
    if ending == ".parquet":
        found = pyarrow.parquet.read_table(tmp_path / "s.parquet").to_pydict()
    elif ending == ".npz":
        found = {name: value.tolist() for name, value in np.load(tmp_path / "s.npz").items()}
    else:
        text = done.stdout if ending is None else (tmp_path / "s.csv").read_text()
        rows = list(csv.DictReader(io.StringIO(text)))
        found = {name: [row[name] for row in rows] for name in rows[0]}
    assert list(found) == ["file", "score"]
    assert found["file"] == names
    wanted = of.load(files / "ssd.safetensors").score(test)
    assert np.allclose(np.array(found["score"], float), wanted.numpy())


def test_rows_of_another_network_are_refused(files, tmp_path):
    for name, network in (("train", "a 1"), ("mine", "b 1"), ("other", "a 2")):
        data = make_set(n=80)
        of.FeatureSet(**data.tensors(), about={"network": network}).save(tmp_path / f"{name}.npz")
    assert outfield("fit", "SSD", tmp_path / "train.npz", "-o", tmp_path / "d.safetensors").returncode == 0
    assert outfield("score", tmp_path / "d.safetensors", tmp_path / "mine.npz").returncode == 0
    done = outfield("score", tmp_path / "d.safetensors", tmp_path / "other.npz", code=2)
    assert "network is 'a 2' here, but 'a 1'" in done.said
