"""The core alone: everything on features works without the libraries of the extras, and what needs one names its extra."""

import subprocess
import sys

import numpy as np
import pytest
from tests.helpers.samples import make_set

BLOCKED = ("torchvision", "timm", "huggingface_hub", "PIL", "scipy", "matplotlib", "jinja2", "sklearn", "threadpoolctl",
           "pyarrow", "faiss", "lmdb", "pandas", "psutil", "triton", "pytest", "hypothesis", "pyod", "pytorch_ood",
           "onnx", "onnxruntime", "onnxscript", "mlflow")  # fmt: skip
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED!r}))\n"

LIBRARY = """
import outfield as of
train, test = of.FeatureSet.load("train.safetensors"), of.FeatureSet.load("test.npz")
for cls in (of.SSD, of.MSP, of.KNN, of.GaussianMixture):
    model = cls().fit(train)
    scores = model.score(test)
    model.save("model.safetensors")
    assert (of.load("model.safetensors").score(test) == scores).all()
    rule = of.Threshold.fit(model.score(train), source=model.fingerprint())
    assert rule.is_ood(scores).shape == scores.shape
assert 0 <= of.auroc(scores, scores + 1) <= 1
assert of.open_features("train.safetensors").shapes == train.shapes
names = set(of.__all__) - {"__version__"}
assert all(getattr(of, name) is not None for name in names), "every public name is there"
"""

PROGRAM = """
from outfield.cli import main
def run(*arguments):
    sys.argv = ["outfield", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (arguments, stop.code)
run("detectors")
run("fit", "SSD", "train.npz", "-o", "ssd.safetensors", "--held-out", "test.npz", "--threshold-out", "t.safetensors")
run("fit", "EBM", "train.npz", "-o", "e.safetensors", "--set", "training.epochs=1", "--set", "network.hidden=4", "--set",
    "sampler.steps=1")
run("score", "ssd.safetensors", "test.safetensors", "--threshold", "t.safetensors", "--out", "scores.csv")
run("score", "ssd.safetensors", "test.npz", "--out", "scores.npz")
run("evaluate", "ssd.safetensors", "e.safetensors", "--id", "test.npz", "--ood", "train.safetensors", "--csv", "r.csv")
"""

ERRORS = """
import pathlib, numpy, outfield as of
from outfield.cli import main
def refused(extra, *arguments):
    sys.argv, before = ["outfield", *arguments], sys.stderr
    import io
    sys.stderr = io.StringIO()
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    said, sys.stderr = sys.stderr.getvalue(), before
    assert code == 2 and f"pip install 'outfield[{extra}]'" in said and "Traceback" not in said, (arguments, code, said)
refused("tables", "fit", "SSD", "train.parquet", "-o", "x.safetensors")
refused("tables", "score", "ssd.safetensors", "test.npz", "-o", "scores.parquet")
refused("images", "extract", "timm:resnet18", "images.npz", "-o", "f.npz")
refused("images", "extract", "torchvision:resnet18", "images.npz", "-o", "f.npz")
refused("images", "train", "images.npz", "-o", "n.safetensors")
refused("report", "toy")
refused("report", "demo")
refused("report", "report", "ssd.safetensors")
assert not {"x.safetensors", "scores.parquet", "toy", "demo"} & {path.name for path in pathlib.Path().iterdir()}
import importlib
for extra in ("sklearn", "pyod", "pytorch-ood"):
    try:
        importlib.import_module(f"outfield.adapters.{extra.replace('-', '_')}")
        raise SystemExit("taken")
    except of.MissingExtraError as error:
        assert f"pip install 'outfield[{extra}]'" in str(error)
import outfield.adapters.openood
for use in (lambda: of.FeatureSet.load("train.parquet"), lambda: of.Backbone.open("timm:resnet18")):
    try:
        use()
        raise SystemExit("taken")
    except of.MissingExtraError as error:
        assert isinstance(error, ImportError) and "pip install" in str(error)
"""


@pytest.fixture
def folder(tmp_path):
    for name, data in (("train", make_set(n=120)), ("test", make_set(n=40, seed=1))):
        data.save(tmp_path / f"{name}.npz")
        data.save(tmp_path / f"{name}.safetensors")
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (8, 16, 16, 3), np.uint8), labels=np.arange(8) % 2)
    return tmp_path


def test_without_any_extra(folder):
    code = BLOCK + PROGRAM + ERRORS + LIBRARY  # the program first: it must import by itself what it needs
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
