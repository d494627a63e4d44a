"""docs/serve.md: its commands and its code run as they are written, against a service at another port."""

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import httpx
from tests.helpers.guards import labelled, noise
from tests.helpers.service import Program, guard_files, png

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


def test_commands_and_code_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guard_files(tmp_path)["fused"].rename("my.guard")
    Path("photo.png").write_bytes(png(labelled(1, 5).images[0]))
    Path("other.png").write_bytes(png(noise(1)[0]))
    serve, *curls = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    with Program(tmp_path, *shlex.split(serve)[2:]) as program:
        place = str(httpx.URL(program.address).netloc, "ascii")
        for line in curls:
            quietly = ["--silent", "--show-error", "--max-time", "20"]
            command = [*shlex.split(line.replace("127.0.0.1:8000", place)), *quietly]
            done = subprocess.run(command, capture_output=True, timeout=120, check=True)
            verdicts = json.loads(done.stdout)
            assert [one["is_ood"] for one in verdicts] == [False, True][: len(verdicts)]
        (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code.replace("127.0.0.1:8000", place), {})
        assert said.getvalue().startswith("[False]")
        named = set(re.findall(r"`(?:GET |POST )?(/(?:v1|v2|metrics|openapi)[\w./]*)", PAGE))
        known = {path.replace("{name}", "NAME") for path in httpx.get(f"{program.address}openapi.json").json()["paths"]}
        assert {path.rstrip("/") for path in named} - {"/openapi.json"} <= known
        metrics = httpx.get(f"{program.address}metrics").text
        for name in re.findall(r"`(outfield_\w+|request_predict_seconds)", PAGE):
            assert name in metrics


def test_options_of_the_page_are_those_of_the_command():
    from tests.helpers.program import outfield

    told = outfield("serve", "--help").stdout
    for option in set(re.findall(r"`(--[\w-]+)", PAGE)) - {"--json"}:
        assert option in told
