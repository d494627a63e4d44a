"""Files with bytes changed, added and taken away at random: an error of ours, or a right result."""

import pytest
from tests.fuzz.cases import run_case


@pytest.mark.parametrize("hundred", range(1, 5))
def test_changed_files_are_refused_or_read_right(hundred):
    """More of the fuzzer's damaged files than its own test tries."""
    seeds = range(100 * hundred, 100 * hundred + 100)
    assert not [failure for seed in seeds if (failure := run_case("damaged", seed)) is not None]
