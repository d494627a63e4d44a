"""Which detectors there are, how they are found, and what may not be registered."""

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield import config, detectors
from outfield.cli import app
from outfield.config import CONFIGURABLE, configurable
from outfield.detectors import DETECTORS, Detector, describe
from outfield.detectors.registry import Registry, register

SOURCES = Path(of.__file__).parent


class Halfway(Detector):
    """A detector that cannot score."""

    def _fit(self, train):
        pass


class Whole(Halfway):
    """score = 0."""

    def _score(self, batch):
        return batch["features"].new_zeros(len(batch["features"]))


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(DETECTORS, "_classes", dict(DETECTORS._classes))
    for name, cls in CONFIGURABLE.items():
        monkeypatch.setitem(CONFIGURABLE, name, cls)
    return DETECTORS


def another(name, base, module):
    return type(name, (base,), {"__module__": module, "__doc__": "score = 0."})


def test_every_registered_class_of_the_folder_is_found_in_alphabetical_order():
    assert list(DETECTORS) == sorted(DETECTORS, key=str.casefold)
    for name, cls in DETECTORS.items():
        assert getattr(detectors, name) is getattr(of, name) is cls
        assert cls.__name__ == name
        assert name in dir(detectors)
    marks = sum(file.read_text().count("\n@register\n") for file in SOURCES.glob("detectors/**/*.py"))
    assert marks == len(DETECTORS) == len(list(DETECTORS))


def test_names_are_known_without_importing_anything_heavy():
    script = (
        "import sys, types; package = types.ModuleType('outfield'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['outfield'] = package\n"
        "import outfield.detectors as detectors\n"
        "print(*detectors.DETECTORS, *dir(detectors), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(SOURCES)], capture_output=True, text=True, check=True)
    *names, torch_is_there = done.stdout.split()
    assert set(DETECTORS) <= set(names)
    assert torch_is_there == "False"


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = detectors.Nonsense
    assert "Nonsense" not in DETECTORS
    assert 3 not in DETECTORS


@pytest.mark.parametrize("name", ["Mahalonobis", "", None, 3, ["KNN"]])
def test_an_unknown_detector_lists_the_known(name):
    with pytest.raises(of.UnknownNameError, match="there are " + ", ".join(DETECTORS)):
        DETECTORS[name]


def test_a_user_s_own_detector_is_found(registry, train_set):
    mine = register(another("ZeroScore", Whole, "mine"))
    assert registry["ZeroScore"] is mine
    assert list(registry)[-1] == "ZeroScore"
    assert len(registry) == len(list(registry))
    assert float(mine().fit(train_set).score(train_set).sum()) == 0


@pytest.mark.parametrize("name", ["KNN", "ZeroScore"])
def test_a_name_that_is_taken_is_refused(registry, name):
    if name not in registry:
        register(another(name, Whole, "mine"))
    before = registry[name]
    with pytest.raises(of.InputError, match=f"{before.__module__} has a detector {name} already"):
        register(another(name, Whole, "theirs"))
    assert registry[name] is before


def test_a_name_of_the_folder_is_taken_before_its_file_is_imported(monkeypatch):
    fresh = Registry()
    with pytest.raises(of.InputError, match=r"outfield\.detectors\.distance\.knn has a detector KNN already"):
        fresh.add(another("KNN", Whole, "mine"))


def test_a_file_may_be_imported_again(registry):
    before = registry["MSP"]
    try:
        again = importlib.reload(sys.modules["outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen"])
        assert registry["MSP"] is again.MSP
        assert again.MSP is not before
    finally:
        for name in ("MSP", "ODIN", "EnergyLogits", "MaxLogit", "Entropy", "GEN"):
            setattr(again, name, getattr(of, name))


@pytest.mark.parametrize("what", [int, Whole(), "KNN", None, types.SimpleNamespace])
def test_only_detectors_are_registered(registry, what):
    with pytest.raises(of.InputError, match=r"subclass of outfield\.Detector"):
        register(what)


def test_a_class_that_cannot_score_is_refused(registry):
    with pytest.raises(of.InputError, match="Halfway cannot be registered: it lacks _score"):
        register(Halfway)
    assert "Halfway" not in registry


class TestConfigurable:
    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch):
        monkeypatch.setattr(config, "CONFIGURABLE", CONFIGURABLE)
        for name in ("MLP", "Fresh"):
            monkeypatch.setitem(CONFIGURABLE, name, CONFIGURABLE.get(name))
        monkeypatch.delitem(CONFIGURABLE, "Fresh")

    def test_a_name_that_is_taken_is_refused(self):
        with pytest.raises(of.InputError, match=r"MLP already, in outfield\.energy\.network"):
            configurable(another("MLP", object, "mine"))
        assert CONFIGURABLE["MLP"] is of.MLP

    def test_a_class_of_the_same_place_takes_over(self):
        configurable(another("Fresh", object, "mine"))
        again = configurable(another("Fresh", object, "mine"))
        assert CONFIGURABLE["Fresh"] is again


PAGE = Path(__file__).parents[2] / "docs" / "detectors.md"


def table_rows(text):
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}


def test_the_page_says_what_the_classes_say():
    """Rows that the page has are right. A detector that it does not have yet: outfield detectors --markdown prints the table."""
    now, page = table_rows(describe.detectors_markdown()), table_rows(PAGE.read_text(encoding="utf-8"))
    assert len(page) >= 8
    first = describe.detectors_markdown().partition("\n")[0]
    assert first == "| detector | what it is | reference | to fit | to score |"
    assert first in PAGE.read_text(encoding="utf-8").splitlines()
    assert page == {name: now[name] for name in page}
    assert list(page) == [name for name in now if name in page]


def test_every_detector_has_a_row_that_says_something():
    for entry in describe.entries():
        assert entry.name in of.DETECTORS
        assert len(entry.what) > 10
        assert "(" not in entry.what
    assert [entry.name for entry in describe.entries()] == list(of.DETECTORS)


@pytest.mark.parametrize("name", of.DETECTORS)
def test_what_is_listed_is_enough(name):
    (entry,) = [one for one in describe.entries() if one.name == name]
    train, test = make_set().tensors(), make_set(seed=1).tensors()
    to_fit, to_score = ({"features", *fields} & {*train} for fields in (entry.to_fit, entry.to_score))  # but stages
    fitted = quick(name).fit(of.FeatureSet(**{field: train[field] for field in to_fit}))
    fitted.score(of.FeatureSet(**{field: test[field] for field in to_score}))


def test_the_command_prints_the_table(capsys):
    app(["detectors", "--markdown"], standalone_mode=False)
    assert capsys.readouterr().out == describe.detectors_markdown()
