"""OpenOOD's figures as data: near and far AUROC of detectors that we have."""

from __future__ import annotations

import pytest

import outfield as of
from outfield.benchmark.openood import ROWS


@pytest.mark.parametrize("protocol", ROWS)
def test_every_row_is_of_a_detector_and_has_both_levels(protocol):
    assert protocol in of.PROTOCOLS
    for name, cells in ROWS[protocol].items():
        assert name in of.DETECTORS
        assert list(cells) == ["near", "far"]
        assert all(cell.fpr95 is None and 50 < cell.auroc < 100 for cell in cells.values())


def test_rows_as_they_were_published():
    assert {level: cell.auroc for level, cell in ROWS["openood-cifar10"]["KNN"].items()} == {"near": 90.6, "far": 93.0}
    assert {level: cell.auroc for level, cell in ROWS["openood-cifar100"]["GEN"].items()} == {"near": 81.3, "far": 79.7}
    assert (len(ROWS["openood-cifar10"]), len(ROWS["openood-cifar100"])) == (18, 15)
