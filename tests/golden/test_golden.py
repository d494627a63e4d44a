"""Scores and files are what they were in version 0.1.0: see freeze.py."""

from pathlib import Path

import numpy as np
import pytest
from tests.golden import freeze

KEPT = Path(__file__).parent / "kept"


def compare(found: dict[str, np.ndarray], kept: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(kept)
    for name, values in kept.items():
        # Another processor rounds otherwise, by parts of the numbers that a score is the small difference of.
        close = 1e-4 * float(np.std(values[np.isfinite(values)]))
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=close, err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_every_detector_scores_as_before():
    compare(freeze.scores(), dict(np.load(KEPT / "scores.npz")))


def test_files_of_every_kind_say_what_they_said():
    kept = dict(np.load(KEPT / "judged.npz"))
    compare(freeze.judged(KEPT / "files"), kept)
