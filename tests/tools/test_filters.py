"""The table and the picture of benchmarks/filters.py, from results that were made up."""

from __future__ import annotations

import pytest
from benchmarks.filters_table import by_change, draw, heading, markdown, merged, signed, table

SETS = {"tinyimagenet": 800, "lsun": 500}


def result(protocol="cifar10", name="one", shift=0.0, **detectors):
    """Detector → FPR95 as ((first, second) on TinyImageNet, (first, second) on LSUN); AUROC is 1 less half of it."""
    made = {
        detector: {
            filter_name: {
                key: {"fpr95": pairs[i][place] + shift, "auroc": 1 - (pairs[i][place] + shift) / 2}
                for i, key in enumerate(SETS)
            }
            for place, filter_name in enumerate(("bilinear", "bicubic"))
        }
        for detector, pairs in detectors.items()
    }
    return {"protocol": protocol, "filters": ["bilinear", "bicubic"], "sets": SETS, "backbones": {name: made}}


STEADY = {"MSP": ((0.5, 0.5), (0.4, 0.4)), "KNN": ((0.2, 0.3), (0.3, 0.2)), "SSD": ((0.6, 0.75), (0.5, 0.6))}


def test_rows_are_sorted_by_how_far_the_filter_moves_them_in_either_direction():
    rows = table(result(**STEADY))
    assert [row["detector"] for row in rows] == ["SSD", "KNN", "MSP"]
    assert [row["moved"] for row in rows] == pytest.approx([0.125, 0.1, 0])
    assert rows[0]["sets"]["tinyimagenet"]["fpr95"] == pytest.approx([0.6, 0.75, -0.15])
    assert rows[0]["sets"]["lsun"]["auroc"] == pytest.approx([0.75, 0.7, 0.05])
    assert rows[0]["mean"]["fpr95"] == pytest.approx([0.55, 0.675, -0.125])
    assert rows[1]["mean"]["fpr95"] == pytest.approx([0.25, 0.25, 0])


def test_backbones_are_averaged_and_detectors_that_one_of_them_lacks_are_left_out():
    first = result(name="one", **STEADY)
    second = result(name="two", shift=0.1, **{name: STEADY[name] for name in ("SSD", "KNN")})
    other = result(protocol="cifar100", **STEADY)
    found = merged([first, other, second])
    assert [one["protocol"] for one in found] == ["cifar10", "cifar100"]
    assert list(found[0]["backbones"]) == ["one", "two"]
    rows = table(found[0])
    assert [row["detector"] for row in rows] == ["SSD", "KNN"]
    assert rows[0]["mean"]["fpr95"] == pytest.approx([0.6, 0.725, -0.125])
    assert [heading(one) for one in found] == ["CIFAR-10, mean of 2 backbones", "CIFAR-100, one backbone"]
    assert list(first["backbones"]) == ["one"]  # what was given is as it was


def test_results_that_do_not_belong_together_are_refused():
    with pytest.raises(SystemExit, match="have the backbone one"):
        merged([result(**STEADY), result(**STEADY)])
    for what, value in (("filters", ["bilinear", "box"]), ("sets", {"lsun": 3})):
        with pytest.raises(SystemExit, match=f"differ in their {what}"):
            merged([result(**STEADY), result(name="two", **STEADY) | {what: value}])


def test_the_table_as_markdown():
    lines = markdown(result(**STEADY)).splitlines()
    assert lines[0] == "**CIFAR-10, one backbone: FPR95, bicubic → bilinear**"
    assert lines[2] == "|  | TinyImageNet | LSUN | mean | change |"
    assert lines[4] == "| SSD | 75.0 → 60.0 | 60.0 → 50.0 | 67.5 → 55.0 | −12.5 |"
    assert lines[-1] == "| MSP | 75.0 → 75.0 | 80.0 → 80.0 | 77.5 → 77.5 | 0.0 |"
    values = [signed(value) for value in (0.0004, -0.0004, 0.0006, -0.0006, 0.25)]
    assert values == ["0.0", "0.0", "+0.1", "−0.1", "+25.0"]


def test_the_picture_has_a_panel_for_each_id_set_and_a_row_for_each_detector():
    rising = STEADY | {"KNN": ((0.2, 0.3), (0.3, 0.15))}
    both = [result(**rising), result(protocol="cifar100", SSD=STEADY["SSD"], GEN=((0.9, 0.5), (0.9, 0.5)))]
    tables = [{row["detector"]: row for row in table(one)} for one in both]
    assert by_change(tables) == ["SSD", "MSP", "KNN", "GEN"]
    figure = draw(both)
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-10, one backbone", "CIFAR-100, one backbone"]
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["SSD", "MSP", "KNN", "GEN"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["−12.5", "+40.0"]
