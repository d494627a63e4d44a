"""The detectors in words: what the command line prints and docs/detectors.md holds is what the classes say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.cli import app
from outfield.detectors import describe

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


@pytest.mark.parametrize(
    ("name", "reference", "to_fit", "to_score"),
    [
        ("MSP", "Hendrycks & Gimpel 2017", (), ("logits",)),
        ("ODIN", "Liang et al. 2018", (), ("odin_logits",)),
        ("KNN", "Sun et al. 2022", ("features",), ("features",)),
        ("SSD", "Lee et al. 2018, Sehwag et al. 2021", ("features", "labels"), ("features",)),
        ("EBM", 'Lafon, Rambour & Thome 2022, "ours without mixture"', ("features",), ("features",)),
        ("EnergyCorrected", "Lafon, Rambour & Thome 2022", ("features", "labels"), ("features",)),
    ],
)
def test_what_it_says(name, reference, to_fit, to_score):
    (entry,) = [one for one in describe.entries() if one.name == name]
    assert (entry.reference, entry.to_fit, entry.to_score) == (reference, to_fit, to_score)


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
