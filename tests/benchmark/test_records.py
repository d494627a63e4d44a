"""What a run hands on: a table of its records, and a line that says what it is."""

from __future__ import annotations

import sys
import types

import pytest
from tests.helpers.records import SMALL, record, small_run

import outfield as of
from outfield.benchmark import BenchmarkRun
from outfield.benchmark.records import COLUMNS


class TestTable:
    def test_one_row_for_each_record(self):
        pandas = pytest.importorskip("pandas")
        run = small_run()
        table = run.table()
        assert isinstance(table, pandas.DataFrame)
        assert list(table.columns) == list(COLUMNS)
        assert len(table) == len(run.records)
        for row, found in zip(table.to_dict("records"), run.records, strict=True):
            assert {name: row[name] for name in COLUMNS if name != "seed"} == {
                name: getattr(found, name) for name in COLUMNS if name != "seed"
            }
        assert table["seed"].dtype == "Int64"
        assert table["seed"].isna().tolist() == [one.seed is None for one in run.records]
        assert table[table["detector"] == "EnergyCorrected"]["seed"].tolist() == [0, 1] * 8
        by_hand = [one.fpr95 for one in run.records if (one.detector, one.level) == ("KNN", "near")]
        means = table.groupby(["detector", "level"])["fpr95"].mean()
        assert means["KNN", "near"] == pytest.approx(sum(by_hand) / len(by_hand))

    def test_what_pandas_is_given(self, monkeypatch):
        """Where pandas is not installed, too: its two names stand for themselves here."""
        fake = types.ModuleType("pandas")
        fake.DataFrame = dict
        fake.array = lambda values, dtype: (dtype, values)
        monkeypatch.setitem(sys.modules, "pandas", fake)
        found = [record(SMALL, "KNN", "a", 0.5, 0.75), record(SMALL, "EBM", "d", 0.25, 0.875, "other", seed=3)]
        assert BenchmarkRun(SMALL, found).table() == {
            "backbone": ["net", "other"],
            "detector": ["KNN", "EBM"],
            "seed": ("Int64", [None, 3]),
            "ood": ["a", "d"],
            "level": ["near", "far"],
            "fpr95": [0.5, 0.25],
            "auroc": [0.75, 0.875],
            "aupr_in": [0.5, 0.5],
            "aupr_out": [0.5, 0.5],
            "n_id": [100, 100],
            "n_ood": [50, 50],
        }
        assert [*BenchmarkRun(SMALL).table()] == list(COLUMNS)

    def test_without_pandas_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(of.MissingExtraError, match=r"needs pandas.*pip install 'outfield\[tables\]'"):
            small_run().table()


class TestRepr:
    def test_it_is_one_short_line(self):
        assert repr(small_run()) == "BenchmarkRun(shapes: 2 detectors × 4 OOD sets × 2 backbones, 24 records)"
        one = BenchmarkRun(SMALL, [record(SMALL, "KNN", "a", 0.5, 0.5)])
        assert repr(one) == "BenchmarkRun(shapes: 1 detector × 1 OOD set × 1 backbone, 1 record)"
        many = BenchmarkRun(SMALL, one.records * 1234)
        assert repr(many).endswith("1 backbone, 1,234 records)")

    def test_of_an_empty_run(self):
        assert repr(BenchmarkRun(SMALL)) == "BenchmarkRun(shapes: 0 detectors × 0 OOD sets × 0 backbones, 0 records)"
