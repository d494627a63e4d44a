"""Guards over folders, lists and tables by this process: the rows of ``guard check``, parts, resuming, and what is refused."""

import importlib.util
import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from tests.helpers.cluster import rows_of, write_guard
from tests.helpers.guards import NAMES, labelled, noise, write_folder
from tests.helpers.program import outfield

import outfield as of
from outfield.errors import FileFormatError, InputError, StorageError
from outfield.scale import score_files as score
from outfield.scale.scorer import Scorer
from outfield.scale.storage import Place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    write_guard(folder)
    write_folder(folder / "photos", labelled(20, 3))
    Image.fromarray(noise(1)[0]).save(folder / "photos" / "down" / "noise.png")
    (folder / "photos" / "left" / "broken.png").write_bytes(b"no picture")
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def photos(out):
    return score("my.guard", "photos", str(out), part_rows=5)


def plain(verdicts):
    """Verdicts as rows of results."""
    columns = verdicts.table()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def encoded(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_a_folder_gives_the_rows_of_a_check(here, tmp_path):
    done = score("my.guard", "photos", str(tmp_path / "out"), device="cpu")
    guard = of.Guard.load("my.guard", device="cpu")
    expected = plain(guard("photos", on_error="skip"))
    assert rows_of(tmp_path / "out") == expected
    assert done == (22, sum(bool(row["is_ood"]) for row in expected), 1, 1, 1)
    assert done.ood >= 1
    broken = next(row for row in expected if row["error"])
    assert broken["file"] == "photos/left/broken.png"
    assert broken["score"] is None


def test_parts_are_scored_each_for_itself(here, tmp_path):
    done = score("my.guard", "photos", str(tmp_path / "out"), part_rows=5, device="cpu")
    assert (done.rows, done.parts, done.made) == (22, 5, 5)
    names = sorted(os.listdir(tmp_path / "out"))
    assert names == ["_manifest.json", "_summary.json", *(f"part-{i:07d}.parquet" for i in range(5))]
    guard = of.Guard.load("my.guard", device="cpu")
    files = [row["file"] for row in plain(guard("photos", on_error="skip"))]
    found = rows_of(tmp_path / "out")
    assert [row["file"] for row in found] == files
    for start in range(0, 22, 5):
        assert found[start : start + 5] == plain(guard(files[start : start + 5], on_error="skip"))
    assert json.loads((tmp_path / "out" / "_summary.json").read_text())["rows"] == 22


def test_a_part_without_a_readable_image_has_the_same_columns(here, tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(2):
        (tmp_path / "photos" / f"{i}.png").write_bytes(b"")
    Image.fromarray(noise(1)[0]).save(tmp_path / "photos" / "z.png")
    assert score("my.guard", str(tmp_path / "photos"), str(tmp_path / "out"), part_rows=2).failed == 2
    schemas = [parquet.read_schema(tmp_path / "out" / f"part-000000{i}.parquet") for i in range(2)]
    assert schemas[0] == schemas[1]
    assert "p_value SSD" in schemas[0].names


def test_only_missing_parts_are_done_again(here, tmp_path, monkeypatch):
    out = tmp_path / "out"
    photos(out)
    before = rows_of(out)
    (out / "part-0000003.parquet").unlink()
    stamps = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    made = []
    real = Scorer.verdicts
    monkeypatch.setattr(Scorer, "verdicts", lambda self, part: made.append(part.number) or real(self, part))
    assert photos(out).made == 1
    assert made == [3]
    assert rows_of(out) == before
    assert all((out / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    assert photos(out).made == 0


def test_an_error_keeps_what_is_done(here, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileFormatError, match=r"photos/left/broken.png is truncated"):
        score("my.guard", "photos", str(out), part_rows=4, on_error="fail")
    parts = len([*out.glob("part-*")])
    assert 0 < parts < 6
    with pytest.raises(InputError, match="--on-error fail"):
        score("my.guard", "photos", str(out), part_rows=4)


@pytest.mark.parametrize(("changed", "said"), [
    ({"part_rows": 6}, "another number of parts"),
    ({"part_rows": 5, "threads": 2}, "1 threads a worker"),
    ({"part_rows": 5, "source": "photos/down"}, "another source"),
    ({"part_rows": 5, "guard": "other.guard"}, "another guard"),
])  # fmt: skip
def test_results_of_something_else_are_refused(here, tmp_path, changed, said):
    given = {"guard": "my.guard", "source": "photos", "part_rows": 5}
    if not os.path.exists("other.guard"):
        write_guard(here, "other.guard", "MSP")
    score(out=str(tmp_path / "out"), **given)
    with pytest.raises(InputError, match=said):
        score(out=str(tmp_path / "out"), **{**given, **changed})


def test_links_are_followed_but_not_round_in_circles(here, tmp_path):
    photos = write_folder(tmp_path / "photos", labelled(4, 3))
    (photos / "again").symlink_to(photos)
    (photos / NAMES[0] / "link.png").symlink_to(photos / NAMES[1] / "0001.png")
    (photos / NAMES[0] / "gone.png").symlink_to(photos / "nowhere.png")
    (photos / NAMES[0] / ".hidden.png").write_bytes(b"")
    rows = rows_of_folder(here, tmp_path / "out", str(photos))
    names = [row["file"].removeprefix(f"{photos}/") for row in rows]
    files = ["0000.png", "gone.png", "link.png"]
    assert names == [*(f"across/{name}" for name in files), "down/0001.png", "left/0002.png", "right/0003.png"]
    assert rows[1]["error"] is not None
    assert rows[2]["score"] == pytest.approx(rows[3]["score"])


def test_a_changed_file_is_another_source(here, tmp_path):
    photos = write_folder(tmp_path / "photos", labelled(4, 3))
    score("my.guard", str(photos), str(tmp_path / "out"))
    Image.fromarray(noise(1)[0]).save(photos / NAMES[0] / "0000.png")
    with pytest.raises(InputError, match="files of it that were changed"):
        score("my.guard", str(photos), str(tmp_path / "out"))


def without_digests(out):
    """The manifest as version 0.1.0 wrote it."""
    manifest = json.loads((out / "_manifest.json").read_text())
    assert sorted(manifest.pop("sha256")) == sorted(path.name for path in out.glob("part-*"))
    (out / "_manifest.json").write_text(json.dumps({**manifest, "version": 1}))


def test_results_of_0_1_0_are_gone_on_with_in_its_columns(here, tmp_path):
    out = tmp_path / "out"
    photos(out)
    assert "triggered_by" in parquet.read_schema(out / "part-0000000.parquet").names
    without_digests(out)
    for part in out.glob("part-*"):
        part.unlink()
    assert photos(out).made == 5
    names = parquet.read_schema(out / "part-0000000.parquet").names
    assert "rang" in names
    assert "triggered_by" not in names


def test_a_changed_byte_is_found_wherever_it_is(here, tmp_path):
    """Of every part, one byte in turn: the first, the last and some between; at the end of a run, and when it is gone on with."""
    out = tmp_path / "out"
    line = ["score", "my.guard", "photos", "--out", out, "--part-rows", 2, "--device", "cpu"]
    assert outfield(*line).returncode == 0
    parts = sorted(out.glob("part-*"))
    assert len(parts) == 11
    for number, part in enumerate(parts):
        whole = part.read_bytes()
        index = round(number / 10 * (len(whole) - 1))
        part.write_bytes(whole[:index] + bytes([whole[index] ^ 4]) + whole[index + 1 :])
        done = outfield(*line)
        assert done.returncode == 3, part.name
        assert f"{part.name} is damaged: it is not the file that was written, by its SHA-256; remove it" in done.said
        part.write_bytes(whole)
    assert outfield(*line).returncode == 0


def test_a_part_that_is_damaged_in_the_midst_is_found_at_the_end(here, tmp_path, monkeypatch):
    out, write = tmp_path / "out", Scorer.write

    def damaging(self, part):
        if part.number == 3:
            first = (out / "part-0000000.parquet").read_bytes()
            (out / "part-0000000.parquet").write_bytes(first[:400] + b"!" + first[401:])
        return write(self, part)

    monkeypatch.setattr(Scorer, "write", damaging)
    with pytest.raises(FileFormatError, match=r"part-0000000.parquet is damaged.*; remove it and run again"):
        photos(out)
    (out / "part-0000000.parquet").unlink()
    assert photos(out).made == 1


def test_rows_that_were_changed_are_found_without_digests(here, tmp_path):
    out = tmp_path / "out"
    photos(out)
    without_digests(out)
    table = parquet.read_table(out / "part-0000001.parquet")
    for wrong in (table.slice(1), pyarrow.concat_tables([table, table.slice(0, 1)]), table.take([1, 0, 2, 3, 4])):
        parquet.write_table(wrong, out / "part-0000001.parquet")
        with pytest.raises(FileFormatError, match=r"part-0000001.parquet has \d rows that are not the 5 of its part"):
            photos(out)
    (out / "part-0000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match=r"part-0000001.parquet cannot be read as Parquet.*; remove it and run"):
        photos(out)
    os.truncate(out / "part-0000003.parquet", 1000)
    with pytest.raises(FileFormatError, match=r"2 such files: remove part-0000001.parquet, part-0000003.parquet and"):
        photos(out)
    (out / "part-0000099.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"part-0000099.parquet, which is none of its 5 parts"):
        photos(out)
    (out / "_manifest.json").write_text("{}")
    with pytest.raises(FileFormatError, match="no manifest"):
        photos(out)


def test_two_that_begin_at_the_same_moment_do_not_mix(here, tmp_path, monkeypatch):
    """Both find an empty folder; the guard of one of them is refused, whether the folder is of this machine or not."""
    write_guard(here, "other.guard", "MSP")
    for out in (str(tmp_path / "out"), "memory://moment/out"):
        both, make = threading.Barrier(2), Place.make_folder
        monkeypatch.setattr(Place, "make_folder", lambda self, both=both, make=make: (both.wait(60), make(self)))

        def told(guard, out=out):
            try:
                return score(guard, "photos", out, part_rows=11, device="cpu")
            except InputError as error:
                return str(error)

        with ThreadPoolExecutor(2) as pool:
            said = [*pool.map(told, ("my.guard", "other.guard"))]
        monkeypatch.setattr(Place, "make_folder", make)
        (refused,) = (one for one in said if isinstance(one, str))
        assert "holds results of another guard" in refused


def test_two_of_the_same_share_a_folder(here, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(score, "my.guard", "photos", str(tmp_path / "out"), part_rows=2) for _ in range(2)]
        done = [job.result() for job in jobs]
    assert [one.rows for one in done] == [22, 22]
    alone = rows_of_folder(here, tmp_path / "alone", "photos")
    assert [row["file"] for row in rows_of(tmp_path / "out")] == [row["file"] for row in alone]
    assert len(os.listdir(tmp_path / "out")) == 11 + 2


def test_a_part_of_other_results_is_found(here, tmp_path):
    """An object store that cannot create files only where none are may let two begin; the marks of parts tell."""
    score("my.guard", "photos", str(tmp_path / "out"), part_rows=11)
    score("my.guard", "photos", str(tmp_path / "other"), part_rows=11, on_error="skip", threads=2)
    part = tmp_path / "out" / "part-0000001.parquet"
    (tmp_path / "other" / "part-0000001.parquet").replace(part)
    without_digests(tmp_path / "out")
    with pytest.raises(FileFormatError, match=r"part-0000001.parquet holds results of another guard, source or sett"):
        score("my.guard", "photos", str(tmp_path / "out"), part_rows=11)


def test_a_file_system_that_only_writes_over(here, monkeypatch):
    memory = type(fsspec.filesystem("memory"))
    real = memory.pipe_file
    monkeypatch.setattr(memory, "pipe_file", lambda self, path, content: real(self, path, content))  # without mode
    assert score("my.guard", "photos", "memory://over/out", part_rows=22).rows == 22


def test_what_a_killed_writer_left_is_no_foreign_file(here, tmp_path):
    (tmp_path / ".outfield-0123456789ab-0123456789abcdef.tmp").write_bytes(b"half")
    assert score("my.guard", "photos/down", str(tmp_path)).rows == 6
    with pytest.raises(InputError, match="is a file; results are a folder"):
        score("my.guard", "photos", str(here / "my.guard"))


@pytest.mark.parametrize("event", ["gone", "cut", "swapped"])
def test_a_parquet_file_that_changes_in_the_midst(here, tmp_path, monkeypatch, event):
    width = of.Guard.load("my.guard", device="cpu").widths["features"]
    for name, value in (("f", 1.0), ("g", 2.0)):
        table = pyarrow.table({"features": np.full((9, width), value).tolist()})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    path, real = tmp_path / "f.parquet", Scorer.verdicts
    swap = tmp_path / "g.parquet"
    change, kind, message = {
        "gone": (path.unlink, StorageError, "cannot read f.parquet: there is no such file"),
        "cut": (lambda: os.truncate(path, 900), FileFormatError, "^f.parquet cannot be read as Parquet"),
        "swapped": (lambda: os.replace(swap, path), FileFormatError, "^f.parquet was changed while it was scored"),
    }[event]
    monkeypatch.setattr(Scorer, "verdicts", lambda self, part: (part.number == 1 and change(), real(self, part))[1])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        score(here / "my.guard", "f.parquet", "out", part_rows=4)
    assert sorted(os.listdir("out")) == ["_manifest.json", "part-0000000.parquet"]


def test_parquet_that_is_not_of_the_guard(here, tmp_path, monkeypatch):
    """Files are named as the user wrote them; columns are looked at before anything is written."""
    monkeypatch.chdir(tmp_path)
    width = of.Guard.load(here / "my.guard", device="cpu").widths["features"]
    rows = np.ones((3, width)).tolist()
    for columns, said in (
        ({"features": rows, "split": [1, 2, 3]}, r"^t/a.parquet: a.parquet has a column 'split'; expected feature_0"),
        ({"split": [1, 2, 3]}, r"^t/a.parquet: a.parquet has a column 'split'"),
        ({"label": [1, 2, 3]}, r"^t/a.parquet: a.parquet has no columns feature_0"),
        ({"feature_0": [1.0], "feature_2": [1.0]}, r"^t/a.parquet: a.parquet: the columns of features must be numb"),
    ):
        os.makedirs("t", exist_ok=True)
        parquet.write_table(pyarrow.table(columns), "t/a.parquet")
        with pytest.raises(FileFormatError, match=said):
            score(here / "my.guard", "t/a.parquet", "out")
        assert not os.path.exists("out")
    empty = [*rows[:2], None], "column 'features' has 1 empty cell;"
    narrow = [row[:5] for row in rows], rf"features has 5 columns; this guard's network gives {width}"
    for number, (cells, said) in enumerate((empty, narrow)):
        parquet.write_table(pyarrow.table({"features": cells}), "t/a.parquet")
        for source in ("t/a.parquet", f"file://{tmp_path}/t/a.parquet"):
            with pytest.raises(InputError, match=rf"^{source}, rows 0 to 3: .*{said}"):
                score(here / "my.guard", source, f"out{number}{source[:1]}")


def test_ctrl_c_says_how_to_go_on(here, tmp_path, monkeypatch):
    def interrupt(self, part):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "verdicts", interrupt)
        done = outfield("score", "my.guard", "photos", "--out", tmp_path / "out", "--device", "cpu")
    assert done.returncode == 130
    assert f"the same command goes on from {tmp_path}/out" in done.said
    assert outfield("score", "my.guard", "photos", "--out", tmp_path / "out", "--device", "cpu").returncode == 0


def test_a_folder_that_cannot_be_written(here, tmp_path):
    done = outfield("score", "my.guard", "photos", "--out", "/proc/results", code=3)
    assert "cannot make the folder /proc/results" in done.said


def test_without_ray(here, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else real(name, *more))
    done = outfield("score", "my.guard", "photos", "--out", tmp_path / "out", "--engine", "ray", code=2)
    assert "this needs ray, which is not installed: pip install 'outfield[ray]'" in done.said
    assert not (tmp_path / "out").exists()


def test_addresses_are_paths_of_any_file_system(here, tmp_path):
    expected = rows_of_folder(here, tmp_path / "a", "photos")
    found = rows_of_folder(here, tmp_path / "b", f"file://{here}/photos")
    assert [{**row, "file": 0, "error": 0} for row in found] == [{**row, "file": 0, "error": 0} for row in expected]
    assert found[0]["file"] == f"file://{here}/{expected[0]['file']}"
    memory = fsspec.filesystem("memory")
    memory.put("photos", "/bucket/photos", recursive=True)
    score("my.guard", "memory://bucket/photos", "memory://bucket/results", part_rows=50)
    with memory.open("/bucket/results/part-0000000.parquet") as file:
        found = parquet.read_table(file).to_pylist()
    assert [row["score"] for row in found] == [row["score"] for row in expected]
    assert found[0]["file"] == "memory://bucket/photos/across/0000.png"
    assert score("my.guard", "memory://bucket/photos", "memory://bucket/results", part_rows=50).made == 0
    with pytest.raises(InputError, match="cannot be seen by workers"):
        score("my.guard", "memory://bucket/photos", "memory://bucket/more", engine="ray")


def rows_of_folder(here, out, source, **more):
    score("my.guard", source, str(out), part_rows=50, **more)
    return rows_of(out)


def test_a_list_names_images_wherever_they_lie(here, tmp_path):
    (here / "photos.txt").write_text(
        f"photos/down/noise.png\n\n# more\nphotos/none.png\nfile://{here}/photos/down/noise.png\nphotos/down/noise.png\n"
    )
    rows = rows_of_folder(here, tmp_path / "out", "photos.txt")
    assert [row["file"] for row in rows] == [
        "photos/down/noise.png",
        "photos/none.png",
        f"file://{here}/photos/down/noise.png",
        "photos/down/noise.png",
    ]
    assert rows[1]["error"] == "cannot read photos/none.png: there is no such file"
    assert rows[0]["score"] == rows[2]["score"] == rows[3]["score"]
    alone = rows_of_folder(here, tmp_path / "alone", "photos/down/noise.png")
    assert [row["file"] for row in alone] == ["photos/down/noise.png"]


def test_an_address_that_leads_nowhere_is_the_error_of_its_own_row(here, tmp_path):
    (here / "odd.txt").write_text("photos/down/noise.png\nfoo://bucket/a.png\nmemory://none/b.png\nphotos/down\n")
    rows = rows_of_folder(here, tmp_path / "out", "odd.txt")
    assert rows[0]["score"] is not None
    assert "Protocol not known: foo" in rows[1]["error"]
    assert rows[2]["error"] == "cannot read memory://none/b.png: there is no such file"
    assert rows[3]["error"] == "cannot read photos/down: it is a folder"


@pytest.mark.parametrize("memory", [False, True])
def test_names_that_look_like_patterns_and_pipes(here, tmp_path, memory):
    """A pattern would lead to other files, and a pipe would be waited for without end."""
    names = ["a*.png", "a?.png", "ab.png", "[ab].png", "b.png"]
    images = noise(len(names), 5)
    files = fsspec.filesystem("memory")
    source = "memory://odd" if memory else str(tmp_path / "odd")
    (tmp_path / "odd").mkdir()
    for name, image in zip(names, images, strict=True):
        if memory:
            files.pipe_file(f"/odd/{name}", encoded(image))
        else:
            (tmp_path / "odd" / name).write_bytes(encoded(image))
    if not memory:
        os.mkfifo(tmp_path / "odd" / "pipe.png")
    rows = {row["file"].rpartition("/")[2]: row for row in rows_of_folder(here, tmp_path / "out", source)}
    expected = of.Guard.load("my.guard", device="cpu")(images)
    for name, score_of in zip(names, expected.table()["score"], strict=True):
        assert rows[name]["score"] == pytest.approx(float(score_of), rel=1e-4)
    if not memory:
        assert "it is not an ordinary file" in rows["pipe.png"]["error"]


def test_parquet_of_images(here, tmp_path):
    images = noise(7)
    cells = [encoded(image) for image in images]
    guard = of.Guard.load("my.guard", device="cpu")
    expected = [one.score for one in guard([*images])]
    table = pyarrow.table({"image": [*cells[:6], None], "file": [f"n{i}" for i in range(7)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    rows = rows_of_folder(here, tmp_path / "a", str(tmp_path / "a.parquet"))
    assert [row["score"] for row in rows] == pytest.approx([*expected[:6], None])
    assert [row["file"] for row in rows] == [f"n{i}" for i in range(7)]
    assert rows[6]["error"] == "n6 is empty"
    shape = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    as_struct = pyarrow.array([{"bytes": cell, "path": f"p{i}" if i else None} for i, cell in enumerate(cells)], shape)
    (tmp_path / "tables").mkdir()
    parquet.write_table(pyarrow.table({"image": as_struct}), tmp_path / "tables" / "b.parquet", row_group_size=3)
    parquet.write_table(pyarrow.table({"bytes": cells[:2]}), tmp_path / "tables" / "c.parquet")
    score("my.guard", str(tmp_path / "tables"), str(tmp_path / "b"), part_rows=4)
    rows = rows_of(tmp_path / "b")
    assert [row["score"] for row in rows] == pytest.approx([*expected, *expected[:2]])
    b, c = f"{tmp_path}/tables/b.parquet", f"{tmp_path}/tables/c.parquet"
    assert [row["file"] for row in rows] == [f"{b}#0", *(f"p{i}" for i in range(1, 7)), f"{c}#0", f"{c}#1"]
    assert len([*(tmp_path / "b").glob("part-*")]) == 3
    pattern = rows_of_folder(here, tmp_path / "c", f"{tmp_path}/tables/*.parquet")
    assert [row["score"] for row in pattern] == pytest.approx([row["score"] for row in rows])


def test_parquet_of_features(here, tmp_path):
    guard = of.Guard.load("my.guard", device="cpu")
    width = guard.widths["features"]
    features = np.abs(np.random.default_rng(0).normal(size=(9, width))).astype(np.float32)
    columns = {f"feature_{i}": features[:, i] for i in range(width)}
    parquet.write_table(pyarrow.table({**columns, "label": np.zeros(9, int)}), tmp_path / "f.parquet", row_group_size=4)
    score("my.guard", str(tmp_path / "f.parquet"), str(tmp_path / "out"), part_rows=5)
    rows = rows_of(tmp_path / "out")
    expected = [*guard.judge(of.FeatureSet(features[:5])), *guard.judge(of.FeatureSet(features[5:]))]
    assert [row["score"] for row in rows] == [one.score for one in expected]
    assert [row["class_index"] for row in rows] == [one.class_index for one in expected]
    assert rows[8]["file"] == f"{tmp_path}/f.parquet#8"
    columns["feature_0"] = np.full(9, np.nan)
    parquet.write_table(pyarrow.table(columns), tmp_path / "g.parquet")
    with pytest.raises(InputError, match=r"g.parquet, rows 0 to 9: .*"):
        score("my.guard", str(tmp_path / "g.parquet"), str(tmp_path / "nan"))


@pytest.mark.parametrize(("source", "error", "said"), [
    ("none", StorageError, "cannot read none: there is no such file or folder"),
    ("my.guard", InputError, "nothing that can be scored"),
    ("empty", InputError, "there is nothing in empty"),
    ("both", InputError, "holds images, such as"),
    ("nothing-*.parquet", InputError, "there is no Parquet file"),
    ("empty.txt", InputError, "there is no image in the list"),
    ("binary.txt", InputError, "not text"),
    ("norows.parquet", InputError, "have no rows"),
    ("damaged.parquet", FileFormatError, "damaged.parquet cannot be read as Parquet"),
    ("nosuch://bucket", InputError, "no address that fsspec can open"),
    ("", InputError, "address is ''"),
])  # fmt: skip
def test_nothing_to_score(here, tmp_path, source, error, said):
    (here / "empty").mkdir(exist_ok=True)
    (here / "both").mkdir(exist_ok=True)
    Image.fromarray(noise(1)[0]).save("both/a.png")
    parquet.write_table(pyarrow.table({"bytes": pyarrow.array([], pyarrow.binary())}), "both/b.parquet")
    parquet.write_table(pyarrow.table({"bytes": pyarrow.array([], pyarrow.binary())}), "norows.parquet")
    (here / "damaged.parquet").write_bytes(b"PAR1 and nothing")
    (here / "empty.txt").write_text("\n# only words\n")
    (here / "binary.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(error, match=said.replace("*", r"\*")):
        score("my.guard", source, str(tmp_path / "out"))


def test_settings_that_cannot_be(here, tmp_path):
    out = str(tmp_path / "out")
    for wrong, said in (
        ({"engine": "spark"}, "engine is 'spark'"),
        ({"workers": 2}, "workers is 2, but they are for the engine ray"),
        ({"threads": 0}, "threads is 0"),
        ({"part_rows": 0}, "part_rows is 0"),
        ({"on_error": "maybe"}, "on_error is 'maybe'"),
    ):
        with pytest.raises(InputError, match=said):
            score("my.guard", "photos", out, **wrong)
    with pytest.raises(InputError, match="lies in photos, which is scored"):
        score("my.guard", "photos", "photos/results")
    with pytest.raises(InputError, match=r"holds my.guard and no results|holds .* and no results"):
        score("my.guard", "photos", ".")
    assert not os.path.exists(out)


def test_the_command_line(here, tmp_path):
    done = outfield("score", "my.guard", "photos", "--out", tmp_path / "out", "--part-rows", 8, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "22 rows, " in done.said
    assert "in 3 parts, 3 of them made now" in done.said
    assert "1 of 22 rows could not be read" in done.said
    again = outfield("score", "my.guard", "photos", "--out", tmp_path / "out", "--part-rows", 8)
    assert "3 of 3 parts are there already" in again.said
    (tmp_path / "none.txt").write_text("none.png\n")
    assert outfield("score", "my.guard", tmp_path / "none.txt", "--out", tmp_path / "none").returncode == 11
    for arguments, said in (
        (["my.guard", "photos"], "name that with --out"),
        (["my.guard", "photos", "--out", "x", "--threshold", "t.safetensors"], "own threshold"),
        (["ssd.safetensors", "f.npz", "--workers", "2"], "workers are for --engine ray"),
        (["ssd.safetensors", "f.npz", "--engine", "spark"], "--engine is 'spark'; it must be local or ray"),
        (["ssd.safetensors", "f.npz", "--part-rows", "4"], "--part-rows and --engine ray are for guards"),
    ):
        refused = outfield("score", *arguments, code=2)
        assert said in refused.said
