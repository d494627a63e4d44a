"""What it costs to install and to start: `python benchmarks/startup.py --repeats 5` prints the tables of docs/results/speed.md.

Each command runs as a process of its own, in turn with the others, so that a busy moment meets all of them. Processor time is
that of the process and its children, and says more than the clock where others work on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
TORCH = "import torch"
WORDS = re.compile(r"^[A-Za-z0-9._-]+")


def commands(folder: Path) -> dict[str, list[str]]:
    """What is run: name → words after the interpreter."""
    files = [str(folder / name) for name in ("ssd.safetensors", "new.npz", "scores.csv")]
    return {
        TORCH: ["-c", TORCH],
        "import outfield": ["-c", "import outfield"],
        "from outfield import SSD": ["-c", "from outfield import SSD"],
        "outfield --help": ["-m", "outfield", "--help"],
        "outfield score, 100 rows": ["-m", "outfield", "score", *files[:2], "-o", files[2]],
    }


def prepare(folder: Path) -> None:
    """A small detector, and something to score."""
    import torch

    import outfield as of

    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(200, 64, generator=generator), torch.arange(200) % 4
    of.SSD().fit(of.FeatureSet(features=features, labels=labels)).save(folder / "ssd.safetensors")
    of.FeatureSet(features=features[:100]).save(folder / "new.npz")


def run(words: list[str]) -> tuple[float, float]:
    """Processor time and clock time of one process, in seconds."""
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    running = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    _, status, used = os.wait4(running.pid, 0)
    if status:
        raise SystemExit(f"{words} failed: {running.stderr.read().decode() if running.stderr else ''}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def measure(repeats: int) -> dict[str, tuple[float, float]]:
    """Median processor time and clock time of each command."""
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        todo = commands(Path(name))
        rounds = [{title: run(words) for title, words in todo.items()} for _ in range(repeats + 1)][1:]
    return {
        title: (
            statistics.median(each[title][0] for each in rounds),
            statistics.median(each[title][1] for each in rounds),
        )
        for title in todo
    }


def needs(*requirements: str) -> set[str]:
    """The distributions that these lines ask for, directly or not, as far as they are installed here."""
    found: set[str] = set()
    todo = [*requirements]
    while todo:
        name = WORDS.match(todo.pop())[0].lower().replace("_", "-")  # type: ignore[index]
        if name not in found:
            with contextlib.suppress(metadata.PackageNotFoundError):
                todo += [line for line in metadata.requires(name) or [] if "extra ==" not in line]
                found.add(name)
    return found


def megabytes(names: Iterable[str]) -> float:
    """Of the files that distributions put on disk."""
    total = 0
    for name in names:
        for file in metadata.files(name) or []:
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.is_file() else 0
    return total / 1e6


def wheel_kilobytes() -> float:
    """Of the wheel, which is built in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / file, name)
        shutil.copytree(
            ROOT / "src" / "outfield", Path(name, "src", "outfield"), ignore=shutil.ignore_patterns("__pycache__")
        )
        code = "from setuptools.build_meta import build_wheel; build_wheel('.')"
        subprocess.run([sys.executable, "-c", code], cwd=name, check=True, capture_output=True)
        return sum(path.stat().st_size for path in Path(name).glob("*.whl")) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    found = measure(parser.parse_args().repeats)
    print("| | processor s | clock s | × import torch (processor) |\n| --- | --- | --- | --- |")
    for title, (processor, clock) in found.items():
        print(f"| `{title}` | {processor:.2f} | {clock:.2f} | {processor / found[TORCH][0]:.2f} |")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: lines for name, lines in project["optional-dependencies"].items() if name not in ("all", "dev", "bench")
    }
    core, torch = needs(*project["dependencies"]), needs("torch")
    print("\n| installed | MB beside PyTorch | distributions |\n| --- | --- | --- |")
    print(f"| core | {megabytes(core - torch):.0f} | {len(core - torch)} |")
    for title, lines in {**extras, "all": [line for each in extras.values() for line in each]}.items():
        more = needs(*lines) - core
        print(f"| `[{title}]` adds | {megabytes(more):.0f} | {len(more)} |")
    print(
        f"\nThe wheel of Outfield has {wheel_kilobytes():.0f} kB; PyTorch and what it needs {megabytes(torch):,.0f} MB."
    )


if __name__ == "__main__":
    main()
