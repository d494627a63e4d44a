"""What every detector must do. It walks DETECTORS, so that a new detector is tested by existing."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.helpers.gpu import DEVICES
from tests.helpers.samples import fields_of, make_set, ood_for, quick
from torch.testing import assert_close

import outfield as of

NAMES = list(of.DETECTORS)
every = pytest.mark.parametrize("name", NAMES)


def changed(data: of.FeatureSet, **fields: object) -> of.FeatureSet:
    return of.FeatureSet(**{**data.tensors(), **fields})  # type: ignore[arg-type]


@every
def test_fit_returns_self_and_scores_are_a_float_vector_on_the_cpu(name, train_set, test_set):
    detector = quick(name)
    assert detector.fit(train_set) is detector
    scores = detector.score(test_set)
    assert scores.shape == (len(test_set),)
    assert scores.dtype == torch.float32
    assert scores.device.type == "cpu"
    assert not scores.requires_grad
    assert torch.isfinite(scores).all()


@every
def test_higher_means_more_ood(name, train_set, test_set):
    more = (
        {"training": of.Training(epochs=40, batch_size=32, learning_rate=2e-3, l2=0.1, start="normal")}
        if name == "EBM"
        else {}
    )
    detector = quick(name, **more).fit(train_set)
    assert of.auroc(detector.score(test_set), detector.score(ood_for(name))) > 0.6


@every
def test_unfitted_is_an_error(name, test_set, tmp_path):
    detector = quick(name)
    with pytest.raises(of.NotFittedError, match="not fitted"):
        detector.score(test_set)
    with pytest.raises(of.NotFittedError):
        detector.save(tmp_path / "d.safetensors")
    assert not list(tmp_path.iterdir())


@every
def test_pieces_score_like_the_whole(name, train_set, test_set):
    detector = quick(name).fit(train_set)
    whole = detector.score(test_set)
    pieces = torch.cat([detector.score(test_set[i : i + 7]) for i in range(0, len(test_set), 7)])
    assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


@every
def test_chunks_do_not_show(name, train_set, test_set, monkeypatch):
    detector = quick(name).fit(train_set)
    whole = detector.score(test_set)
    monkeypatch.setattr(of.DETECTORS[name], "rows_at_once", 8)
    assert_close(detector.score(test_set), whole, rtol=1e-4, atol=1e-5)


@every
def test_order_of_the_rows_does_not_matter(name, train_set, test_set):
    detector = quick(name).fit(train_set)
    order = torch.randperm(len(test_set), generator=torch.Generator().manual_seed(0))
    assert_close(detector.score(test_set[order]), detector.score(test_set)[order], rtol=1e-4, atol=1e-5)


@every
def test_inputs_settings_and_global_state_stay_as_they_were(name, train_set, test_set):
    before = copy.deepcopy((train_set.tensors(), test_set.tensors()))
    detector = quick(name)
    shown = repr(detector)
    torch.manual_seed(7)
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    detector.fit(train_set).score(test_set)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled() == grad
    assert repr(detector) == shown
    for old, new in zip(before, (train_set.tensors(), test_set.tensors()), strict=True):
        assert all(torch.equal(old[field], new[field]) for field in old)


@every
def test_same_seed_same_bits(name, train_set, test_set):
    first = quick(name).fit(train_set).score(test_set)
    torch.rand(5)
    assert torch.equal(first, quick(name).fit(train_set).score(test_set))


@pytest.mark.parametrize("name", [n for n in NAMES if hasattr(quick(n), "seed")])
def test_another_seed_other_bits(name, train_set, test_set):
    assert not torch.equal(
        quick(name).fit(train_set).score(test_set), quick(name, seed=1).fit(train_set).score(test_set)
    )


@every
def test_refitting_forgets_the_first_fit(name, train_set, test_set, tmp_path):
    """Also where the first had other columns, and what scoring derived from it."""
    for other in (make_set(n=90, seed=5, shift=0.3), make_set(n=90, width=4, classes=2)):
        again = quick(name).fit(other)
        again.score(other)
        again.fingerprint()
        again.fit(train_set)
        once = quick(name).fit(train_set)
        assert torch.equal(again.score(test_set), once.score(test_set))
        assert again.fingerprint() == once.fingerprint()
        again.save(tmp_path / "again.safetensors")
        once.save(tmp_path / "once.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "once.safetensors").read_bytes()


@every
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_fit_that_fails_leaves_all_as_it_was(name, error, train_set, test_set, monkeypatch):
    cls = of.DETECTORS[name]
    fitted, fresh = quick(name).fit(train_set), quick(name)
    expected, named = fitted.score(test_set), fitted.fingerprint()
    learn = cls._fit

    def almost(self, *args, **given):
        learn(self, *args, **given)
        raise error("at the last moment")

    monkeypatch.setattr(cls, "_fit", almost)
    for detector in (fitted, fresh):
        with pytest.raises(error):
            detector.fit(make_set(n=90, width=4, classes=2))
    assert torch.equal(fitted.score(test_set), expected)
    assert fitted.fingerprint() == named
    with pytest.raises(of.NotFittedError):
        fresh.score(test_set)
    monkeypatch.undo()
    assert torch.equal(fresh.fit(train_set).score(test_set), expected)


@every
def test_eight_threads_score_as_one_does(name, train_set):
    sets = [make_set(n=40, seed=seed) for seed in range(8)]
    expected = [quick(name).fit(train_set).score(data) for data in sets]
    shared, ready = quick(name).fit(train_set), threading.Barrier(8)

    def score(data):
        torch.set_num_threads(1)
        ready.wait()
        return shared.score(data)

    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(a, b) for a, b in zip(pool.map(score, sets), expected, strict=True))


@every
def test_saved_and_loaded_scores_are_equal_to_the_bit(name, train_set, test_set, tmp_path):
    detector = quick(name).fit(train_set)
    path = tmp_path / "detector.safetensors"
    detector.save(path)
    loaded = of.load(path)
    assert type(loaded) is type(detector)
    assert repr(loaded) == repr(detector)
    assert torch.equal(loaded.score(test_set), detector.score(test_set))
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_agree(name, dtype, train_set, test_set):
    detector = quick(name).fit(train_set)
    cast = of.FeatureSet(**{f: v.to(dtype) if v.is_floating_point() else v for f, v in test_set.tensors().items()})
    tolerance = 2e-2 if dtype == torch.float16 else 1e-4
    scores = detector.score(test_set)
    assert_close(detector.score(cast), scores, rtol=tolerance, atol=tolerance * float(scores.std()) + 1e-5)


@every
@pytest.mark.parametrize("device", DEVICES)
def test_devices_agree(name, device, train_set, test_set, tmp_path):
    on_cpu = quick(name).to("cpu").fit(train_set)
    reference = on_cpu.score(test_set)
    moved = on_cpu.to(device).score(test_set)
    assert_close(moved, reference, rtol=1e-3, atol=1e-4)
    refitted = quick(name).to(device).fit(train_set)
    assert torch.isfinite(refitted.score(test_set)).all()
    refitted.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors").to(device)
    assert_close(loaded.score(test_set), refitted.score(test_set), rtol=1e-3, atol=1e-4)


@every
def test_what_was_learned_moves_to_another_device(name, train_set, monkeypatch):
    """Seen with the meta device, which every machine has."""
    fitted = quick(name).fit(train_set)
    monkeypatch.setattr(of.Detector, "device", torch.device("meta"))
    of.Detector._moved(fitted)
    kept = [getattr(fitted, f"{said.split()[0]}_") for said in fitted.learned]
    assert all(value.device.type == "meta" for value in kept)


@pytest.mark.parametrize("name", [name for name in NAMES if of.DETECTORS[name].fits_in_pieces])
def test_data_on_disk_stays_there(name, train_set, test_set, tmp_path, monkeypatch):
    def refuse(self):
        raise AssertionError("the whole was asked for")

    train_set.save(tmp_path / "train.npz")
    monkeypatch.setattr(of.FeatureStream, "in_memory", refuse)
    streamed = quick(name).fit(of.open_features(tmp_path / "train.npz"))
    assert_close(streamed.score(test_set), quick(name).fit(train_set).score(test_set), rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there(name, device):
    with pytest.raises(of.InputError, match=device):
        quick(name).to(device)


@every
def test_a_missing_field_is_named(name, train_set, test_set):
    detector = quick(name)
    for need in detector.needs_to_fit:
        without = changed(train_set, **dict.fromkeys((*fields_of(need), "logits") if need == "head" else (need,)))
        with pytest.raises(of.MissingFieldError, match=fields_of(need)[0]):
            quick(name).fit(without)
    detector.fit(train_set)
    for field in set(detector.needs_to_score) - {"features"}:
        with pytest.raises(of.MissingFieldError, match=field):
            detector.score(changed(test_set, **{field: None}))


@every
def test_only_what_is_needed_is_needed(name, train_set, test_set):
    needs = {"features", *(field for need in quick(name).needs_to_fit for field in fields_of(need)), *quick(name).uses}
    train = of.FeatureSet(**{f: v for f, v in train_set.tensors().items() if f in needs})
    to_score = {"features", *quick(name).fit(train).needs_to_score}
    test = of.FeatureSet(**{f: v for f, v in test_set.tensors().items() if f in to_score})
    assert torch.equal(quick(name).fit(train).score(test), quick(name).fit(train_set).score(test_set))


@every
def test_wrong_width_is_an_error(name, train_set):
    detector = quick(name).fit(train_set)
    narrow = make_set(n=10, width=5, classes=2)
    with pytest.raises(of.InputError, match="columns"):
        detector.score(narrow)


@every
def test_arrays_are_not_feature_sets(name, train_set):
    with pytest.raises(of.InputError, match="FeatureSet"):
        quick(name).fit(train_set.features)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [n for n in NAMES if quick(n).needs_to_score == ("features",) and "head" not in quick(n).needs_to_fit]
)
def test_scale_of_the_features_does_not_matter(name, train_set, test_set):
    detector = quick(name).fit(train_set)
    for factor in (1e-30, 1e30):
        scaled = changed(test_set, features=test_set.features.double() * factor)
        assert_close(detector.score(scaled), detector.score(test_set), rtol=1e-3, atol=1e-4)


@every
def test_zero_and_huge_features_score_finite(name, train_set, test_set):
    features = test_set.features.clone()
    features[0] = 0
    features[1] = 3e38
    scores = quick(name).fit(train_set).score(changed(test_set, features=features))
    assert torch.isfinite(scores).all()


@every
def test_equal_detectors_have_equal_fingerprints(name, train_set, tmp_path):
    detector = quick(name).fit(train_set)
    detector.save(tmp_path / "d.safetensors")
    assert of.load(tmp_path / "d.safetensors").fingerprint() == detector.fingerprint()
    assert detector.fingerprint().startswith(f"{name} ")
    if detector.needs_to_fit:
        other = make_set(seed=9)
        other = changed(other, head_weight=2 * other.head_weight)
        assert quick(name).fit(other).fingerprint() != detector.fingerprint()
    with pytest.raises(of.NotFittedError):
        quick(name).fingerprint()


def test_held_out_rows_by_position_still_work():
    train, held_out, test = make_set(n=200), make_set(n=60, seed=3), make_set(seed=1)
    with pytest.warns(DeprecationWarning, match="by their names"):
        old = of.Fused().fit(train, held_out)
    assert torch.equal(old.score(test), of.Fused().fit(train, held_out=held_out).score(test))


@every
def test_what_a_detector_has_no_use_for_is_ignored(name, train_set, test_set):
    given = {"held_out": make_set(n=60, seed=3), "stand_ins": {"near": {"a": test_set}}, "checkpoint": "x.safetensors"}
    given = {key: value for key, value in given.items() if not getattr(of.DETECTORS[name], f"uses_{key}")}
    assert torch.equal(quick(name).fit(train_set, **given).score(test_set), quick(name).fit(train_set).score(test_set))
