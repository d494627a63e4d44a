"""Where the numbers come from, as the page tells it."""

from __future__ import annotations

import pytest
from tests.helpers.benchmark_samples import PROTOCOL, make_run
from tests.helpers.html_tree import parse

from outfield.benchmark import BenchmarkRun
from outfield.report.page import page
from outfield.report.page.grids import provenance_tables


def test_provenance_is_readable():
    run = BenchmarkRun(PROTOCOL, provenance=make_run(n=5).provenance)
    tree = parse(page(run))
    section = tree.one("section", id="provenance")
    for words in ("uncommitted changes", "50,000", "90.0 %", "inner: MLP, rate 1e-05", "k 50"):
        assert words in section.text
    assert 64 * "b" in {node.text for node in section.all("code")}
    assert "commit 0123456789ab, 2025-01-02 03:04:05 UTC" in tree.one("footer").text


@pytest.mark.parametrize(
    ("dirty", "row", "footer"),
    [
        (False, "no", "commit 0123456789ab."),
        (True, "yes", "commit 0123456789ab with changes."),
        (None, "unknown", "commit 0123456789ab, changes unknown."),
    ],
)
def test_whether_the_code_was_changed_is_said_or_said_to_be_unknown(dirty, row, footer):
    about = {"commit": "0123456789abcdef", "dirty": dirty}
    (table,) = provenance_tables(about)
    assert table.rows[1] == ["uncommitted changes", row]
    assert parse(page(BenchmarkRun(PROTOCOL, provenance=about))).one("footer").text.endswith(footer)


def test_provenance_tables_take_whatever_comes():
    about = {
        "a_b": 1.5,
        "none": None,
        "empty": {},
        "list": [1, 2],
        "records": [{"x": True}, {"y": "z"}, 3],
        "deep": {"p": {"q": {"r": 1}}},
    }
    tables = {table.title: table for table in provenance_tables(about)}
    assert tables["This run"].rows == [["a b", "1.5"], ["none", "–"], ["list", "1, 2"]]
    assert tables["Records"].rows == [["yes", "–", "–"], ["–", "z", "–"], ["–", "–", "3"]]
    assert tables["Deep: p"].rows == [["q", "1"]]
    assert provenance_tables({}) == []


def test_a_trained_backbone_is_told_of_in_rows():
    recipe = {"type": "Recipe", "epochs": 200, "augmentation": {"type": "Crops", "flip": 0.5}}
    notes = {"recipe": recipe, "images": {"name": "cifar10", "n": 50_000}, "curve": {"loss": [0.125] * 200}, "seed": 3}
    about = {"net": {"sha256": "f" * 64, "classifier": {"classes": 10}, "notes": notes, "accuracy": 0.95}}
    (table,) = provenance_tables({"backbones": about})
    assert table.rows == [
        ["SHA-256", "f" * 64],
        ["classifier", "classes 10"],
        ["accuracy", "95.0 %"],
        ["recipe", "epochs 200\naugmentation: Crops, flip 0.5"],
        ["images", "name cifar10, n 50,000"],
        ["seed", "3"],
    ]


def test_time_is_summed_by_stage():
    stages = [{"what": "fit", "detector": "EBM", "seconds": 1.5}, {"what": "fit", "detector": "EBM", "seconds": None}]
    (table,) = provenance_tables({"stages": stages})
    assert table.rows == [["fit", "EBM", "2", "1.5"], ["all", "–", "2", "1.5"]]
