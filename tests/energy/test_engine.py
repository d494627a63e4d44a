"""The fused engine takes the eager step's path: in PyTorch on a CPU, in Triton's interpreter, and on a GPU where there is one."""

import contextlib
import dataclasses
import importlib.util
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set, quick
from torch import nn

import outfield as of
from outfield.energy import PROJECTIONS, SineMLP, engine, train, train_seeds
from outfield.energy.engine import FusedStep, Positions, Recorder, torch_operations

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")
CPU, GPU = torch.device("cpu"), torch.device("cuda:1")
SAMPLER = of.Langevin(steps=3, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3))
TRAINING = of.Training(epochs=1, batch_size=32, learning_rate=1e-3, l2=0.5, precision="float32")


def rows(n=96, width=24, classes=3, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    z = torch.rand(classes, width, generator=generator)[labels] + 0.3 * torch.randn(n, width, generator=generator)
    return nn.functional.normalize(z.relu(), dim=1).to(device), labels.to(device)


def fit(
    training, z, labels=None, seeds=(0,), project="relu_sphere", network=of.MLP(hidden=40, depth=2), sampler=SAMPLER
):
    """Energies of all rows after training, one vector for each seed, and the histories."""
    prior = None if labels is None else of.MixturePrior().fit(z, labels)
    models = [of.CorrectedEnergy(network.build(z.shape[1], s), 0.5, prior, 5.0).to(z.device) for s in seeds]
    histories = train_seeds(models, z, training, sampler, PROJECTIONS[project], list(seeds))
    return [model(z).detach() for model in models], histories


def apart(a, b):
    """Largest difference, relative to the largest energy."""
    return float((a - b).abs().max() / a.abs().max())


def both(training, *args, **kwargs):
    return [fit(dataclasses.replace(training, engine=name), *args, **kwargs) for name in ("eager", "fused")]


VARIANTS = {
    "with a prior": {},
    "without a prior": {"labels": None},
    "from data": {"start": "data"},
    "from a replay buffer": {"start": "replay", "replay_size": 40},
    "between rows": {"start": "mixed"},
    "with both moments": {"betas": (0.5, 0.9)},
    "without l2": {"l2": 0.0},
    "on the sphere": {"project": "sphere"},
    "in the plane": {"project": "none"},
    "a single hidden layer": {"network": of.MLP(hidden=7, depth=0)},
}


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def variant(request):
    z, labels = rows()
    settings = {"labels": labels, **VARIANTS[request.param]}
    known = {field.name for field in dataclasses.fields(of.Training)}
    training = dataclasses.replace(TRAINING, **{k: v for k, v in settings.items() if k in known})
    return training, z, {k: v for k, v in settings.items() if k not in known}


class TestPyTorch:
    def test_an_epoch_agrees_with_the_eager_step(self, variant):
        training, z, others = variant
        (eager, [slow]), (fused, [fast]) = both(training, z, **others)
        assert apart(eager[0], fused[0]) < 1e-5
        assert fast.loss == pytest.approx(slow.loss, rel=1e-4, abs=1e-6)
        assert fast.negative_energy == pytest.approx(slow.negative_energy, rel=1e-4, abs=1e-6)

    def test_noise_drawn_in_several_blocks(self, monkeypatch):
        z, labels = rows()
        monkeypatch.setattr("outfield.energy.chains.NUMBERS_AT_ONCE", 2 * 32 * 24)  # of three moves two, then one
        (eager, _), (fused, _) = both(TRAINING, z, labels)
        assert apart(eager[0], fused[0]) < 1e-5

    def test_packed_weights_agree(self, variant, monkeypatch):
        training, z, others = variant
        assert torch_operations.pack(torch.rand(2, 2)) is None
        monkeypatch.setattr(torch_operations, "SMALLEST", 0)
        if torch_operations.pack(torch.rand(2, 2)) is None:
            pytest.skip("this build of PyTorch cannot pack")
        (eager, _), (fused, _) = both(training, z, **others)
        assert apart(eager[0], fused[0]) < 1e-5

    def test_what_is_done_beside_is_there_after_the_join(self, monkeypatch):
        """On a GPU the layers' gradients are made in parallel branches; here they come as late as they may."""
        z, labels = rows()
        prior = of.MixturePrior().fit(z, labels)
        models = [of.CorrectedEnergy(of.MLP(hidden=40, depth=2).build(24, 0), 0.5, prior, 5.0) for _ in range(2)]

        class Late(Recorder):
            late: ClassVar[list] = []

            @contextlib.contextmanager
            def beside(self, lane=0):
                gradients = [p.grad for p in models[1].network.parameters()]
                before = [g.clone() for g in gradients]
                yield
                for g, old in zip(gradients, before, strict=True):
                    if not torch.equal(g, old):
                        self.late.append((g, g.clone()))
                        g.copy_(old)

            def join(self):
                while self.late:
                    g, new = self.late.pop(0)
                    g.copy_(new)

        train(models[0], z, dataclasses.replace(TRAINING, engine="eager"), SAMPLER, PROJECTIONS["sphere"], seed=0)
        monkeypatch.setattr("outfield.energy.engine.Recorder", Late)
        train(models[1], z, dataclasses.replace(TRAINING, engine="fused"), SAMPLER, PROJECTIONS["sphere"], seed=0)
        assert apart(models[0](z).detach(), models[1](z).detach()) < 1e-5

    def test_bfloat16_is_close_where_the_cpu_has_units(self):
        if not engine.has_bfloat16(CPU):
            pytest.skip("this CPU has no units for bfloat16")
        z, labels = rows()
        exact, _ = fit(TRAINING, z, labels)
        for name in ("eager", "fused"):
            rounded, _ = fit(dataclasses.replace(TRAINING, precision="bfloat16", engine=name), z, labels)
            assert 1e-7 < apart(exact[0], rounded[0]) < 0.02
        # Weights that move far: products with those of the beginning would end elsewhere.
        far = dataclasses.replace(TRAINING, learning_rate=1e-2, epochs=30)
        exact, _ = fit(far, z, labels)
        for name in ("eager", "fused"):
            rounded, _ = fit(dataclasses.replace(far, precision="bfloat16", engine=name), z, labels)
            assert apart(exact[0], rounded[0]) < 0.1

    def test_chains_in_bfloat16_see_where_they_are(self):
        """With moves this long, gradients at old positions would lead elsewhere."""
        if not engine.has_bfloat16(CPU):
            pytest.skip("this CPU has no units for bfloat16")
        z, _ = rows()
        training = dataclasses.replace(TRAINING, learning_rate=1e-30, input_noise=0.0, start="data")
        far = of.Langevin(steps=12, step_size=(3.0, 3.0), noise_std=(0.0, 0.0))
        negative = {}
        for precision, name in (("float32", "eager"), ("bfloat16", "eager"), ("bfloat16", "fused")):
            settings = dataclasses.replace(training, precision=precision, engine=name)
            _, [history] = fit(settings, z, project="none", sampler=far)
            negative[precision, name] = history.negative_energy[0]
        assert list(negative.values()) == pytest.approx([negative["float32", "eager"]] * 3, rel=0.02)


@needs_triton
class TestInterpreter:
    """The kernels themselves, on the CPU; small, because the interpreter is slow."""

    @pytest.fixture(autouse=True)
    def _kernels(self, monkeypatch):
        if torch.cuda.is_available():
            pytest.skip("the kernels run on the GPU here")
        monkeypatch.setattr(engine, "has_triton", lambda device: True)

    @pytest.mark.parametrize(
        "settings",
        [{}, {"labels": None}, {"betas": (0.5, 0.9), "project": "sphere"}, {"start": "replay", "project": "none"}],
        ids=["prior", "alone", "moments", "replay"],
    )
    def test_an_epoch_agrees_with_the_eager_step(self, settings):
        z, labels = rows(n=40, width=20)
        others = {k: settings[k] for k in ("project",) if k in settings}
        others["network"] = of.MLP(hidden=40, depth=1 if settings else 2)
        others["sampler"] = dataclasses.replace(SAMPLER, steps=2)
        more = {k: v for k, v in settings.items() if k not in ("project", "labels")}
        training = dataclasses.replace(TRAINING, batch_size=20, **more)
        labels = settings.get("labels", labels)
        (eager, [slow]), (fused, [fast]) = both(training, z, labels=labels, **others)
        assert apart(eager[0], fused[0]) < 1e-5
        assert fast.loss == pytest.approx(slow.loss, rel=1e-4, abs=1e-6)

    def test_sizes_that_need_no_masks(self):
        z, labels = rows(n=128, width=64)
        training = dataclasses.replace(TRAINING, batch_size=128)
        sampler = dataclasses.replace(SAMPLER, steps=1)
        network = of.MLP(hidden=128, depth=1)
        (eager, _), (fused, _) = both(training, z, labels, network=network, sampler=sampler)
        assert apart(eager[0], fused[0]) < 1e-5

    def test_the_priors_gradient_where_classes_are_of_unequal_size(self):
        from outfield.energy.engine.triton_operations import TritonOperations

        g = torch.Generator().manual_seed(1)
        labels = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([90, 9, 3]))
        z = 0.2 * torch.randn(3, 20, generator=g)[labels] + torch.randn(102, 20, generator=g)
        prior = of.MixturePrior().fit(z, labels)
        model = of.CorrectedEnergy(of.MLP(hidden=16, depth=0).build(20, 0), 1.0, prior, 5.0)
        operations = TritonOperations([model], TRAINING, PROJECTIONS["none"], 16)
        here = z[None, ::6][:, :16].contiguous()
        at, found = Positions(here, here, here), torch.empty_like(here)
        operations.prepare(at)
        operations.descend(torch.zeros(1, 16, 16), at, found)
        exact = prior.gradient(here[0].double()) / 5
        assert float((found[0] - exact).norm() / exact.norm()) < 1e-4

    def test_several_seeds_in_one_launch(self):
        z, labels = rows(n=32, width=16)
        training = dataclasses.replace(TRAINING, batch_size=16)
        sampler = dataclasses.replace(SAMPLER, steps=1)
        (eager, _), (fused, _) = both(training, z, labels, seeds=(3, 5), sampler=sampler)
        assert not torch.equal(fused[0], fused[1])
        for a, b in zip(eager, fused, strict=True):
            assert apart(a, b) < 1e-5

    def test_more_classes_than_a_program_holds(self, monkeypatch):
        monkeypatch.setattr("outfield.energy.engine.triton_operations.MOST_CLASSES", 8)
        z, labels = rows(n=32, width=16)
        sampler = dataclasses.replace(SAMPLER, steps=1)
        (eager, _), (fused, _) = both(dataclasses.replace(TRAINING, batch_size=16), z, labels, sampler=sampler)
        assert apart(eager[0], fused[0]) < 1e-5

    def test_a_cut_fit_of_two_seeds_goes_on(self, tmp_path, monkeypatch):
        data = make_set(n=16)
        training = dataclasses.replace(TRAINING, epochs=2, batch_size=16)
        detector = quick("EnergyCorrected", training=training, sampler=dataclasses.replace(SAMPLER, steps=1))
        whole = detector.fit_seeds(data, [1, 2])
        path = cut_off(detector, data, tmp_path, monkeypatch, stop=2)
        for a, b in zip(whole, detector.fit_seeds(data, [1, 2], checkpoint=path), strict=True):
            assert torch.equal(a.score(data), b.score(data))


def cut_off(detector, data, folder, monkeypatch, stop):
    """Fit two seeds until the program is interrupted in step number ``stop``; gives the checkpoint."""
    run, steps = FusedStep.run, []

    def interrupted(self, real):
        steps.append(0)
        if len(steps) == stop:
            raise KeyboardInterrupt
        return run(self, real)

    with monkeypatch.context() as patch:
        patch.setattr(FusedStep, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            detector.fit_seeds(data, [1, 2], checkpoint=folder / "fit.safetensors")
    return folder / "fit.safetensors"


@pytest.mark.gpu
class TestGPU:
    """On a GPU: recorded graphs, bfloat16, the paper's sizes."""

    @pytest.mark.parametrize("precision", ["float32", "tf32"])
    def test_an_epoch_agrees_with_the_eager_step(self, variant, precision):
        training, z, others = variant
        others = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in others.items()}
        # Adam's steps hardly depend on a gradient's size, so that large ones magnify rounding.
        training = dataclasses.replace(training, precision=precision, learning_rate=1e-4)
        (eager, _), (fused, _) = both(training, z.cuda(), **others)
        assert apart(eager[0], fused[0]) < (1e-4 if precision == "float32" else 1e-2)

    @pytest.mark.parametrize("classes", [10, 100, 1000, 1500])
    @pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-4), ("tf32", 1e-4), ("bfloat16", 1e-3)])
    def test_the_priors_gradient_for_any_number_of_classes(self, classes, precision, limit):
        from outfield.energy.engine.triton_operations import TritonOperations

        z, labels = rows(n=6000, width=128, classes=classes, device="cuda")
        prior = of.MixturePrior().fit(z, labels)
        model = of.CorrectedEnergy(of.MLP(hidden=64, depth=1).build(128, 0), 1.0, prior, 5.0).cuda()
        training = of.Training(precision=precision)
        operations = TritonOperations([model], training, PROJECTIONS["sphere"], 256)
        here = z[None, :256]
        copy = here.bfloat16() if precision == "bfloat16" else here
        at = Positions(here, copy, (here - copy.float()).to(copy.dtype) if precision == "bfloat16" else here)
        found = torch.empty_like(here)
        operations.prepare(at)
        operations.descend(torch.zeros(1, 256, 64, dtype=copy.dtype, device="cuda"), at, found)
        exact = prior.gradient(here[0].double()) / 5
        assert float((found[0] - exact).norm() / exact.norm()) < limit

    def test_the_papers_sizes_in_bfloat16(self):
        z, labels = rows(n=2048, width=512, classes=10, device="cuda")
        training = of.Training(epochs=1, engine="fused")
        found, _ = fit(training, z, labels, seeds=(0, 1), network=of.MLP(), sampler=of.Langevin())
        reference = dataclasses.replace(training, engine="eager", precision="float32")
        expected, _ = fit(reference, z, labels, seeds=(0, 1), network=of.MLP(), sampler=of.Langevin())
        for a, b in zip(expected, found, strict=True):
            assert 1e-8 < apart(a, b) < 1e-3

    def test_a_cut_fit_goes_on(self, tmp_path, monkeypatch):
        data = make_set(n=256)
        training = dataclasses.replace(TRAINING, epochs=2, start="replay", replay_size=64, learning_rate=1e-4)
        detector = quick("EnergyCorrected", training=training)
        whole = detector.fit_seeds(data, [1, 2])
        path = cut_off(detector, data, tmp_path, monkeypatch, stop=9)
        for a, b in zip(whole, detector.fit_seeds(data, [1, 2], checkpoint=path), strict=True):
            assert apart(a.score(data), b.score(data)) < 1e-4

    def test_without_triton_adam_waits_for_every_gradient(self, monkeypatch):
        monkeypatch.setattr(engine, "has_triton", lambda device: False)
        z, labels = rows(n=256, width=16, device="cuda")
        training = dataclasses.replace(TRAINING, learning_rate=1e-4)
        (eager, _), (fused, _) = both(training, z, labels, network=of.MLP(hidden=2048, depth=4))
        assert apart(eager[0], fused[0]) < 0.01  # two eager runs that differ by rounding: 0.001

    def test_seeds_together_are_the_seeds_alone(self):
        z, labels = rows(n=1024, width=64, device="cuda")
        together, _ = fit(TRAINING, z, labels, seeds=(3, 5, 8))
        for energies, seed in zip(together, (3, 5, 8), strict=True):
            alone, _ = fit(TRAINING, z, labels, seeds=(seed,))
            assert apart(energies, alone[0]) < 1e-4

    def test_without_triton_the_graph_is_of_pytorch_operations(self, monkeypatch):
        monkeypatch.setattr(engine, "has_triton", lambda device: False)
        z, labels = rows(device="cuda")
        for precision, limit in (("float32", 1e-4), ("bfloat16", 0.02)):
            (eager, _), (fused, _) = both(dataclasses.replace(TRAINING, precision=precision), z, labels)
            assert apart(eager[0], fused[0]) < limit


class TestChoice:
    def choose(self, model=None, sampler=SAMPLER, project=PROJECTIONS["relu_sphere"], **training):
        z, _ = rows()
        model = model or of.CorrectedEnergy(of.MLP(hidden=8, depth=1).build(24, 0), 0.5)
        return train(model, z, dataclasses.replace(TRAINING, **training), sampler, project, seed=0)

    @pytest.mark.parametrize(("what", "reason"), [
        ({"sampler": of.MetropolisLangevin(steps=2)}, "the sampler is MetropolisLangevin"),
        ({"project": lambda z: z}, "the projection is not"),
        ({"model": of.CorrectedEnergy(SineMLP(hidden=8, depth=1).build(24, 0))}, "the network is not"),
    ], ids=["sampler", "projection", "network"])  # fmt: skip
    def test_what_the_engine_cannot_do_is_left_to_the_eager_step(self, what, reason):
        assert len(self.choose(**what)) == 1
        with pytest.raises(of.InputError, match=reason):
            self.choose(**what, engine="fused")

    def test_a_nearly_singular_mixture_is_left_to_the_eager_step(self):
        z, labels = rows(n=40, width=24, classes=20)
        prior = of.MixturePrior(floor=1e-12).fit(z, labels)
        assert not prior.well_scaled(z)
        model = of.CorrectedEnergy(of.MLP(hidden=8, depth=1).build(24, 0), 0.5, prior)
        with pytest.raises(of.InputError, match="nearly singular"):
            train(model, z, dataclasses.replace(TRAINING, engine="fused"), SAMPLER, PROJECTIONS["sphere"], seed=0)

    def test_bfloat16_without_units_is_refused(self, monkeypatch):
        monkeypatch.setattr(engine, "has_bfloat16", lambda device: False)
        with pytest.raises(of.InputError, match="no units"):
            self.choose(precision="bfloat16")

    @pytest.mark.parametrize("layers", [
        [],
        [nn.ReLU(), nn.Linear(8, 1)],
        [nn.LeakyReLU(), nn.Linear(8, 2)],
        [nn.LeakyReLU(0.1), nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)],
        [nn.LeakyReLU(), nn.Linear(8, 1, bias=False)],
        [nn.LeakyReLU(), nn.Linear(8, 1).double()],
        [nn.LeakyReLU()],
        [nn.LeakyReLU(0.0), nn.Linear(8, 1)],
        [nn.LeakyReLU(-0.1), nn.Linear(8, 1)],
    ])  # fmt: skip
    def test_other_networks_are_left_to_the_eager_step(self, layers):
        model = of.CorrectedEnergy(nn.Sequential(nn.Linear(24, 8), *layers))
        with pytest.raises(of.InputError, match="the network is not"):
            self.choose(model, engine="fused")


class TestSeeds:
    def test_detectors_of_several_seeds(self, train_set, test_set):
        template = quick("EnergyCorrected")
        fitted = template.fit_seeds(train_set, [4, 9])
        assert [one.seed for one in fitted] == [4, 9]
        assert template.seed == 0
        with pytest.raises(of.NotFittedError):
            template.score(test_set)
        for one in fitted:
            alone = quick("EnergyCorrected", seed=one.seed).fit(train_set)
            assert torch.equal(one.score(test_set), alone.score(test_set))
            assert one.history_ == alone.history_

    def test_one_file_for_each_seed(self, train_set, test_set, tmp_path):
        one, two = quick("EBM").fit_seeds(train_set, range(2))
        one.save(tmp_path / "one.safetensors")
        assert torch.equal(of.load(tmp_path / "one.safetensors").score(test_set), one.score(test_set))
        assert one.fingerprint() != two.fingerprint()

    @pytest.mark.parametrize("seeds", [[], [1, 1], [-1], 4, ["one"], [0.5]])
    def test_seeds_that_make_no_sense(self, train_set, seeds):
        with pytest.raises(of.InputError, match="seed"):
            quick("EBM").fit_seeds(train_set, seeds)

    def test_seeds_may_be_numpys(self, train_set):
        assert [one.seed for one in quick("EBM").fit_seeds(train_set, np.arange(2))] == [0, 1]

    def test_fitted_detectors_share_nothing_and_hold_no_gradients(self, train_set, test_set):
        one, two = quick("EnergyCorrected").fit_seeds(train_set, [0, 1])
        before = two.score(test_set)
        one.prior_.partial_fit(torch.rand(9, 6), torch.zeros(9, dtype=torch.int64))
        for parameter in one.model_.network.parameters():
            assert parameter.grad is None
            assert parameter.untyped_storage().nbytes() == parameter.nbytes
            parameter.data.zero_()
        assert torch.equal(two.score(test_set), before)

    def test_divergence_names_the_seed(self, train_set):
        training = dataclasses.replace(quick("EBM").training, energy_limit=1e-6)
        with pytest.raises(of.DivergenceError, match="of seed 7"):
            quick("EBM", training=training).fit_seeds(train_set, [7, 8])


class TestOnDisk:
    @pytest.mark.parametrize("name", ["EBM", "EnergyCorrected"])
    @pytest.mark.parametrize("ending", ["safetensors", "parquet"])
    def test_a_fit_from_disk_is_the_fit_from_memory(self, name, ending, train_set, test_set, tmp_path):
        path = tmp_path / f"train.{ending}"
        if ending == "parquet":
            import pyarrow.parquet

            columns = {"features": list(train_set.features.numpy()), "label": train_set.labels.numpy()}
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        else:
            train_set.save(path)
        whole = quick(name).fit(train_set)
        streamed = quick(name).fit(of.open_features(path), checkpoint=tmp_path / "fit.safetensors")
        np.testing.assert_allclose(streamed.score(test_set), whole.score(test_set), rtol=1e-5)
        in_memory = quick(name).fit(train_set, checkpoint=tmp_path / "fit.safetensors")  # the same fit, so no step more
        assert torch.equal(in_memory.model_.network[0].weight, streamed.model_.network[0].weight)


def test_rows_in_double_are_left_to_the_eager_step():
    z = torch.rand(60, 4).double()
    model = of.CorrectedEnergy(of.MLP(hidden=8, depth=1).build(4, 0))
    reason = engine.obstacle(model, of.Langevin(), PROJECTIONS["sphere"], z)
    assert reason == "the rows are torch.float64, not float32"
