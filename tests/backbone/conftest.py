"""Fixtures that tests of networks share."""

from pathlib import Path

import numpy as np
import pytest
from tests.helpers.exported import Net, exported
from tests.helpers.networks import Lookup, seeded


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    """A file of torch.export that holds a small network."""
    return exported(seeded(Net), tmp_path_factory.mktemp("net") / "net.pt2")


@pytest.fixture(scope="session")
def five_images() -> Lookup:
    """Images of noise as that network takes them."""
    return Lookup(np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8))
