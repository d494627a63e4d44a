"""The pyod detector, against pyod's own base class and its ways."""

import numpy as np
import pytest
from pyod.models.base import BaseDetector
from sklearn.base import clone

import outfield as of
from outfield.adapters.pyod import OutfieldDetector

RNG = np.random.default_rng(0)
ROWS, NEW = RNG.standard_normal((200, 4)), RNG.standard_normal((30, 4)) * 3


def test_scores_are_ours():
    model = OutfieldDetector(of.KNN(k=5), contamination=0.1).fit(ROWS)
    table = of.TablePreprocessing.fit(ROWS)
    ours = of.KNN(k=5).fit(table(ROWS))
    assert isinstance(model, BaseDetector)
    assert np.array_equal(model.decision_function(NEW), ours.score(table(NEW)).numpy().astype(float))
    assert np.array_equal(model.decision_scores_, ours.score(table(ROWS)).numpy().astype(float))


def test_what_pyod_makes_of_them():
    model = OutfieldDetector().fit(ROWS)
    assert model.contamination == 0.1
    assert model.threshold_ == np.percentile(model.decision_scores_, 90)
    assert model.labels_.sum() == 20
    scores = model.decision_function(NEW)
    assert np.array_equal(model.predict(NEW), (scores > model.threshold_).astype(int))
    assert model.predict_proba(NEW).shape == (30, 2)
    assert model.predict_confidence(NEW).shape == (30,)
    assert clone(model).get_params()["contamination"] == 0.1


def test_bad_input():
    for rows in ([[np.nan, 0.0]] * 3, np.zeros((3, 2, 2))):
        with pytest.raises(ValueError, match=r"NaN|dim"):
            OutfieldDetector().fit(rows)
    with pytest.raises(of.InputError, match="columns"):
        OutfieldDetector().fit(ROWS).decision_function(NEW[:, :2])
    with pytest.raises(ValueError, match="not fitted"):
        OutfieldDetector().decision_function(NEW)
    with pytest.raises(ValueError, match="contamination"):
        OutfieldDetector(contamination=0.7)
    with pytest.raises(of.InputError, match="needs logits"):
        OutfieldDetector("MSP").fit(ROWS)
