"""outfield guard: from a network and a folder to verdicts, as tables and files, with exit codes."""

import csv
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from tests.helpers.guards import NAMES, labelled, noise, trained, write_folder
from tests.helpers.program import outfield

import outfield as of
from outfield.backbone import Backbone
from outfield.scores import share_interval


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    trained(folder / "net.safetensors")
    write_folder(folder / "train", labelled(240, 1))
    write_folder(folder / "new", labelled(4, 3))
    Image.fromarray(noise(1)[0]).save(folder / "noise.png")
    (folder / "broken.png").write_bytes(b"not a picture")
    words = ("guard", "build", "net.safetensors", "--images", "train", "-o", "my.guard", "--device", "cpu")
    done = outfield(*words, cwd=folder, code=0)
    assert "80 of 240 images are held out" in done.said
    assert "accuracy of net on 80 held-out images: 100.0 %" in done.said
    assert "built in " in done.said
    assert re.search(r"how good it is: (good|fair|weak)\. It catches \d+ % of near and", done.said)
    assert len({*done.stderr.splitlines()}) == len(done.stderr.splitlines())  # nothing is said twice
    assert done.stderr.splitlines()[-3:] == [
        "now check images:    outfield guard check my.guard PHOTO.jpg",
        "see how good it is:  outfield guard evaluate my.guard --id TEST --ood OTHERS",
        "answer over HTTP:    outfield serve my.guard",
    ]
    return folder


def check(folder, *arguments):
    return outfield("guard", "check", "my.guard", *arguments, "--device", "cpu", cwd=folder)


def test_a_table_by_default(folder):
    done = check(folder, "noise.png", "new", "broken.png")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["file", "class", "score", "p-value", "verdict", "triggered", "by"]
    new = [f"new/{name}/{number:04d}.png" for number, name in enumerate(NAMES)]
    assert [row.split()[0] for row in rows] == ["noise.png", *new, "broken.png"]
    assert " OOD " in rows[0]
    assert "not an image" in rows[-1]
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert "1 of 6 images could not be read; broken.png is truncated" in done.said
    assert "5 images, 1 OOD" in done.said


def test_names_of_files_do_not_reach_the_terminal_as_orders(folder, tmp_path):
    name = "a\x1b[31m\nb.png"
    (tmp_path / name).write_bytes((folder / "noise.png").read_bytes())
    (tmp_path / f"broken{name}").write_bytes(b"")
    done = check(folder, tmp_path / name, tmp_path / f"broken{name}")
    assert "/a\\x1b[31m\\nb.png" in done.stdout
    assert "\x1b" not in done.stdout + done.said
    assert len(done.stdout.splitlines()) == 3
    failed = check(folder, tmp_path / f"broken{name}", "--on-error", "fail")
    assert "\\x1b[31m" in failed.said
    assert "\x1b" not in failed.said


class TestEvaluate:
    def test_a_table_and_a_figure(self, folder, tmp_path):
        write_folder(tmp_path / "test", labelled(60, 9))
        (tmp_path / "other").mkdir()
        for number, image in enumerate(noise(30)):
            Image.fromarray(image).save(tmp_path / "other" / f"{number}.png")
        (tmp_path / "other" / "z.png").write_bytes(b"not a picture")
        sets = ("--id", tmp_path / "test", "--ood", tmp_path / "other", "--ood", f"same={tmp_path / 'test'}")
        words = ("guard", "evaluate", "my.guard", *sets, "-o", tmp_path / "e.png", "--device", "cpu")
        done = outfield(*words, cwd=folder, code=0)
        title, header, *rows = done.stdout.splitlines()
        assert title == "my.guard, 95 % of ID to be kept; 95 % intervals"
        assert header.split()[:2] == ["set", "images"]
        guard = of.Guard.load(folder / "my.guard", device="cpu")
        test = guard(str(tmp_path / "test"))
        kept, n = int((~test.is_ood).sum()), 60
        low, high = share_interval(kept, n)
        assert rows[0].split() == f"ID 60 kept {100 * kept / n:.1f} ({100 * low:.1f} – {100 * high:.1f})".split()
        assert rows[1].split()[:4] == ["other", "30", "caught", "100.0"]
        assert rows[1].split()[-8:] == ["0.0", "(0.0", "–", "0.0)", "100.0", "(100.0", "–", "100.0)"]
        own = f"{100 * of.fpr95(test.scores, test.scores):.1f}"
        assert rows[2].split()[2:4] == ["caught", f"{100 * (n - kept) / n:.1f}"]
        assert rows[2].split()[7] == own
        assert rows[2].split()[11] == "50.0"
        assert float(rows[2].split()[12][1:]) < 50.0 < float(rows[2].split()[14][:-1])
        assert "1 of 31 images of" in done.said
        size = Image.open(tmp_path / "e.png").size
        assert size[0] > 1000
        words = ("--id", tmp_path / "test" / NAMES[0], *sets[2:], "-o", tmp_path / "f.png", "--device", "cpu")
        outfield("guard", "evaluate", "my.guard", *words, cwd=folder, code=0)
        assert Image.open(tmp_path / "f.png").size[1] < size[1]  # without risk and coverage

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["--id", "new", "--ood", "nope"], 3, "cannot read nope"),
            (["--id", "new", "--ood", "broken.png"], 3, "no image of broken.png could be read"),
            (["--id", "new", "--ood", "noise.png", "-o", "x.txt"], 2, "must end in .png"),
            (["--id", "new", "--ood", "noise.png", "--ood", "noise.png"], 2, "have the same name"),
            (["--id", "new", "--ood", "noise.png", "-o", "noise.png"], 2, "would overwrite the OOD set noise"),
        ],
    )
    def test_wrong_usage(self, folder, arguments, code, said):
        done = outfield("guard", "evaluate", "my.guard", *arguments, "--device", "cpu", cwd=folder, code=code)
        assert said in done.said

    def test_a_guard_of_rows(self, tmp_path):
        rows = np.random.default_rng(0).normal(size=(400, 3))
        guard = of.Guard.build_rows({name: rows[:300, i] for i, name in enumerate("abc")}, detector="SSD")
        guard.save(tmp_path / "t.guard")
        for name, table in {"id": rows[300:], "far": rows[300:350] + 9}.items():
            (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c", *(",".join(map(str, row)) for row in table)]))
        done = outfield("guard", "evaluate", "t.guard", "--id", "id.csv", "--ood", "far.csv", cwd=tmp_path, code=0)
        assert "caught 100.0 (92.9 – 100.0)" in done.stdout


def test_json_and_lines_say_what_python_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    guard = of.Guard.load("my.guard", device="cpu")
    expected = guard(["noise.png", "broken.png", "noise.png"], on_error="skip").to_list()
    assert json.loads(check(folder, "noise.png", "broken.png", "noise.png", "--json").stdout) == expected
    lines = check(folder, "noise.png", "broken.png", "noise.png", "--jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert expected[0]["triggered_by"] in guard.members
    assert expected[1]["is_ood"] is None


def test_files_hold_every_column(folder, tmp_path):
    for ending in ("csv", "parquet", "json", "jsonl"):
        done = check(folder, "noise.png", "new", "broken.png", "--out", tmp_path / f"v.{ending}")
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    expected = json.loads((tmp_path / "v.json").read_text())
    assert [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()] == expected
    rows = [*csv.DictReader((tmp_path / "v.csv").open())]
    assert [float(row["score"]) if row["score"] else None for row in rows] == [one["score"] for one in expected]
    assert [row["file"] for row in rows] == [one["file"] for one in expected]
    table = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["score"] == [one["score"] for one in expected]
    assert table["is_ood"] == [one["is_ood"] for one in expected]
    assert [text is None for text in table["error"]] == [True] * 5 + [False]
    member = next(iter(expected[0]["members"]))
    assert table[f"p_value {member}"][0] == expected[0]["members"][member]


def test_exit_codes(folder):
    assert check(folder, "noise.png").returncode == 0
    assert check(folder, "noise.png", "--fail-on-ood").returncode == 10
    assert check(folder, "new", "broken.png", "--fail-on-ood").returncode == 11  # what was not checked has not passed
    assert check(folder, "noise.png", "broken.png", "--fail-on-ood").returncode == 10
    assert check(folder, "new", "broken.png").returncode == 0
    assert check(folder, "broken.png").returncode == 11
    assert check(folder, "broken.png", "--on-error", "fail").returncode == 3
    assert check(folder, "none.png", "--on-error", "fail").returncode == 3
    assert check(folder, "noise.png", "--on-error", "maybe").returncode == 2
    assert check(folder, "noise.png", "--json", "--jsonl").returncode == 2
    assert check(folder, "noise.png", "--out", "v.txt").returncode == 2
    assert check(folder, "noise.png", "--out", "noise.png").returncode == 2


def test_show_tells_what_is_inside(folder):
    done = outfield("guard", "show", "my.guard", cwd=folder, code=0)
    about = (
        "net (test_resnet)",
        ", ".join(NAMES),
        "16 × 16",
        "keeps 0.95",
        "fitted on 160",
        "accuracy 100.0 %",
        "one; ",
    )
    assert [words for words in about if words not in done.stdout] == []
    assert outfield("guard", "show", "net.safetensors", cwd=folder).returncode == 3


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["build", "net.safetensors", "--images", "train", "-o", "x.pt"], 2, ".guard or .safetensors"),
        (["build", "none.safetensors", "--images", "train", "-o", "x.guard"], 3, "no such file"),
        (["build", "net.safetensors", "--images", "new", "-o", "x.guard"], 2, "found 4 images, and 59 would"),
        (["build", "net.safetensors", "--images", "train", "--held-out", "new", "-o", "x.guard"], 2, "at least 59"),
        (["check", "net.safetensors", "noise.png"], 3, "holds a classifier, not a guard"),
        (["check", "none.guard", "noise.png"], 3, "no such file"),
        (["check", "my.guard", "noise.png", "--why"], 2, "my.guard looks at images; leave it out"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told(folder, command, code, said):
    done = outfield("guard", *command, "--quiet", cwd=folder, code=code)
    assert said in done.said
    assert not (folder / "x.guard").exists()


def test_the_file_is_written_though_nobody_reads_the_lines(folder, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)  # as head does once it has its line
    command = [sys.executable, "-m", "outfield", "guard", "check", "my.guard", "noise.png", "new", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--jsonl", "--out", str(tmp_path / "y.csv")],
        stdout=writer, stderr=subprocess.PIPE, cwd=folder, timeout=300, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert next(csv.DictReader((tmp_path / "y.csv").open()))["file"] == "noise.png"
    assert len((tmp_path / "y.csv").read_text().splitlines()) == 6
    assert "Traceback" not in done.stderr


def test_the_help_of_build_names_every_kind_of_network():
    said = " ".join(outfield("guard", "build", "--help").stdout.replace("│", " ").split())
    for kind in ("outfield train", "timm:NAME", "torchvision:NAME", "hf:FOLDER", "FILE.onnx", "FILE.pt2"):
        assert kind in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--images", "nope"], 3, "nope: there is no such file or folder"),
        (["--images", "train", "--held-out", "nope"], 3, "nope: there is no such file or folder"),
        (["--images", "train", "--keep", "1"], 2, "keep is 1.0"),
        (["--images", "train", "--views", "ten"], 2, "views is 'ten'"),
        (["--images", "train", "--views", "9"], 2, "1 to 8, auto"),
        (["--images", "train", "--views", "auto", "--detector", "SSD"], 2, "chosen for Auto alone"),
        (["--images", "train", "--detector", "none"], 2, "no detector 'none'"),
        (["--images", "train", "--on-error", "maybe"], 2, "'maybe'"),
        (["--images", "train", "--device", "abacus"], 2, "abacus"),
        (["--images", "train", "--mean", "a,b,c"], 2, "--mean is"),
    ],
)
def test_bad_arguments_of_build_are_told_before_the_network_is_loaded(folder, monkeypatch, arguments, code, said):
    monkeypatch.setattr(Backbone, "open", lambda *_, **__: pytest.fail("the network was loaded"))
    given = arguments if "--device" in arguments else [*arguments, "--device", "cpu"]
    done = outfield("guard", "build", "net.safetensors", "-o", "x.guard", *given, cwd=folder, code=code)
    assert said in done.said
    assert "--data" not in done.said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["noise.png", "--on-error", "maybe"], 2, "'maybe'"),
        (["noise.png", "--device", "abacus"], 2, "abacus"),
        (["noise.png", "none.png", "--on-error", "fail"], 3, "none.png"),
    ],
)
def test_bad_arguments_of_check_are_told_before_the_guard_is_loaded(folder, monkeypatch, arguments, code, said):
    monkeypatch.setattr(of.Guard, "load", lambda *_, **__: pytest.fail("the guard was loaded"))
    done = outfield("guard", "check", "my.guard", *arguments, cwd=folder, code=code)
    assert said in done.said
