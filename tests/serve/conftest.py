"""Fixtures of the service's tests."""

from __future__ import annotations

import pytest
from tests.helpers.service import guard_files


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of two guards, ``fused`` and ``ssd``."""
    return guard_files(tmp_path_factory.mktemp("guards"))
