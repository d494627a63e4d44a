"""Whatever a name holds is text, on the page, in figures and in every file."""

import csv
import json
import re

import pytest
from tests.helpers.benchmark_samples import make_run
from tests.helpers.html_tree import parse

from outfield.benchmark import Claim, Protocol, Result
from outfield.files import csv_cell
from outfield.report import Table, results_csv
from outfield.report.benchmark_files import read_run, write_tables
from outfield.report.figures import write_figures
from outfield.report.page import page
from outfield.report.page.template import asset
from outfield.report.table import markdown, tex, visible

NASTY = [
    "<script>alert(1)</script>",
    '"]]>\' onload="alert(1)',
    "</style></svg></title><img src=x onerror=alert(1)>",
    "{{ 7*7 }} {% raw %} ${x} $\\frac{1}{2}$",
    "=cmd()|'/c calc'!A0",
    "a" * 300,
    "日本 🦊 שלום",
    "\u202egnirts\u2066",
    "nul\x00 bell\x07 line\nbreak",
    "half \udcff",
    "| [x](javascript:alert) `y` **z** & &lt; \\",
]


def nasty_run(nasty):
    protocol = Protocol(f"id{nasty}", near=(f"near{nasty}",), mid=(), far=())
    run = make_run(protocol, backbones=(f"net{nasty}",), detectors=(f"{nasty}det", "EBM"), seeds=(0,), n=5)
    run.classes = (f"class{nasty}",)
    run.provenance |= {f"key{nasty}": f"value{nasty}", "stages": [{"what": nasty}], "map": {nasty: {nasty: nasty}}}
    return run


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_the_page_shows_every_name_as_it_is(nasty):
    table = Table(
        f"title{nasty}: {nasty}", [nasty], [[f"{nasty} / {nasty}"]], best=frozenset({(0, 0, 1)}), notes=(nasty,)
    )
    claim = Claim("a", f"claim{nasty}", lacks=(nasty,))
    paper = {f"{nasty}det": {f"near{nasty}": (1.0, 2.0)}}
    text = page(nasty_run(nasty), [table], intro=nasty, notes=[nasty], paper=paper, claims=[claim])
    text.encode()
    tree = parse(text)
    shown = " ".join(visible(nasty).split())
    for name in ("id", "near", "net", "key", "value", "title", "claim"):
        assert name + shown in tree.text
    assert shown + "det" in [th.text for th in tree.all("th")]
    # Nothing of a name has become an element, an attribute or a script.
    assert [node.content for node in tree.all("script")] == [[asset("page.js")]]
    assert not tree.all("img")
    assert len(tree.all("style")) == len(tree.all("title")) == 1
    assert not {name for node in tree.walk() for name in node.attributes if name.startswith("on")}
    drawn = {node.text for svg in tree.all("svg", role="img") for node in svg.all("text")}
    assert len(shown) > 15 or shown + "det" in drawn


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_files_hold_every_name_as_text(nasty, tmp_path):
    run = nasty_run(nasty)
    files = {path.name: path for path in write_tables(run, tmp_path)}
    assert read_run(tmp_path).records == run.records  # to the letter
    json.loads(files["results.json"].read_text())
    rows = list(csv.DictReader(files["results.csv"].read_text().splitlines(keepends=True)))
    assert len(rows) == len(run.records)
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "@", "\t"))]
    for line in files["tables.md"].read_text().splitlines():
        assert not re.search(r"(?<!\\)<\w|(?<!\\)\[x|(?<!\\)`y|\{\{", line), line
    lines = [line for line in files["tables.md"].read_text().splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 2  # by level and by set
    latex = files["tables.tex"].read_text()
    bare = re.sub(r"\\[{}]", "", latex)
    assert bare.count("{") == bare.count("}")
    assert "\n\n\n" not in latex


def test_figures_are_drawn_whatever_names_they_have(tmp_path):
    protocol = Protocol("known", near=tuple(NASTY[:2]), mid=(), far=())
    run = make_run(protocol, backbones=(NASTY[8],), detectors=("EBM", *NASTY), seeds=(0,), n=5)
    assert len(write_figures(run, tmp_path)) == 5


def test_spreadsheets_compute_nothing():
    assert [csv_cell(text) for text in ("=1", "+1", "-1", "@x", "\tx")] == ["'=1", "'+1", "'-1", "'@x", "'\tx"]
    assert csv_cell(-0.5) == -0.5
    result = Result(**dict.fromkeys(Result.__dataclass_fields__, 0.5) | {"detector": "=cmd()", "ood": "x"})
    (row,) = csv.DictReader(results_csv([result]).splitlines())
    assert (row["detector"], row["ood"], row["auroc"]) == ("'=cmd()", "x", "0.5")


def test_markdown_and_latex_of_one_name():
    assert markdown("<b> [a](b) __x__ a_b 2 < 3") == r"\<b> \[a\](b) \_\_x\_\_ a_b 2 \< 3"
    assert tex("100 % of\n\n#1") == r"100\,\% of \#1"
    assert tex("5% \x00") == r"5\% ?"
    assert tex(r"\a_b^c~{d} 5% #1 $x$ & <y>") == (
        r"\textbackslash{}a\_b\textasciicircum{}c\textasciitilde{}\{d\} 5\% \#1 \$x\$ \& $<$y$>$"
    )
    assert tex("± ↓ – [x]*") == r"$\pm$ $\downarrow$ -- {[}x{]}{*}"
    assert Table("t", ["a|b"], [["x*y|<z>"]]).markdown().splitlines() == [r"| a\|b |", "| --- |", r"| x\*y\|\<z> |"]
