"""Tests that need a GPU: skipped where there is none, and run alone by ``make test-gpu``."""

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
"""For tests that are the same on both."""
