"""Without the extra's libraries, figures and page say what to install, and everything else works."""

import importlib.util
import subprocess
import sys

import pytest
from tests.helpers.records import small_run

import outfield as of
from outfield.report import canvas
from outfield.report.page import page, template


def test_the_page_without_jinja(monkeypatch):
    template.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(of.MissingExtraError, match=r"jinja2.*pip install 'outfield\[report\]'"):
        page(small_run())


def test_figures_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    spec = importlib.util.spec_from_file_location("outfield.report.another_canvas", canvas.__file__)
    with pytest.raises(of.MissingExtraError, match=r"matplotlib.*pip install 'outfield\[report\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_tables_need_neither():
    code = (
        "import sys; sys.modules['jinja2'] = sys.modules['matplotlib'] = sys.modules['torch'] = None\n"
        "from outfield.report.table import Table; print(Table('t', ['a'], [['b']]).markdown())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["|", "a", "|", "|", "---", "|", "|", "b", "|"], done.stderr
