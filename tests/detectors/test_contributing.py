"""The detector shown in CONTRIBUTING.md passes the contract, as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IMPORTS = """
from torch import Tensor
from outfield.detectors.base import Batch, Detector, register
from outfield.features.set import FeatureSet
from outfield.energy.projection import normalise
"""


def test_the_example_detector_passes_the_contract(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    example = text.split("```python")[1].split("```")[0]
    (tmp_path / "contributed.py").write_text(IMPORTS + example)
    command = [sys.executable, "-m", "pytest", "-p", "contributed", "-p", "no:cacheprovider", "-k", "MeanDistance"]
    done = subprocess.run(
        [*command, str(HERE / "test_contract.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") >= 25
