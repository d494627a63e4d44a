"""Records to means and spreads, against closed forms."""

from __future__ import annotations

import math

import pytest
from tests.helpers.records import SMALL, record

from outfield.benchmark import Spread, level_columns, published, set_columns, summarise


class TestSummary:
    def two_backbones(self):
        """Near sets differ by ±0.1 around x_bs; x_1s = 0.2, 0.4 and x_2s = 0.5, 0.5, 0.8."""
        found = []
        for backbone, values in {"one": [0.2, 0.4], "two": [0.5, 0.5, 0.8]}.items():
            for seed, x in enumerate(values):
                for ood, shift in {"a": 0.1, "b": -0.1, "c": 0.0, "d": 0.0}.items():
                    found.append(record(SMALL, "EBM", ood, x + shift, 1 - x - shift, backbone, seed))
        return found

    def test_closed_forms(self):
        found = self.two_backbones()
        cell = summarise(found, level_columns(found, SMALL))["EBM"]["near"]
        # σ₁² = 0.02 over the seeds of one, σ₂² = 0.03 over those of two; means 0.3 and 0.6.
        assert cell.fpr95.mean == pytest.approx(0.45)
        assert cell.fpr95.over_seeds == pytest.approx(math.sqrt((0.02 + 0.03) / 2))
        assert cell.fpr95.over_backbones == pytest.approx(0.3 / math.sqrt(2))
        assert cell.auroc.mean == pytest.approx(0.55)
        assert cell.auroc.over_seeds == pytest.approx(cell.fpr95.over_seeds)

    def test_the_average_is_over_sets_and_not_over_levels(self):
        found = [record(SMALL, "SSD", ood, x, 1 - x) for ood, x in {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.8}.items()]
        cells = summarise(found, level_columns(found, SMALL))["SSD"]
        assert {column: round(cell.fpr95.mean, 9) for column, cell in cells.items()} == {
            "near": 0.15, "mid": 0.3, "far": 0.8, "average": 0.35,
        }  # fmt: skip
        assert cells["near"].fpr95 == Spread(pytest.approx(0.15), None, None)
        assert list(summarise(found, set_columns(found, SMALL))["SSD"]) == ["a", "b", "c", "d", "average"]

    def test_one_seed_or_one_backbone_has_no_spread(self):
        found = self.two_backbones()
        only = [r for r in found if r.backbone == "one"]
        spread = summarise(only, level_columns(only, SMALL))["EBM"]["far"].fpr95
        assert (spread.over_seeds, spread.over_backbones) == (pytest.approx(math.sqrt(0.02)), None)
        first = [r for r in found if r.seed == 0]
        spread = summarise(first, level_columns(first, SMALL))["EBM"]["far"].fpr95
        assert (spread.over_seeds, spread.over_backbones) == (None, pytest.approx(0.3 / math.sqrt(2)))

    def test_missing_sets_are_left_out_of_means(self):
        found = [r for r in self.two_backbones() if r.ood not in ("a", "d")]
        columns = level_columns(found, SMALL)
        assert columns == {"near": ("b",), "mid": ("c",), "average": ("b", "c")}
        assert summarise(found, columns)["EBM"]["average"].fpr95.mean == pytest.approx(0.45 - 0.05)

    def test_three_backbones_are_averaged_not_ranked(self):
        """Three uneven values tell a mean from a median, over backbones and of variances."""
        seeds = {"one": [0.1, 0.1], "two": [0.2, 0.4], "three": [0.2, 1.0]}
        found = [
            record(SMALL, "EBM", ood, x, 1 - x, backbone, seed)
            for backbone, values in seeds.items()
            for seed, x in enumerate(values)
            for ood in SMALL.ood
        ]
        spread = summarise(found, level_columns(found, SMALL))["EBM"]["average"].fpr95
        assert spread.mean == pytest.approx((0.1 + 0.3 + 0.6) / 3)
        assert spread.over_seeds == pytest.approx(math.sqrt((0.0 + 0.02 + 0.32) / 3))
        assert spread.over_backbones == pytest.approx(math.sqrt((0.23333333**2 + 0.0333333**2 + 0.26666667**2) / 2))

    def test_a_published_figure_is_over_the_same_sets(self):
        cells = {"near": (50.0, 80.0), "a": (40.0, 90.0), "b": (50.0, 70.0), "d": (10.0, 95.0)}

        def found(column, *sets):
            return published({"KNN": cells}, {column: sets}, SMALL)["KNN"].get(column)

        assert found("near", "a", "b") == (50.0, 80.0)  # as printed, whatever its parts' mean is
        assert found("near", "b") == (50.0, 70.0)
        assert found("average", "a", "b", "d") == (pytest.approx(100 / 3), pytest.approx(85.0))
        assert found("average", "a", "c") is None
