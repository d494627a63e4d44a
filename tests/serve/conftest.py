"""Fixtures of the service's tests."""

import pytest


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of two guards, ``fused`` and ``ssd``."""
    from tests.helpers.service import guard_files  # needs the extra, which a machine with a GPU may lack

    return guard_files(tmp_path_factory.mktemp("guards"))
