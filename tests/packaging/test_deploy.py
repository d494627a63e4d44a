"""The files of deploy/: valid, about things that exist, and built where a Docker engine runs."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.guards import ssd_guard
from tests.helpers.service import running

from outfield.cli import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "outfield.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]


def expressions():
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in ALERTS)
    yield BOARD["templating"]["list"][0]["query"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each metric of a running service with its labels."""
    found, folder = {"up": {"job"}}, tmp_path_factory.mktemp("guards")
    ssd_guard().save(folder / "ssd.guard")
    with running(folder / "ssd.guard") as service:
        service.client.get("/v2/health/live")
        text = service.client.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", [*expressions()])
def test_metrics_and_labels_that_are_named_exist(expression, exported):
    named = set(re.findall(r"\b(?:outfield|request)_\w+|\bup\b", expression))
    assert named
    assert named <= set(exported)
    labels = {name for text in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)(?:=|!)", text)}
    labels |= {name for text in re.findall(r"by \(([^)]*)\)", expression) for name in re.split(r",\s*", text)}
    assert labels <= set().union(*(exported[name] for name in named))


def test_every_panel_and_alert_is_told_apart():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))  # no panel lies over another
    assert max(x for x, _ in cells) < 24
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in ALERTS)


def test_compose_mounts_files_that_are_there_and_opens_ports_to_this_machine_alone():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["outfield"]["build"]["args"] == {"TORCH_INDEX": "${TORCH_INDEX:-}"}
    for service in services.values():
        for volume in service["volumes"]:
            place = volume.partition(":")[0]
            assert not place.startswith(".") or (DEPLOY / place).is_file(), place
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    (target,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    assert target.partition(":")[0] in services
    source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {source["uid"]}


def options_of_serve():
    serve = typer.main.get_command(app).commands["serve"]
    return {name for option in serve.params for name in (*option.opts, *option.secondary_opts)}


def test_the_image_copies_what_is_there_runs_as_a_user_and_starts_with_options_that_exist():
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    let_in = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    for kind, words in steps:
        if kind == "COPY":
            *sources, _ = shlex.split(words)
            assert all((ROOT / source).exists() and source in let_in for source in sources)
    assert steps[0][0] == "FROM"
    assert ["USER", "outfield"] in steps
    started = json.loads(dict(map(tuple, steps))["CMD"])
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["outfield"]["command"]
    for words in (started, compose):
        assert {word for word in words if word.startswith("--")} <= options_of_serve()


@pytest.mark.skipif(
    shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0,
    reason="no Docker engine runs here",
)
def test_the_image_builds():
    subprocess.run(["docker", "build", "-f", "deploy/Dockerfile", "-t", "outfield:test", "."], cwd=ROOT, check=True)


def test_manifests_of_the_page_name_options_and_addresses_that_exist():
    page = (ROOT / "docs" / "production.md").read_text()
    for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        assert yaml.safe_load(block)
        assert set(re.findall(r'"(--[\w-]+)"', block)) <= options_of_serve()
        assert set(re.findall(r"path: (\S+?),", block)) <= {"/v2/health/ready", "/v2/health/live"}
    assert {*re.findall(r"`(deploy/[\w./]+)`", page)} <= {str(path.relative_to(ROOT)) for path in DEPLOY.rglob("*")}
