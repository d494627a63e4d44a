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

    @pytest.fixture
    def rough(self):
        """The process allows bfloat16 inside its products, which a CPU with units for it then uses."""
        with chosen(torch.set_float32_matmul_precision, "medium", "highest"):
            yield

    a = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    b = torch.randn(30, 20, generator=torch.Generator().manual_seed(1))

    def every_product(self):
        """The product of a and b by each operation that takes one, and the gradient of one."""
        out, three = torch.empty(40, 20), torch.empty(1, 40, 20)
        leaf = self.a.clone().requires_grad_()
        (leaf @ self.b).sum().backward()
        some = torch.full((40, 20), 2.0)
        return [
            torch.mm(self.a, self.b),
            torch.mm(self.a, self.b, out=out),
            torch.matmul(self.a[None], self.b, out=three)[0],
            torch.addmm(some, self.a, self.b, beta=2, alpha=-1).sub(4).neg(),
            some.clone().addmm_(self.a, self.b) - 2,
            torch.addmm(torch.full((20,), torch.nan), self.a, self.b, beta=0),
            torch.baddbmm(some[None], self.a[None], self.b[None])[0] - 2,
            torch.nn.functional.linear(self.a, self.b.T),
            torch.einsum("ij,jk->ik", self.a, self.b),
        ], leaf.grad

    @pytest.mark.parametrize("way", [modes._in_double, modes._in_parts])
    def test_products_in_double_and_in_parts_lose_nothing(self, way):
        exact = self.a.double() @ self.b.double()
        taken = 0

        def counted(x, y):
            nonlocal taken
            taken += 1
            return way(x, y)

        with modes._Products(counted):
            found, slope = self.every_product()
        assert taken == len(found) + 2  # the product that was differentiated, and its gradient
        for one in found:
            torch.testing.assert_close(one.double(), exact, rtol=0, atol=2e-6 * float(exact.abs().max()))
        torch.testing.assert_close(slope, self.b.sum(1).expand(40, 30), rtol=0, atol=1e-5)

    def test_parts_make_up_for_operands_that_are_rounded(self, monkeypatch):
        """The three products of an operation that rounds its operands to TF32 are as good as one that does not."""
        exact = self.a.double() @ self.b.double()
        rounded = float((modes._of_rounded(self.a, self.b) - exact).abs().max())
        with modes._Products(modes._of_rounded):
            parts = float((modes._in_parts(self.a, self.b) - exact).abs().max())
        assert rounded > 1e-3
        assert parts < 1e-5

    def test_tf32_keeps_ten_bits(self):
        one = torch.tensor([1 + 2**-10, 1 + 2**-12, 1 - 2**-13, -(1 + 3 * 2**-11)])
        rounded = modes._leading_bits(one, round_off=True)
        assert rounded.tolist() == [1 + 2**-10, 1.0, 1.0, -(1 + 2 * 2**-10)]

    def test_nothing_is_done_where_nothing_was_chosen(self):
        assert isinstance(modes.products(CPU), contextlib.nullcontext)
        assert isinstance(modes.products(CPU, "tf32"), contextlib.nullcontext)

    @pytest.mark.usefixtures("rough")
    def test_full_products_are_asked_for_where_the_process_allows_less(self, train_set, test_set, monkeypatch):
        assert modes.rounded_products(CPU)
        assert pack(torch.zeros(512, 512)) is None
        asked = []
        product = modes._in_double
        monkeypatch.setattr(modes, "_in_double", lambda a, b: asked.append(a.shape) or product(a, b))
        for name in ("SSD", "EnergyCorrected", "EBM"):
            detector = quick(name).fit(train_set)
            assert bool(asked) == (name != "SSD")  # whose statistics are float64
            asked.clear()
            detector.score(test_set)
            assert asked
            asked.clear()
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

    def test_the_same_detector_gives_the_same_scores_up_to_rounding(self, train_set, test_set):
        detector = quick("EnergyCorrected").fit(train_set)
        expected = detector.score(test_set)
        with chosen(torch.set_float32_matmul_precision, "medium", "highest"):
            found = detector.score(test_set)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


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
