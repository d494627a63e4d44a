"""Evaluation of detectors on data sets."""

from __future__ import annotations

import pytest
import torch

import outfield as of


@pytest.fixture
def sets():
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    train = of.FeatureSet(torch.rand(60, 5) + 4 * torch.eye(5)[labels], labels=labels)
    return train, train, {"other": of.FeatureSet(torch.rand(30, 5))}


def test_one_detector_goes_by_its_class(sets):
    train, test, ood = sets
    detector = of.SSD().fit(train)
    alone, named = of.evaluate(detector, test, ood), of.evaluate({"SSD": detector}, test, ood)
    assert alone == named
    assert [(result.detector, result.ood, result.n_id, result.n_ood) for result in alone] == [("SSD", "other", 60, 30)]
    assert alone[0].auroc == of.auroc(detector.score(test), detector.score(ood["other"]))


def test_what_is_no_mapping_is_refused_with_what_would_be_right(sets):
    train, test, ood = sets
    detector = of.SSD().fit(train)
    with pytest.raises(of.InputError, match="ood is 'FeatureSet'; it must be a mapping by name"):
        of.evaluate(detector, test, ood["other"])
    with pytest.raises(of.InputError, match="detectors is 'list'"):
        of.evaluate([detector], test, ood)
