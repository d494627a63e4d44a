"""The fixed part of the fuzzer: the same inputs in every run. ``make fuzz`` tries others, by the thousand."""

import pytest
from tests.fuzz.cases import SURFACES, run_case

CASES = {"damaged": 425}
"""How many of a surface; 25 where nothing is said."""


@pytest.mark.parametrize("surface", SURFACES)
def test_only_errors_of_ours_and_right_answers(surface):
    failures = {
        seed: failure for seed in range(CASES.get(surface, 25)) if (failure := run_case(surface, seed)) is not None
    }
    assert not failures, "\n\n".join(f"{surface} {seed}: {failure}" for seed, failure in failures.items())


def test_a_case_tells_a_foreign_error_a_wrong_answer_and_a_leftover(monkeypatch):
    """The fuzzer itself can fail."""

    def foreign(rng, folder):
        raise TypeError("not ours")

    def wrong(rng, folder):
        assert 1 == 2

    def leftover(rng, folder):
        (folder / ".x.tmp").write_text("x")

    for surface in (foreign, wrong, leftover):
        monkeypatch.setitem(SURFACES, surface.__name__, surface)
        assert run_case(surface.__name__, 0)
