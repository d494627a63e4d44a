"""Fixtures that tests of images share."""

from dataclasses import replace

import pytest

from outfield.images import DATASETS


@pytest.fixture
def small(monkeypatch):
    """Let a published set have so many images."""

    def shrink(name, **counts):
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], counts=counts))

    return shrink
