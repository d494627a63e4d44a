"""Statistics of classes, gathered in pieces by several workers: the same numbers as from the whole."""

from __future__ import annotations

import pytest
import torch

import outfield as of


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_workers_share_the_statistics(workers, offset):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1000, 150, generator=g, dtype=torch.float64) + offset
    labels = torch.randint(4, (1000,), generator=g) * 5
    before, threads = z.clone(), torch.get_num_threads()
    pieces = list(zip(z.split(64), labels.split(64), strict=True))
    found = of.ClassStatistics.over(pieces, workers)
    assert torch.get_num_threads() == threads
    assert torch.equal(z, before)
    means = torch.stack([z[labels == c].mean(0) for c in found.classes])
    within = z - means[labels // 5]
    assert found.classes.tolist() == [0, 5, 10, 15]
    assert found.counts.tolist() == labels.bincount()[::5].tolist()
    torch.testing.assert_close(found.means, means, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.scatter, within.T @ within, rtol=1e-9, atol=1e-7 if offset else 1e-10)
    again = of.ClassStatistics.over(iter(pieces), workers)
    assert torch.equal(again.scatter, found.scatter)


def test_an_error_in_a_worker_arrives_and_threads_are_as_before():
    def fails(z):
        raise of.InputError("on purpose")

    threads = torch.get_num_threads()
    pieces = ((torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(1000))
    with pytest.raises(of.InputError, match="on purpose"):
        of.ClassStatistics.over(pieces, 2, fails)
    assert torch.get_num_threads() == threads
    with pytest.raises(of.InputError, match="no pieces"):
        of.ClassStatistics.over([])


def test_an_outlier_as_first_row_costs_no_digits_that_count():
    """The fixed point of a class is its first rows' mean; far off, it cancels, by less than the floor."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 5, generator=g, dtype=torch.float64)
    z[0] += 1e6
    labels = torch.zeros(4000, dtype=torch.int64)
    found = of.ClassStatistics.over(zip(z.split(1), labels.split(1), strict=True))
    within = z - z.mean(0)
    expected = within.T @ within
    assert float((found.scatter - expected).abs().max()) < 1e-9 * float(expected.abs().max())
