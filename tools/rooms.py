"""Checks that heavy libraries stay in their rooms, so that the core installs and starts without them.

Everywhere: the standard library, torch, numpy, safetensors and Outfield itself. Any other library is imported in the rooms
that are listed here, and, but for rooms that are nothing without it, inside the function that needs it. Run by ``make lint``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CORE = {*sys.stdlib_module_names, "torch", "numpy", "safetensors", "outfield"}
ROOMS = {
    "timm": ("backbone", "classifier"),
    "transformers": ("backbone",),
    "tokenizers": ("guard.texts",),
    "onnx": ("backbone", "adapters"),
    "onnxruntime": ("backbone", "adapters"),
    "huggingface_hub": ("backbone",),
    "torchvision": ("images", "backbone", "classifier", "guard.boxes"),
    "PIL": ("images", "backbone", "classifier"),
    "scipy": ("images",),
    "lmdb": ("images",),
    "pyarrow": ("features.table_files",),
    "ray": ("scale",),
    "fsspec": ("scale",),
    "faiss": ("detectors.distance.knn", "detectors.distance.neighbours"),
    "triton": ("energy.engine",),
    "pandas": ("benchmark.result", "guard.verdict"),
    "sklearn": ("benchmark", "adapters"),
    "threadpoolctl": ("benchmark",),
    "pyod": ("adapters",),
    "pytorch_ood": ("adapters",),
    "onnxscript": ("adapters",),
    "mlflow": ("adapters",),
    "matplotlib": ("report",),
    "jinja2": ("report",),
    "fastapi": ("serve",),
    "starlette": ("serve",),
    "pydantic": ("serve",),
    "uvicorn": ("serve",),
    "python_multipart": ("serve",),
    "prometheus_client": ("serve",),
    "opentelemetry": ("serve",),
    "typer": ("cli",),
    "rich": ("cli", "progress"),
}
AT_THE_TOP = {
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "triton",
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "python_multipart",
    "prometheus_client",
}
"""Libraries whose rooms nobody enters without them."""


def imports(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Every library that a file imports, by statement or by ``library("NAME", …)``: name, line, whether at the top level."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "library" and node.args:
            names = [str(getattr(node.args[0], "value", "?"))]
        for name in names:
            yield name.partition(".")[0], getattr(node, "lineno", 0), id(node) in top


def broken(package: Path) -> Iterator[str]:
    """One line for every import that is out of its room."""
    for file in sorted(package.rglob("*.py")):
        room = ".".join(file.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for name, line, top in imports(ast.parse(file.read_bytes())):
            if name in CORE:
                continue
            place = f"{file}:{line}: {name}"
            if not any(room == home or room.startswith(f"{home}.") for home in ROOMS.get(name, ())):
                yield f"{place} belongs in {' or '.join(ROOMS.get(name, ())) or 'no room; give it one in tools/rooms.py'}"
            elif top and name not in AT_THE_TOP:
                yield f"{place} is to be imported where it is used, with outfield.extras.library"


def main() -> int:
    """Print what is out of its room; 1 if there is anything."""
    found = list(broken(Path(__file__).parent.parent / "src" / "outfield"))
    print("\n".join(found) or "every library is in its room")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
