"""The page in a real browser, where there is one: sorting, and names that stay in sight.

A script is added to the page that does what a reader does and writes down what came of it; Chromium runs it and prints the page.
"""

import html
import json
import re
import shutil
import subprocess

import pytest
from tests.helpers.benchmark_samples import make_run

from outfield.benchmark import Protocol, summarise
from outfield.report import Table
from outfield.report.page import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET = ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--dump-dom")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

SCRIPT = """
const table = document.querySelector("table.headline");
const names = () => [...table.tBodies].map(body => body.rows[0].cells[0].textContent);
const heads = [...table.querySelectorAll("th[data-column]")];
const found = { before: names(), orders: {} };
for (const head of heads) {
  const button = head.querySelector("button");
  for (const click of ["first", "second"]) {
    button.click();
    found.orders[`${head.dataset.column} ${click}`] = [head.getAttribute("aria-sort"), names()];
  }
}
found.sorted = table.querySelectorAll("[aria-sort]").length;
const button = heads[0].querySelector("button");
button.focus();
found.focus = document.activeElement === button;
const other = document.querySelector("#table-1 table");
found.groups = [1, 2].map(() => {
  other.querySelectorAll("thead button")[1].click();
  return [...other.tBodies].map(body => [...body.rows].map(row => row.textContent.trim().split(/\\s+/).join(" ")));
});

const box = table.closest(".table");
box.scrollLeft = 150;
const cell = table.tBodies[0].rows[0].cells[0];
found.scrolled = box.scrollLeft;
found.shift = cell.getBoundingClientRect().left - box.getBoundingClientRect().left;
found.grounds = ["light", "dark"].map(theme => {
  document.documentElement.dataset.theme = theme;
  return getComputedStyle(cell).backgroundColor;
});
const wide = [...document.querySelectorAll(".panel svg")].map(svg => svg.getBoundingClientRect().width);
found.widest = Math.max(...wide);
found.over = [...document.querySelectorAll("th, td, li, p, h1, h2, figcaption, summary")]
  .filter(node => node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0).map(node => node.className || node.tagName);
found.overflow = document.documentElement.scrollWidth - innerWidth;
document.body.dataset.found = JSON.stringify(found);
"""


def browse(text: str, folder, width: int) -> dict:
    path = folder / "page.html"
    path.write_text(text.replace("</body>", f"<script>{SCRIPT}</script></body>"))
    command = [CHROMIUM, *FLAGS, *QUIET, f"--user-data-dir={folder}/profile", f"--window-size={width},900"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(html.unescape(re.search(r'<body data-found="([^"]*)"', done.stdout)[1]))


@pytest.fixture(scope="module")
def run():
    return make_run(detectors=("MSP", "ODIN", "SSD", "EBM", "EnergyCorrected"))


@pytest.fixture(scope="module")
def found(run, tmp_path_factory):
    rows = [["b", "this run", "9"], ["", "paper", "8"], ["a", "this run", "10"], ["c", "this run", ""]]
    table = Table("some table", ["name", "", "value"], rows, left=2)
    return browse(page(run, [table]), tmp_path_factory.mktemp("browser"), 600)


def test_the_first_click_puts_the_best_first_and_the_second_the_worst(run, found):
    means = summarise(run.records, run.protocol.levels)
    columns = [(level, metric) for level in run.protocol.levels for metric in ("fpr95", "auroc")]
    for place, (level, metric) in enumerate(columns, 1):
        best = sorted(means, key=lambda name: getattr(means[name][level], metric).mean, reverse=metric == "auroc")
        order, names = found["orders"][f"{place} first"]
        assert names == best
        assert order == ("descending" if metric == "auroc" else "ascending")
        assert found["orders"][f"{place} second"][1] == best[::-1]
    assert found["orders"]["0 first"] == ["ascending", sorted(found["before"], key=str.lower)]
    assert found["sorted"] == 1
    assert found["focus"]


def test_rows_that_belong_together_stay_together_and_empty_cells_come_last(found):
    b, a, c = ["b this run 9", "paper 8"], ["a this run 10"], ["c this run"]
    assert found["groups"] == [[b, a, c], [a, b, c]]


def test_names_stay_in_sight_when_a_table_is_scrolled(found):
    assert found["scrolled"] > 100
    assert abs(found["shift"]) < 2
    light, dark = found["grounds"]
    assert light != dark
    opaque = re.compile(r"rgb\([\d, ]+\)")  # rgba would let numbers through
    assert all(map(opaque.fullmatch, found["grounds"]))
    assert found["overflow"] <= 0, "the whole page scrolls sideways"


def test_a_very_long_name_pushes_nothing_out_of_its_place(tmp_path):
    name = "a" * 300
    protocol = Protocol(name, near=(name + "b",), mid=(), far=())
    run = make_run(protocol, (name,), (name, name + "c"), n=20)
    table = [Table(f"{name}: t", ["name", "", "v"], [[name, "", "1"], ["b", "", "2"]], left=2)]
    for width in (600, 1280):
        (tmp_path / str(width)).mkdir()
        found = browse(page(run, table), tmp_path / str(width), width)
        assert found["overflow"] <= 0
        assert found["over"] == []


@pytest.mark.parametrize("detectors", [("SSD",), ("MSP", "SSD", "EBM")])
def test_charts_keep_their_size_however_few_they_are(detectors, run, tmp_path):
    few = make_run(Protocol("known", near=("a",), mid=(), far=("b",)), ("one",), detectors, seeds=(0,), n=20)
    table = [Table("t", ["name", "", "v"], [["a", "", "1"], ["b", "", "2"]], left=2)]
    assert browse(page(few, table), tmp_path, 1280)["widest"] < 340
