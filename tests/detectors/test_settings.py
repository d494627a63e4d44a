"""Settings are stored by constructors and checked at one moment, when fit begins, for every setting of every detector."""

import decimal
import fractions
import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.helpers.samples import quick

import outfield as of
from outfield.config import (
    arguments,
    construct_from_text,
    from_plain,
    is_configurable,
    settings_of,
    shown,
    to_plain,
)
from outfield.detectors import LearnedEnergy

HUGE = 10**400


NEVER = [
    *(None, [], {}, 1j, float("nan"), object(), np.array([1.0, 2.0]), torch.ones(2), b"auto"),
    *(fractions.Fraction(1, 2), decimal.Decimal(1), np.longdouble(1), "no such thing", "9" * 5000),
]
"""What no setting of a detector takes."""
NUMBERS = [float("inf"), -float("inf"), True, HUGE, -HUGE, -1, "3", torch.tensor(3), np.array(3), np.bool_(True)]
"""What no number takes besides."""


def bad_values(default):
    if isinstance(default, int):
        return [*NEVER, *NUMBERS, 2.5, np.float64(2.0), 2.0**70]
    if isinstance(default, float):
        return [*NEVER, *NUMBERS, *([0, 0.0] if default else [])]
    if is_configurable(default):
        return [*NEVER, 3, 0.5, type(default), type(default).__name__]
    return [value for value in (*NEVER, 3, 0.5) if value is not None or default is not None]


SETTINGS = [(name, setting) for name, cls in of.DETECTORS.items() for setting in inspect.signature(cls).parameters]
every = pytest.mark.parametrize(("name", "setting"), SETTINGS)


@every
def test_a_bad_value_is_stored_and_refused_when_fit_begins(name, setting):
    default = arguments(of.DETECTORS[name]())[setting]
    for value in bad_values(default):
        detector = quick(name, **{setting: value})
        assert getattr(detector, setting) is value
        with pytest.raises(of.InputError, match=f"^{setting} is ") as error:
            detector.fit(None)  # before the data is looked at
        assert len(str(error.value)) < 500
        if isinstance(detector, LearnedEnergy) and setting != "seed":
            with pytest.raises(of.InputError, match=f"^{setting} is "):
                detector.fit_seeds(None, [0])
        if hasattr(detector, "partial_fit"):
            with pytest.raises(of.InputError, match=f"^{setting} is "):
                detector.partial_fit(None)


@pytest.mark.parametrize(
    ("name", "setting"), [(n, s) for n, s in SETTINGS if isinstance(getattr(quick(n), s), int | float)]
)
def test_numpy_s_numbers_are_numbers(name, setting, train_set, test_set, tmp_path):
    plain = quick(name)
    value = getattr(plain, setting)
    expected = plain.fit(train_set).score(test_set)
    kinds = [np.int64, np.uint8] if isinstance(value, int) else [np.float64, *([np.int32] if value % 1 == 0 else [])]
    for kind in kinds:
        detector = quick(name, **{setting: kind(value)}).fit(train_set)
        assert torch.equal(detector.score(test_set), expected)
        assert repr(detector) == repr(quick(name, **{setting: kind(value).item()}))
        detector.save(tmp_path / "d.safetensors")
        loaded = of.load(tmp_path / "d.safetensors")
        assert repr(loaded) == repr(detector)
        assert torch.equal(loaded.score(test_set), expected)
        assert loaded.fingerprint() == detector.fingerprint()


@pytest.mark.parametrize("name", of.DETECTORS)
def test_every_setting_has_a_default_and_is_stored(name):
    detector = of.DETECTORS[name]()
    for parameter in inspect.signature(type(detector)).parameters.values():
        assert parameter.default is not inspect.Parameter.empty
        assert getattr(detector, parameter.name) is parameter.default
        assert parameter.name in inspect.getdoc(type(detector)) or "Args" in type(detector).__mro__[1].__doc__


def test_the_paper_s_settings_are_the_defaults():
    assert settings_of(of.EnergyCorrected.paper()) == settings_of(of.EnergyCorrected())
    assert settings_of(of.EBM.paper()) == settings_of(of.EBM())
    other = of.EnergyCorrected.paper(prior_temperature=1000.0, seed=3)
    assert (other.prior_temperature, other.seed, of.EBM.paper(seed=4).seed) == (1000.0, 3, 4)


def test_the_quick_correction_s_settings():
    """One move has the twenty steps of the paper's chain together, and their noise."""
    ours, paper = of.EnergyCorrected.quick(seed=5), of.EnergyCorrected.paper().sampler
    differs = dict(settings_of(ours).items() - settings_of(of.EnergyCorrected(seed=5)).items())
    assert differs == {
        "prior_temperature": 2000.0, "network.hidden": 128, "network.depth": 2,
        "sampler.steps": 1, "sampler.step_size": (1.1e-5, 1.1e-5), "sampler.noise_std": (2.75e-3, 2.75e-3),
        "training.epochs": 5, "training.learning_rate": 3e-4, "training.start": "mixed", "training.average": 2,
    }  # fmt: skip
    other = of.EnergyCorrected.quick(prior_temperature=4000.0)
    assert (other.prior_temperature, other.seed) == (4000.0, 0)
    steps, noise = (torch.linspace(*ends, paper.steps) for ends in (paper.step_size, paper.noise_std))
    assert ours.sampler.step_size[0] == pytest.approx(float(steps.sum()), rel=1e-3)
    assert ours.sampler.noise_std[0] == pytest.approx(float(noise.square().sum().sqrt()), rel=2e-3)


def test_the_paper_s_defaults():
    """Section 4 and appendix A of the paper; T_prior is halved, as the docstring says."""
    assert settings_of(of.KNN()) == {"k": 50, "field": "features", "index": "exact", "probes": 0}
    assert settings_of(of.ODIN()) == {"temperature": 1000.0}
    assert settings_of(of.EnergyLogits()) == {"temperature": 1.0}
    assert settings_of(of.MSP()) == {}
    assert (
        settings_of(of.SSD()) == settings_of(of.GaussianMixture()) == {"floor": 1e-6, "ridge": 0.0, "field": "features"}
    )
    shared = {
        "network.hidden": 1024, "network.depth": 4, "network.slope": 0.2, "projection": "auto", "seed": 0, "field": "features",
        "training.epochs": 20, "training.batch_size": 256, "training.betas": (0.0, 0.999), "training.input_noise": 1e-3,
        "training.start": "auto", "training.replay_size": 10_000, "training.replay_fresh": 0.05,
        "training.energy_limit": 1e4, "training.engine": "auto", "training.precision": "auto", "training.average": 0,
    }  # fmt: skip
    assert settings_of(of.EnergyCorrected()) == {
        **shared, "prior.floor": 1e-6, "prior.ridge": 0.0, "prior_temperature": 500.0, "temperature": 1.0,
        "sampler.steps": 20, "sampler.step_size": (1e-6, 1e-7), "sampler.noise_std": (1e-3, 1e-4),
        "training.learning_rate": 5e-6, "training.l2": 10.0,
    }  # fmt: skip
    assert settings_of(of.EBM()) == {
        **shared, "temperature": 1e-2, "sampler.steps": 200, "sampler.step_size": (1e-2, 1e-3),
        "sampler.noise_std": (1e-2, 1e-3), "training.learning_rate": 5e-5, "training.l2": 0.1,
    }  # fmt: skip


def test_an_ebm_has_no_prior_to_start_from():
    with pytest.raises(of.InputError, match=r"^training\.start is 'prior'"):
        quick("EBM", training=of.Training(start="prior")).fit(None)


class TestText:
    """Settings as the command line gives them."""

    def test_deep_settings(self):
        made = construct_from_text(of.EnergyCorrected, {"prior.floor": "1e-3", "training.betas": "[0.5, 0.9]"})
        assert (made.prior.floor, made.training.betas) == (1e-3, (0.5, 0.9))
        made = construct_from_text(of.EnergyCorrected, {"sampler": "MetropolisLangevin", "sampler.steps": "3"})
        assert made.sampler == of.MetropolisLangevin(steps=3)
        made = construct_from_text(of.EBM, {"network": '{"type": "MLP", "hidden": 8}', "network.depth": "1"})
        assert made.network == of.MLP(hidden=8, depth=1)

    @pytest.mark.parametrize(("path", "text", "said"), [
        ("training.nope", "1", "Training has no setting nope"),
        ("training.epochs.x", "1", "Training has no setting epochs.x"),
        ("training.", "1", "Training has no setting "),
        ("nope", "1", "EBM has no setting nope"),
        ("nope.x", "1", "EBM has no setting nope.x"),
        ("seed.x", "1", "EBM has no setting seed.x"),
        ("", "1", "EBM has no setting"),
        ("x" * 5000, "1", "characters in all"),
        ("training.epochs", "-1", "epochs is -1"),
        ("training.epochs", "9" * 5000, "epochs is '9999"),
        ("training.epochs", "[" * 100_000, "epochs is"),
        ("training.epochs", "9" * 400, "epochs is 9999"),
        ("network.hidden", "-5", "hidden is -5"),
        ("network.hidden", "1e999", "hidden is inf"),
        ("network.hidden", "NaN", "hidden is nan"),
        ("network", '{"type": "Nonsense"}', "unknown setting of type 'Nonsense'"),
        ("network", '{"type": ["MLP"]}', "unknown setting of type"),
        ("network", '{"type": "SinMLP"}', "unknown setting of type 'SinMLP'; known: SineMLP, "),
        ("network", "{}", "unknown setting of type None"),
        ("network", '{"type": "MLP", "height": 3}', "MLP has no setting height"),
    ])  # fmt: skip
    def test_what_there_is_not_is_said(self, path, text, said):
        with pytest.raises(of.InputError, match=said.replace(".", r"\.")) as error:
            construct_from_text(of.EBM, {path: text})
        assert len(str(error.value)) < 500


def test_what_a_message_shows_is_short():
    assert shown(3) == "3"
    assert len(shown("x" * 10_000)) < 150
    with pytest.raises(of.InputError, match=r"k is 1000.*characters in all") as error:
        of.KNN(HUGE).fit(None)
    assert len(str(error.value)) < 200


def test_a_class_that_does_not_keep_its_arguments_is_told_so():
    class Forgetful(of.MSP):
        def __init__(self, colour="red"):
            pass

    with pytest.raises(of.InputError, match="Forgetful does not keep its argument colour"):
        Forgetful().fit(None)


@pytest.mark.parametrize("name", of.DETECTORS)
def test_settings_to_plain_data_and_back(name):
    detector = of.DETECTORS[name]()
    assert is_configurable(detector)
    plain = to_plain(detector)
    assert plain["type"] == name
    back = from_plain(plain)
    assert type(back) is type(detector)
    assert repr(settings_of(back)) == repr(settings_of(detector))


def test_a_detector_that_was_not_imported_yet():
    code = (
        "import outfield as of, sys; of.DETECTORS; from outfield.config import from_plain; "
        "assert 'outfield.detectors.distance.knn' not in sys.modules; "
        "assert from_plain({'type': 'KNN', 'k': 3}).k == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_text_that_names_a_detector():
    class Holder:
        def __init__(self, score=None):
            self.score = score

    assert isinstance(construct_from_text(Holder, {"score": "KNN"}).score, of.KNN)
    assert construct_from_text(Holder, {"score": '{"type": "KNN", "k": 7}'}).score.k == 7
