"""Fits and scores do not depend on what a caller has chosen for its own PyTorch code, and change nothing for others."""

import contextlib
import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield import modes
from outfield.energy import SineMLP
from outfield.energy.engine.torch_operations import pack
from outfield.modes import one_core

CPU = torch.device("cpu")


@contextlib.contextmanager
def chosen(choose, value, before):
    choose(value)
    try:
        yield
    finally:
        choose(before)


CHOICES = {
    "float64 by default": lambda: chosen(torch.set_default_dtype, torch.float64, torch.float32),
    "another device by default": lambda: chosen(torch.set_default_device, "meta", None),
    "a device for a block": lambda: torch.device("meta"),
    "deterministic algorithms": lambda: chosen(torch.use_deterministic_algorithms, True, False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
}


@pytest.fixture(params=CHOICES, ids=lambda name: name.replace(" ", "-"))
def choice(request):
    return CHOICES[request.param]


def engine(name, start):
    l2 = 0.1 if name == "EBM" else 10.0
    return of.Training(epochs=2, batch_size=32, learning_rate=1e-3, l2=l2, start=start, replay_size=40)


KINDS = {
    "EBM fused": lambda: quick("EBM", training=engine("EBM", "replay")),
    "EBM eager": lambda: quick("EBM", training=dataclasses.replace(engine("EBM", "normal"), engine="eager")),
    "EnergyCorrected fused": lambda: quick("EnergyCorrected"),
    "EnergyCorrected eager": lambda: quick("EnergyCorrected", sampler=of.MetropolisLangevin(steps=2)),
    "of sines": lambda: quick("EBM", network=SineMLP(hidden=8, depth=1, frequencies=5)),
    **{name: lambda name=name: quick(name) for name in of.DETECTORS if name not in ("EBM", "EnergyCorrected")},
}


@functools.cache
def fitted_plainly(kind):
    """A detector that was fitted without a choice, and its scores."""
    plain = KINDS[kind]().fit(make_set())
    return plain, plain.score(make_set(n=50, seed=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_and_its_scores_have_the_same_bits(kind, choice, train_set, test_set, tmp_path):
    plain, expected = fitted_plainly(kind)
    plain.save(tmp_path / "plain.safetensors")
    with choice():
        fitted = KINDS[kind]().fit(train_set)
        scores = fitted.score(test_set)
        of_plain = plain.score(test_set)
        loaded = of.load(tmp_path / "plain.safetensors")
        of_loaded = loaded.score(test_set)
    assert fitted.fingerprint() == loaded.fingerprint() == plain.fingerprint()
    for found in (scores, of_plain, of_loaded, fitted.score(test_set), loaded.score(test_set)):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_a_mixture_and_its_chains_have_the_same_bits(choice, train_set):
    z, labels = train_set.features, train_set.labels
    sampler = of.Langevin(steps=3, step_size=(1e-3, 1e-3), noise_std=(1e-2, 1e-2))

    def everything():
        mixture = of.MixturePrior().fit(z, labels)
        start = mixture.sample(9, torch.Generator("cpu").manual_seed(0))
        ends = of.run_chains(mixture.energy, start, sampler).ends
        return [start, ends, mixture.energy(z), mixture.gradient(z), mixture.mahalanobis_sq(z), mixture.log_prob(z)]

    expected = everything()
    with choice():
        found = everything()
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


def test_what_is_fitted_in_inference_mode_can_be_followed_outside(train_set):
    with torch.inference_mode():
        mixture = of.MixturePrior().fit(train_set.features.clone(), train_set.labels.clone())
        mixture.partial_fit(train_set.features.clone(), train_set.labels.clone())
        mixture.energy(train_set.features)
        detector = quick("EnergyCorrected").fit(train_set)
    for energy in (mixture.energy, detector.model_):
        ends = of.run_chains(energy, train_set.features[:5], of.Langevin(steps=2)).ends
        assert torch.isfinite(ends).all()


class TestProducts:
    """What a process allows inside its float32 products."""

    @pytest.mark.parametrize("name", ["SSD", "KNN", "EnergyCorrected fused", "EnergyCorrected eager", "EBM eager"])
    def test_where_the_process_allows_less_fits_and_scores_keep_their_bits(self, name, train_set, test_set):
        _, expected = fitted_plainly(name)
        with chosen(torch.set_float32_matmul_precision, "medium", "highest"):
            assert modes.rounded_products(CPU)
            assert pack(torch.zeros(512, 512)) is None
            assert torch.equal(KINDS[name]().fit(train_set).score(test_set), expected)
            assert torch.get_float32_matmul_precision() == "medium"

    @pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="an older PyTorch")
    def test_the_newer_way_to_allow_less_is_seen_too(self):
        place = torch.backends.mkldnn.matmul
        before = place.fp32_precision
        for value, expected in (("bf16", True), ("tf32", True), ("ieee", False)):
            place.fp32_precision = value
            found = modes.rounded_products(CPU)
            place.fp32_precision = before
            assert found == expected
        assert torch.get_float32_matmul_precision() == "highest"


class TestThreads:
    @pytest.fixture(autouse=True)
    def _two(self):
        torch.set_num_threads(2)

    def test_a_thread_that_starts_while_statistics_are_gathered_has_its_cores(self):
        z, labels = torch.rand(4000, 8), torch.arange(4000) % 3
        seen, inside = [], []

        def pieces():
            for i in range(0, 4000, 500):
                with ThreadPoolExecutor(1) as pool:
                    seen.append(pool.submit(torch.get_num_threads).result())
                yield z[i : i + 500], labels[i : i + 500]

        def prepare(rows):
            inside.append(torch.get_num_threads())
            return rows

        found = of.ClassStatistics.over(pieces(), workers=2, prepare=prepare)
        assert seen == [2] * 8
        assert inside == [1] * 8
        assert torch.get_num_threads() == 2
        torch.testing.assert_close(found.scatter, of.ClassStatistics.over([(z, labels)]).scatter)

    def test_a_block_on_one_core_is_this_threads_alone(self):
        with one_core(), ThreadPoolExecutor(1) as pool:
            assert torch.get_num_threads() == 1
            assert pool.submit(torch.get_num_threads).result() == 2
            with one_core():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), one_core():
            1 / 0
        assert torch.get_num_threads() == 2

    def test_fits_in_threads_are_those_of_one_thread(self, train_set, test_set):
        names = ["EnergyCorrected", "EBM", "EnergyCorrected", "EBM"]
        state = torch.get_rng_state()
        alone = [quick(name, seed=seed).fit(train_set).score(test_set) for seed, name in enumerate(names)]
        barrier = threading.Barrier(len(names))

        def fit(seed):
            barrier.wait()
            return quick(names[seed], seed=seed).fit(train_set).score(test_set)

        with ThreadPoolExecutor(len(names)) as pool:
            for expected, found in zip(alone, pool.map(fit, range(len(names))), strict=True):
                assert torch.equal(found, expected)
        assert torch.equal(torch.get_rng_state(), state)
