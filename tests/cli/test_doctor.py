"""outfield doctor, and which commands the help shows first."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from tests.helpers.program import outfield

from outfield.version import __version__


def test_it_names_versions_and_what_is_installed():
    said = outfield("doctor").stdout
    assert f"Outfield {__version__}" in said
    assert f"PyTorch {importlib.metadata.version('torch')}" in said
    assert f"timm {importlib.metadata.version('timm')}" in said
    assert "missing" not in said  # all extras are installed where the tests run


def test_what_is_missing_and_how_to_install_it(monkeypatch, capsys):
    found = importlib.metadata.version

    def version(name):
        if name == "timm":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("COLUMNS", "200")
    from outfield.cli import app

    app(["doctor"], standalone_mode=False)
    assert "missing timm: pip install 'outfield[images]'" in capsys.readouterr().out


def test_every_extra_that_a_user_installs_is_told_of():
    from outfield.cli.commands.doctor import libraries

    groups = {"all", "dev", "docs", "bench"}
    declared = set(importlib.metadata.metadata("outfield").get_all("Provides-Extra"))
    assert set(libraries()) == declared - groups


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_six_commands_come_first(option):
    said = outfield(option).stdout
    first = said.partition("Start here")[2].partition("More commands")[0]
    named = re.findall(r"^\W+(\w+)  ", first, re.MULTILINE)
    assert named == ["guard", "serve", "drift", "benchmark", "demo", "doctor"]
