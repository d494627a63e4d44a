"""What is installed: a small wheel that holds every file of the package, and five libraries."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer

import outfield
from outfield.cli import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "outfield"
CORE = {"torch", "numpy", "safetensors", "typer", "rich"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")  # building leaves folders beside the sources
    for name in ("pyproject.toml", "PYPI.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(PACKAGE, folder / "src" / "outfield", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size < 720_000


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert inside == {str(path.relative_to(PACKAGE.parent)) for path in files}


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_the_core_needs_five_libraries(metadata):
    needs = re.findall(r"^Requires-Dist: ([\w.-]+)(?:\[.*\])?([^\n]*)", metadata, re.M)
    assert {name for name, rest in needs if "extra ==" not in rest} == CORE


def test_what_a_package_index_shows_leads_nowhere_wrong(metadata):
    """A page of an index has no files beside it: no picture, and no link that is relative; and its names exist."""
    text = metadata.partition("\n\n")[2]
    assert "## Guard a model, in three commands" in text
    links = re.findall(r"!?\[[^\]]*\]\(([^)]*)\)", text)
    assert all(link.startswith("https://") for link in links)
    known = typer.main.get_command(app).commands
    assert {*re.findall(r"^    outfield (\w+)", text, re.M)} <= set(known)
    for name in re.findall(r"\bof\.(\w+)", text):
        assert name in outfield.__all__


def test_all_is_every_extra_that_a_user_may_want():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    # Whoever wants the adapters has their libraries; ray, for a cluster, is a hundred megabytes that one machine does not need.
    left_out = {"all", "dev", "bench", "docs", "pyod", "pytorch-ood", "mlflow", "ray"}
    assert set(everything.removeprefix("outfield[").removesuffix("]").split(",")) == set(extras) - left_out


def test_every_library_that_is_imported_belongs_to_an_extra():
    """The names that the rooms ask for are those that pyproject.toml installs."""
    installed_by = {"timm": "images", "huggingface_hub": "images", "torchvision": "images", "PIL": "images", "scipy": "images",
                    "transformers": "hf", "tokenizers": "hf", "onnx": "onnx", "onnxruntime": "onnx", "mlflow": "mlflow",
                    "lmdb": "lsun", "pyarrow": "tables", "pandas": "tables", "faiss": "faiss", "ray": "ray", "fsspec": "ray",
                    "threadpoolctl": "report", "matplotlib": "report", "jinja2": "report", "opentelemetry": "otel"}  # fmt: skip
    asked = {}
    for file in PACKAGE.rglob("*.py"):
        for name, extra in re.findall(r'library\(\s*"([\w.]+)",\s*(?:extra=)?"([\w-]+)"', file.read_text()):
            if name != "json":
                asked.setdefault(name.partition(".")[0], set()).add(extra)
    assert asked
    assert asked.pop("pyod") == {"pyod"}
    assert asked.pop("pytorch_ood") == {"pytorch-ood"}
    assert asked.pop("sklearn") == {"report", "sklearn", "pyod"}  # a benchmark's picture of features, and two adapters
    assert {name: {installed_by[name]} for name in asked} == asked


def test_libraries_stay_in_their_rooms():
    done = subprocess.run([sys.executable, ROOT / "tools" / "rooms.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_make_leaves_no_build_folder_beside_the_demo(tmp_path):
    assert not re.search(r"(?<!editable )\./packages/outfield-demo", (ROOT / "Makefile").read_text())
    folder = tmp_path / "demo"
    data = shutil.ignore_patterns("*.npz", "*.safetensors", "*.guard", "*.egg-info", "build")
    shutil.copytree(ROOT / "packages" / "outfield-demo", folder, ignore=data)
    code = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, timeout=300)
    assert not (folder / "build").exists()
