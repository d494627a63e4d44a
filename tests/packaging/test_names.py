"""The public names: each is found when it is asked for, type checkers see the same ones, and nothing is loaded before."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import outfield as of

ROOT = Path(__file__).parent.parent.parent


def declared() -> dict[str, str]:
    """Public name → the module it comes from, as type checkers read it."""
    tree = ast.parse(Path(of.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_what_type_checkers_see_is_current():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "stubs.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run python tools/stubs.py:\n{done.stdout}{done.stderr}"


def test_what_type_checkers_see_is_what_there_is():
    homes = declared()
    assert sorted(homes) == sorted(of.__all__)
    for name, home in homes.items():
        assert getattr(of, name) is getattr(importlib.import_module(home), name)


def test_the_import_loads_neither_torch_nor_numpy():
    assert python('import sys, outfield; print(*({"torch", "numpy", "rich", "typer"} & set(sys.modules)))') == []


def test_warnings_are_seen_without_a_handler_and_other_messages_are_not():
    """In a program that knows nothing of logging, Python's handler of last resort writes the former to stderr."""
    code = 'import logging, outfield; log = logging.getLogger("outfield.guard"); log.info("size"); log.warning("too small")'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "too small\n")


def test_rooms_every_name_and_new_detectors_are_attributes():
    code = """
import outfield as of
print(of.errors.InputError is of.InputError, of.scores.__name__, of.files.__name__)
from outfield import *
print(all(name in globals() for name in of.__all__), hasattr(of, "Fresh"))
from outfield.detectors import register
@register
class Fresh(of.MSP): pass
print(of.Fresh is Fresh, "Fresh" in dir(of), set(of.__all__) <= set(dir(of)))
"""
    assert python(code) == ["True", "outfield.scores", "outfield.files", "True", "False", "True", "True", "True"]
