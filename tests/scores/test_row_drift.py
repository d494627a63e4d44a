"""RowDrift: which column has changed, since when; and how seldom it says so where none has."""

import numpy as np
import pytest

import outfield as of
from outfield.errors import FileFormatError, InputError, TooFewSamplesError


def table(rng, rows, factor=1.0):
    return {
        "income": factor * rng.lognormal(10, 0.33, rows),
        "age": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(18, 80, rows)),
        "town": rng.choice(["Oslo", "Rome", "Bonn"], rows, p=[0.6, 0.3, 0.1]),
    }


def test_incomes_that_rise_by_15_percent_are_found_within_2000_rows():
    """Such as a test of Kolmogorov and Smirnov gives p = 1e-24 for, at the end; it may not be looked at before."""
    errors = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        drift = of.RowDrift(table(rng, 2000))
        assert not drift.update(table(rng, 1000))
        assert drift.update(table(rng, 2000, 1.15))
        told = drift.summary()
        assert told["column"] == "income"
        assert 1000 < told["alarm_at"] <= 3000
        assert f"DRIFT in income since about row {told['since']:,}, found after" in repr(drift)
        errors.append(abs(told["since"] - 1001))
        assert of.RowDrift(table(rng, 2000)).update(table(rng, 2000, 1.15))  # from the first row on
    assert np.median(errors) < 150


def test_false_alarms_are_as_rare_as_promised():
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        drift = of.RowDrift(table(rng, 100), alpha=0.1, seed=seed)
        alarms += drift.update(table(rng, 1000))
    assert alarms <= 29  # with probability 0.1 at most each, more than that in under 0.5 % of such trials


def test_other_changes():
    rng = np.random.default_rng(0)
    reference, changes = table(rng, 1000), {"age": np.full(300, np.nan), "town": np.full(300, "Paris")}
    for name, values in changes.items():
        drift = of.RowDrift(reference)
        assert drift.update({**table(rng, 300), name: values})
        assert drift.summary()["column"] == name
    features = of.RowDrift(rng.standard_normal((500, 8)))
    rows = rng.standard_normal((400, 8))
    rows[:, 3] *= 3
    assert features.update(rows)
    assert features.summary()["column"] == "feature 3"


def test_it_goes_on_from_its_file(tmp_path):
    rng = np.random.default_rng(0)
    drift, rows = of.RowDrift(table(rng, 300)), table(rng, 100)
    whole = drift.summary()
    drift.save(tmp_path / "rows.safetensors")
    again = of.RowDrift.load(tmp_path / "rows.safetensors")
    assert again.summary() == whole
    assert again.same_reference(drift)
    assert not again.same_reference(of.RowDrift(table(rng, 300)))
    drift.update(rows)
    again.update(rows)
    assert again.summary() == drift.summary() != whole
    of.Threshold.fit(range(100)).save(tmp_path / "other.safetensors")
    with pytest.raises(FileFormatError):
        of.RowDrift.load(tmp_path / "other.safetensors")


def test_what_cannot_be_compared_is_refused_and_changes_nothing():
    rng = np.random.default_rng(0)
    reference = table(rng, 100)
    drift = of.RowDrift(reference)
    before = drift.summary()
    for rows, said in (
        ({"income": [1.0]}, "no column 'age', 'town'"),
        ({**table(rng, 2), "income": ["much", "more"]}, "column 'income' holds"),
        ({**table(rng, 2), "age": [1.0]}, "equal length"),
        (table(rng, 0), "no rows"),
        (np.zeros(3), "features"),
        (3, "rows"),
    ):
        with pytest.raises(InputError, match=said):
            drift.update(rows)
    assert drift.summary() == before
    with pytest.raises(TooFewSamplesError, match="reference has 39 rows"):
        of.RowDrift(table(rng, 39))
    with pytest.raises(
        InputError, match=r"no column 'feature 0', .*, 'feature 7' and 22 more, which the reference has"
    ):
        of.RowDrift(rng.normal(size=(50, 30))).update(reference)
    with pytest.raises(InputError, match="alpha"):
        of.RowDrift(reference, alpha=0)


def test_a_text_among_numbers_is_named_by_its_row():
    watch = of.RowDrift({"hue": np.linspace(0, 1, 40)})
    with pytest.raises(of.InputError, match="row 3: column 'hue' holds 'two', which is no number"):
        watch.update({"hue": np.array(["0.67", None, "two", "1"], object)})
