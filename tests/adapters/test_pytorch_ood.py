"""The pytorch-ood detectors, against that library's own classes, loops and metrics."""

import pytest
import torch
from pytorch_ood.api import FeaturesDetector, LogitsDetector, ModelNotSetException, RequiresFittingException
from pytorch_ood.detector import EnergyBased, Mahalanobis
from tests.helpers.samples import make_set
from torch.utils.data import DataLoader, TensorDataset

import outfield as of
from outfield.adapters.pytorch_ood import OutfieldFeatures, OutfieldLogits

TRAIN, TEST = make_set(n=120), make_set(n=40, seed=1, shift=0.3)


def test_feature_scores_are_ours():
    model = OutfieldFeatures(of.SSD()).fit_features(TRAIN.features, TRAIN.labels)
    assert isinstance(model, FeaturesDetector)
    assert model.requires_fit
    assert torch.equal(model.predict_features(TEST.features), of.SSD().fit(TRAIN).score(TEST))


def test_rows_that_are_marked_as_ood_are_left_out():
    labels = torch.cat([TRAIN.labels, torch.full((40,), -1)])
    rows = torch.cat([TRAIN.features, TEST.features])
    model = OutfieldFeatures("SSD").fit_features(rows, labels)
    assert torch.equal(model.predict_features(TEST.features), of.SSD().fit(TRAIN).score(TEST))
    logits = OutfieldLogits("KLMatching").fit_logits(torch.cat([TRAIN.logits, TEST.logits]), labels)
    assert torch.equal(logits.predict_logits(TEST.logits), of.KLMatching().fit(TRAIN).score(TEST))


def test_from_a_loader_through_an_encoder():
    network = torch.nn.Linear(TRAIN.features.shape[1], 6)
    loader = DataLoader(TensorDataset(TRAIN.features, TRAIN.labels), batch_size=50)
    model = OutfieldFeatures(of.KNN(k=3), encoder=network).fit(loader)
    encoded = [network(rows).detach() for rows in (TRAIN.features, TEST.features)]
    expected = of.KNN(k=3).fit(of.FeatureSet(encoded[0])).score(of.FeatureSet(encoded[1]))
    assert torch.allclose(model.predict(TEST.features), expected, rtol=1e-5)
    assert torch.equal(model(TEST.features), model.predict(TEST.features))


@pytest.mark.parametrize("name", ["MSP", "EnergyLogits", "KLMatching", "GEN"])
def test_logit_scores_are_ours(name):
    model = OutfieldLogits(name).fit_logits(TRAIN.logits, TRAIN.labels)
    assert isinstance(model, LogitsDetector)
    assert torch.equal(model.predict_logits(TEST.logits), of.DETECTORS[name]().fit(TRAIN).score(TEST))


def test_a_model_gives_the_logits():
    network = torch.nn.Linear(5, 3)
    loader = DataLoader(TensorDataset(torch.randn(30, 5), torch.arange(30) % 3), batch_size=8)
    model = OutfieldLogits(model=network).fit(loader)
    rows = torch.randn(7, 5)
    theirs = EnergyBased(network)
    assert torch.allclose(model.predict(rows), theirs.predict(rows), atol=1e-5)


def test_the_direction_is_theirs():
    theirs = Mahalanobis(torch.nn.Identity()).fit_features(TRAIN.features, TRAIN.labels)
    ours = OutfieldFeatures("GaussianMixture").fit_features(TRAIN.features, TRAIN.labels)
    id_data, ood_data = make_set(n=60, seed=5), make_set(n=60, seed=6, shift=2.0)
    for model in (ours, theirs):
        assert of.auroc(model.predict_features(id_data.features), model.predict_features(ood_data.features)) > 0.8


def test_what_cannot_be_is_refused():
    with pytest.raises(RequiresFittingException):
        OutfieldFeatures().predict_features(TEST.features)
    with pytest.raises(RequiresFittingException):
        OutfieldLogits("KLMatching").predict_logits(TEST.logits)
    with pytest.raises(ModelNotSetException):
        OutfieldFeatures().predict(TEST.features)
    with pytest.raises(ModelNotSetException):
        OutfieldFeatures().fit([])
    with pytest.raises(of.InputError, match="SSD scores features, not logits"):
        OutfieldLogits("SSD")
    with pytest.raises(of.InputError, match="needs logits"):
        OutfieldFeatures("MSP").fit_features(TRAIN.features, TRAIN.labels)
