"""``make test-gpu`` on a machine that has torch and pytest, but not every extra."""

import os
import subprocess
import sys
from pathlib import Path

LACKS = ("mlflow", "pyod", "ray", "uvicorn", "fastapi", "pandas", "pyarrow", "onnx", "matplotlib", "jinja2")
CODE = f"""
import sys
sys.modules.update(dict.fromkeys({LACKS!r}))
import pytest
sys.exit(pytest.main(["tests", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_tests_of_the_gpu_are_collected_without_the_extras():
    environment = {**os.environ, "OUTFIELD_TEST_GPU": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("tests/")}
    assert {"tests/energy/test_engine.py", "tests/detectors/test_contract.py"} <= found
