"""The three commands of the README, from a folder of photographs to a served verdict, run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.guards import NAMES, labelled, trained, write_folder

README = Path(__file__).parents[2] / "README.md"


def commands() -> list[str]:
    section = README.read_text().partition("## Guard a model, in three commands")[2]
    return re.findall(r"^    (\S.*)$", section.partition("\n## ")[0], flags=re.MULTILINE)


def test_three_commands_lead_to_a_verdict(tmp_path):
    found = commands()
    assert len(found) == 3
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("something else listens on port 8000 of this machine")
    shutil.copy(trained(tmp_path / "trained.safetensors"), tmp_path / "network.safetensors")
    write_folder(tmp_path / "photos" / "train", labelled(400, 5), size=32)
    shutil.copy(next((tmp_path / "photos" / "train" / NAMES[2]).iterdir()), tmp_path / "photo.jpg")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "outfield"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m outfield "$@"\n')
    program.chmod(0o755)
    script = "\n".join(["set -e", *found, "kill -TERM %1", "wait %1"])
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OUTFIELD_PROGRESS": "0"}
    done = subprocess.run(
        ["bash", "-m", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (verdict,), _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("[{") :])
    assert (verdict["file"], verdict["class_name"]) == ("photo.jpg", NAMES[2])
    assert not verdict["is_ood"]
    assert 0 < verdict["p_value"] <= 1
