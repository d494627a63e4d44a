"""Arrays in memory: feature sets, scores, thresholds, metrics."""

import random
from pathlib import Path

import numpy as np
import torch
from tests.fuzz.values import good_matrix, nonsense_array, scalar
from tests.helpers.samples import make_set, quick

import outfield as of

FIELDS = ("labels", "logits", "spread", "odin_logits", "stage1", "head_bias")


def feature_set(rng: random.Random, folder: Path) -> None:
    """Odd fields are refused; honest ones, however dressed, keep their numbers."""
    rows, columns = rng.randint(1, 6), rng.randint(1, 4)
    features, known = good_matrix(rng, rows, columns)
    fields = {"features": features}
    honest = True
    for name in rng.sample(FIELDS, rng.randint(0, 2)):
        if rng.random() < 0.5:
            fields[name] = np.arange(rows) % 2 if name == "labels" else good_matrix(rng, rows, 2)[0]
            if name == "head_bias":
                fields[name] = np.ones(2)
        else:
            fields[name], honest = nonsense_array(rng), False
    if rng.random() < 0.4:
        fields["features"], honest = nonsense_array(rng), False
    try:
        made = of.FeatureSet(**fields)
    except of.OutfieldError:
        assert not honest, f"refused {fields}"
        return
    if honest:
        np.testing.assert_array_equal(made.features.double().numpy(), known)
    assert made.features.isfinite().all()
    path = folder / rng.choice(["a.safetensors", "a.npz"])
    made.save(path)
    again = of.FeatureSet.load(path)
    for name, value in made.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def metrics(rng: random.Random, folder: Path) -> None:
    """AUROC, FPR95 and AUPR against brute force."""
    numpy = np.random.default_rng(rng.getrandbits(32))
    sides = [numpy.integers(0, 9, rng.randint(1, 30)).astype(rng.choice(["f4", "f8", "i8", "f2"])) for _ in "ab"]
    if rng.random() < 0.5:
        sides[rng.randint(0, 1)] = nonsense_array(rng)
    function = rng.choice([of.auroc, of.fpr95, of.aupr_in, of.aupr_out, of.id_rejected_at_95_ood_recall])
    value = function(*sides)
    ids, oods = (np.asarray(side, np.float64) for side in sides)
    assert 0 <= value <= 1
    if function is of.auroc:
        wins = (oods[:, None] > ids).mean() + 0.5 * (oods[:, None] == ids).mean()
        assert abs(value - wins) < 1e-12
    if function is of.fpr95:
        kept = next(t for t in np.sort(ids) if (ids <= t).mean() >= 0.95 - 1e-12)
        assert value == (oods <= kept).mean()


def threshold(rng: random.Random, folder: Path) -> None:
    """What is kept is at least what was promised; a decision is a p-value."""
    numpy = np.random.default_rng(rng.getrandbits(32))
    scores = numpy.integers(0, 20, rng.randint(1, 60)).astype(float) if rng.random() < 0.7 else nonsense_array(rng)
    keep = rng.choice([0.5, 0.9, 0.95, 1e-12, 1e-3, 0.07]) if rng.random() < 0.6 else scalar(rng)
    found = of.Threshold.fit(scores, keep=keep)
    known = np.sort(np.asarray(scores, np.float64))
    assert (known <= found.value).sum() >= float(keep) * (len(known) + 1) - 1e-9
    new = numpy.integers(-2, 22, 30) if rng.random() < 0.7 else nonsense_array(rng)
    decided, p = found.is_ood(new), found.p_value(new)
    assert torch.equal(decided, p <= found.p_limit)
    found.save(folder / "t.safetensors")
    assert of.Threshold.load(folder / "t.safetensors").value == found.value


def scoring(rng: random.Random, folder: Path) -> None:
    """Rows are scored one by one: the whole, its pieces and any order of them agree; inputs stay as they were."""
    train, test = make_set(60, seed=rng.randint(0, 3)), make_set(rng.randint(1, 40), seed=rng.randint(4, 9))
    detector = quick(rng.choice([name for name in of.DETECTORS if name not in ("EBM", "EnergyCorrected")])).fit(train)
    before = {name: value.clone() for name, value in test.tensors().items()}
    scores = detector.score(test)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(rng.getrandbits(30)))
    torch.testing.assert_close(detector.score(test[order]), scores[order], rtol=1e-5, atol=1e-6)
    cut = rng.randint(0, len(test))
    parts = [test[piece] for piece in (slice(0, cut), slice(cut, None)) if len(range(*piece.indices(len(test))))]
    torch.testing.assert_close(torch.cat([detector.score(part) for part in parts]), scores, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in test.tensors().items())
    assert scores.isfinite().all()


def wrong_data(rng: random.Random, folder: Path) -> None:
    """fit and score of what is no feature set, or one of another width."""
    detector = quick(rng.choice(list(of.DETECTORS)))
    if rng.random() < 0.5:
        detector.fit(make_set(60))
        data = rng.choice(
            [lambda: nonsense_array(rng), lambda: make_set(5, width=3, classes=2), lambda: make_set(5)[:0]]
        )
        detector.score(data())
    else:
        fields = rng.sample(["labels", "logits", "odin_logits"], rng.randint(0, 2))
        whole = make_set(rng.choice([1, 2, 5])).tensors()
        few = of.FeatureSet(**{name: whole[name] for name in ("features", *fields)})
        detector.fit(few)
        assert detector.score(make_set(5)).isfinite().all()


SURFACES = {f.__name__: f for f in (feature_set, metrics, threshold, scoring, wrong_data)}
