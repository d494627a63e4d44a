"""The scikit-learn estimator: its own checks, and what it is beside the detector in it."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import outfield as of
from outfield.adapters.pyod import OutfieldDetector as PyODDetector
from outfield.adapters.sklearn import OutfieldDetector

RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.standard_normal((60, 5)) + 5 * np.eye(5)[c] for c in range(3)])
CLASSES = np.repeat(["cat", "dog", "owl"], 60)
NEW = np.concatenate([RNG.standard_normal((20, 5)) + 5 * np.eye(5)[0], RNG.standard_normal((20, 5)) - 9])


ROUNDED = {"check_methods_subset_invariance": "scores are float32, which some CPUs round otherwise in other batches"}
"""What is asked for up to a relative 1e-7; a test of our own asks for 1e-5."""


@parametrize_with_checks(
    [OutfieldDetector(), OutfieldDetector(of.KNN(k=5)), OutfieldDetector("PCA")],
    expected_failed_checks=lambda _: ROUNDED,
)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("detector", ["SSD", of.KNN(k=5), "PCA"])
def test_a_row_scores_alone_as_among_others(detector):
    model = OutfieldDetector(detector).fit(ROWS, CLASSES)
    alone = np.concatenate([model.decision_function(row[None]) for row in NEW])
    np.testing.assert_allclose(alone, model.decision_function(NEW), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network_features", [False, True])
def test_scores_are_ours_with_the_other_sign(network_features):
    ids = np.unique(CLASSES, return_inverse=True)[1]
    for y, labels in ((CLASSES, ids), (None, np.zeros(180, int)), (np.where(ids, 1, -1), np.zeros(180, int))):
        model = OutfieldDetector("SSD", network_features=network_features).fit(ROWS, y)
        assert (model.preprocessing_ is None) == network_features
        features = of.FeatureSet if network_features else of.TablePreprocessing.fit(ROWS)
        ours = of.SSD().fit(of.FeatureSet(features(ROWS).features, labels=labels, about=features(ROWS).about))
        expected = -ours.score(features(NEW)).numpy().astype(np.float64)
        assert np.array_equal(model.score_samples(NEW), expected)
        assert np.array_equal(model.decision_function(NEW), expected - model.offset_)
        assert np.array_equal(model.predict(NEW), np.where(expected < model.offset_, -1, 1))
        assert model.detector_.fingerprint() == ours.fingerprint()
    assert set(model.predict(NEW[20:])) == {-1}


@pytest.mark.parametrize("adapter", [OutfieldDetector, PyODDetector])
@pytest.mark.parametrize(("detector", "reached"), [(of.KNN(k=5), 0.93), ("SSD", 0.94)])
def test_rows_of_no_network_keep_their_length(adapter, detector, reached):
    """Cell samples: pyod's KNN with five neighbours has an AUROC of 0.939 on them, where columns are standardised."""
    rows, benign = load_breast_cancer(return_X_y=True)
    train, new = np.split(np.random.default_rng(0).permutation(rows[benign == 1]), [250])
    model = adapter(detector).fit(train)
    scores = [torch.tensor(model.decision_function(part)) for part in (new, rows[benign == 0])]
    sign = -1 if adapter is OutfieldDetector else 1
    assert of.auroc(*(sign * part for part in scores)) > reached
    assert set(model.predict(10 * new)) == {sign}
    of_network = adapter(detector, network_features=True).fit(train)
    assert (of_network.predict(10 * new) == of_network.predict(new)).all()


def test_the_offset_is_the_quantile_of_the_training_rows():
    model = OutfieldDetector().fit(ROWS)
    assert model.contamination == 0.05
    assert model.offset_ == np.percentile(model.score_samples(ROWS), 5)
    assert (OutfieldDetector(contamination=0.2).fit_predict(ROWS) == -1).sum() == 36


def test_held_out_rows_keep_the_promise():
    """KNN scores its own training rows too low; held-out rows do not."""
    rng = np.random.default_rng(1)
    wrong = {0.0: 0, 0.3: 0}
    for seed in range(20):
        rows = rng.standard_normal((200, 8))
        for share in wrong:
            model = OutfieldDetector(of.KNN(k=2), contamination=0.1, held_out=share, random_state=seed).fit(rows)
            wrong[share] += (model.predict(rng.standard_normal((100, 8))) == -1).mean() / 20
    assert wrong[0.3] < 0.12 < wrong[0.0]
    again = OutfieldDetector(of.KNN(k=2), contamination=0.1, held_out=0.3, random_state=seed).fit(rows)
    assert again.offset_ == model.offset_
    assert -again.offset_ in -again.score_samples(rows)
    assert (
        again.offset_
        != OutfieldDetector(of.KNN(k=2), contamination=0.1, held_out=0.3, random_state=99).fit(rows).offset_
    )


def test_held_out_rows_must_be_enough():
    with pytest.raises(of.InputError, match="at least 19 are needed"):
        OutfieldDetector(held_out=0.1).fit(ROWS)
    OutfieldDetector(held_out=19 / 180).fit(ROWS)


def test_in_a_pipeline_a_search_and_a_copy():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), OutfieldDetector(of.KNN(k=5))),
        {"outfielddetector__detector__k": [1, 3], "outfielddetector__contamination": [0.05, 0.2]},
        scoring=lambda model, rows, y=None: float((model.predict(rows) == 1).mean()),
        cv=3,
    ).fit(ROWS)
    assert search.best_params_["outfielddetector__contamination"] == 0.05
    best = search.best_estimator_[-1]
    assert best.detector_.k == search.best_params_["outfielddetector__detector__k"]
    for copy in (pickle.loads(pickle.dumps(best)), best):
        assert np.array_equal(copy.decision_function(NEW), best.decision_function(NEW))
    fresh = clone(best)
    assert fresh.get_params()["detector__k"] == best.get_params()["detector__k"]
    assert not hasattr(fresh, "detector_")


def test_settings_of_the_detector():
    model = OutfieldDetector(of.KNN(k=5))
    original = model.detector
    assert model.get_params()["detector__k"] == 5
    assert "detector__k" not in model.get_params(deep=False)
    model.set_params(detector__k=7, contamination=0.3)
    assert (model.detector.k, model.contamination, original.k) == (7, 0.3, 5)
    with pytest.raises(of.InputError, match="no setting nope"):
        model.set_params(detector__nope=1)
    with pytest.raises(of.InputError, match="detector"):
        OutfieldDetector("KNN").set_params(detector__k=1)


@pytest.mark.parametrize(
    ("model", "y", "said"),
    [(OutfieldDetector("MSP"), None, r"MSP needs logits.*take one of .*SSD"),
     (OutfieldDetector("ViM"), None, "ViM needs head"),
     (OutfieldDetector("RMDS"), None, "compares classes"),
     (OutfieldDetector("nope"), None, "no detector 'nope'"),
     (OutfieldDetector(3), None, "detector is 3"),
     (OutfieldDetector(network_features="no"), None, "network_features is 'no'; it must be True or False"),
     (OutfieldDetector(contamination=0), None, "contamination"),
     (OutfieldDetector(contamination=0.6), None, "contamination"),
     (OutfieldDetector(held_out=1), None, "held_out"),
     (OutfieldDetector(held_out=-0.1), None, "held_out"),
     (OutfieldDetector(held_out=0.5, random_state=None), None, "random_state"),
     (OutfieldDetector(), np.linspace(0, 1, 180), "not whole"),
     (OutfieldDetector(), CLASSES[:5], r"shape \(5,\)")],
)  # fmt: skip
def test_what_cannot_be_is_refused(model, y, said):
    with pytest.raises(of.InputError, match=said):
        model.fit(ROWS, y)


def test_rmds_takes_classes():
    model = OutfieldDetector("RMDS").fit(ROWS, CLASSES)
    assert (model.predict(NEW[20:]) == -1).mean() > 0.5
