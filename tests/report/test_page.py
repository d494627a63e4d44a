"""The page: complete, balanced, escaped, and on its own."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from tests.helpers.benchmark_samples import PAPER, PROTOCOL, make_run

import outfield as of
from outfield.benchmark import BenchmarkRun
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.summary import level_columns, summarise
from outfield.report.figures import write_figures
from outfield.report.figures.chart import FAINT, RULE
from outfield.report.page import page, write_page
from outfield.report.page.markup import Html, element
from outfield.report.page.provenance import provenance_tables
from outfield.report.page.theme import DARK, THEME
from outfield.report.table import Table

TABLES = [
    Table(
        "known against each set: in percent",
        ["detector", "", "near", "far"],
        [
            ["MSP", "this run", "47.5 / 89.9", "1 / 2"],
            ["", "paper", "46.0 / 90.0", ""],
            ["SSD", "this run", "50.0 / 91.0", "3 / 4"],
        ],
        left=2,
        best=frozenset({(0, 2, 0), (2, 2, 1)}),
        notes=("a note below",),
    ),
    Table("The second", ["name", "number"], [["x", "1"]]),
]
SECTIONS = ["results", "sets", "roc", "histograms", "features", "training", "tables", "provenance"]
NASTY = """<b class="x">&amp;'"</b>"""


VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Elements of a page; raises where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        raise AssertionError(f"<{tag}/> means nothing in HTML")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def run():
    return make_run()


@pytest.fixture(scope="module")
def text(run):
    return page(run, TABLES, intro="First lines.\n\nSecond lines.", paper=PAPER, notes=["a remark"])


@pytest.fixture(scope="module")
def outline(text):
    return Outline(text)


def test_every_section_is_there_and_linked(outline):
    assert [attributes["id"] for attributes in outline.all("section")] == SECTIONS
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id is used twice"
    links = [attributes["href"] for _, attributes in outline.elements if "href" in attributes]
    assert {f"#{name}" for name in (*SECTIONS, "table-1", "table-2", "main")} <= set(links)
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_clip_paths_lead_to_ids_of_the_same_page(text, outline):
    ids = {attributes["id"] for _, attributes in outline.elements if "id" in attributes}
    used = re.findall(r"url\(#([^)]*)\)", text)
    assert used
    assert set(used) <= ids


def test_nothing_is_asked_for_from_outside(text, outline):
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    for _, attributes in outline.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for a in outline.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_the_first_table_has_every_mean_spread_and_printed_figure(run, text):
    table = text[text.index('<table class="headline') : text.index("</table>")]
    cells = summarise(run.records, level_columns(run.records, run.protocol))
    for mine in cells.values():
        for cell in mine.values():
            for spread in (cell.fpr95, cell.auroc):
                assert f'class="value">{100 * spread.mean:.1f}</' in table
                assert f"±{100 * spread.over_backbones:.1f}" in table
    printed = re.findall(r'class="paper">([\d.]+)<', table)
    # MSP's as printed; SSD's as means over the sets that make up a column.
    assert printed[:4] == ["55.5", "87.5", "48.2", "91.2"]
    assert printed[4:] == ["15.0", "90.0", "35.0", "90.0", "55.5", "90.0", f"{211 / 6:.1f}", "90.0"]
    for column in ("near", "mid", "far", "average"):
        best = min(cells, key=lambda name: cells[name][column].fpr95.mean)
        assert f'<strong class="value">{100 * cells[best][column].fpr95.mean:.1f}</strong>' in table


def test_the_head_says_what_was_run_and_what_came_out(run, text):
    head = text[text.index("<header>") : text.index("</header>")]
    assert "4 detectors, 2 backbones, 6 OOD sets, 2 seeds of each learned detector." in head
    assert "<p>First lines.</p><p>Second lines.</p>" in head
    assert "90.0–91.0 %" in head
    averages = {name: cells["average"] for name, cells in summarise(run.records, {"average": PROTOCOL.ood}).items()}
    lowest = min(averages, key=lambda name: averages[name].fpr95.mean)
    assert f"{100 * averages[lowest].fpr95.mean:.1f} %</dd>" in head
    assert lowest in head


def test_figures_are_described_and_take_their_colours_from_the_page(text, outline):
    drawings = re.findall(r"<svg.*?</svg>", text, re.S)
    described = [a for a in outline.all("svg") if a.get("role") == "img"]
    assert len(described) == 6 + 6 + 2 * 4 + 2 * 7 + 2 * 3
    assert all(len(a["aria-label"]) > 30 for a in described)
    assert all("aria-label" in a or a.get("aria-hidden") == "true" for a in outline.all("svg"))
    assert not {found for drawing in drawings for found in re.findall(r"#[0-9a-f]{6}\b", drawing)}
    names = set(re.findall(r"var\((--[\w-]+)", text))
    both = re.findall(r"(--[\w-]+):", text[: text.index("* { box-sizing")])
    assert all(both.count(name) == 3 for name in names - {"--heat", "--columns", "--rows"})  # light, dark twice
    assert not any("<style" in drawing or "font-family" in drawing for drawing in drawings)


def test_tables_can_be_understood_by_ear(outline):
    tables, captions = outline.all("table"), outline.all("caption")
    assert len(tables) == len(captions) >= 8
    assert all("scope" in attributes for attributes in outline.all("th"))
    regions = [a for a in outline.all("div") if a.get("role") == "region"]
    assert all(a["aria-label"] and a["tabindex"] == "0" for a in regions)
    levels = [int(name[1]) for name, _ in outline.elements if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert ("html", {"lang": "en"}) in outline.elements


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_words_stand_out_in_light_and_dark(mode):
    for ground in ("page", "card"):
        for words in ("ink", "soft", "accent", "near-ink", "mid-ink", "far-ink"):
            assert contrast(THEME[words][mode], THEME[ground][mode]) >= 4.5, (words, ground)
    for light, dark in DARK.items():
        if light not in (FAINT, RULE):
            assert contrast((light, dark)[mode], THEME["card"][mode]) >= 2.6


def test_tables_keep_their_groups_and_bold_figures(text):
    section = text[text.index('id="tables"') : text.index('id="provenance"')]
    assert section.count("<tbody>") == 2 + 1
    assert '<th scope="rowgroup" rowspan="2">MSP</th>' in section
    assert "<strong>47.5</strong> / 89.9" in section
    assert "50.0 / <strong>91.0</strong>" in section
    assert "<li>a note below</li>" in section
    assert "Against each set</a>" in text  # linked without the ID set's name
    assert "a remark" in text


def test_provenance_is_readable(text):
    section = text[text.index('id="provenance"') :]
    for words in ("uncommitted changes", "<code>" + 64 * "b", "50,000", "90.0 %", "inner: MLP, rate 1e-05", "k 50"):
        assert words in section
    assert "commit 0123456789ab, 2025-01-02 03:04:05 UTC" in section


def test_provenance_tables_take_whatever_comes():
    about = {
        "a_b": 1.5,
        "none": None,
        "empty": {},
        "list": [1, 2],
        "records": [{"x": True}, {"y": "z"}, 3],
        "deep": {"p": {"q": {"r": 1}}},
    }
    tables = {table.title: table for table in provenance_tables(about)}
    assert tables["This run"].rows == [["a b", "1.5"], ["none", "–"], ["list", "1, 2"]]
    assert tables["Records"].rows == [["yes", "–", "–"], ["–", "z", "–"], ["–", "–", "3"]]
    assert tables["Deep: p"].rows == [["q", "1"]]
    assert provenance_tables({}) == []


def test_a_trained_backbone_is_told_of_in_rows():
    recipe = {"type": "Recipe", "epochs": 200, "augmentation": {"type": "Crops", "flip": 0.5}}
    notes = {"recipe": recipe, "images": {"name": "cifar10", "n": 50_000}, "curve": {"loss": [0.125] * 200}, "seed": 3}
    about = {"net": {"sha256": "f" * 64, "classifier": {"classes": 10}, "notes": notes, "accuracy": 0.95}}
    (table,) = provenance_tables({"backbones": about})
    assert table.rows == [
        ["SHA-256", "f" * 64],
        ["classifier", "classes 10"],
        ["accuracy", "95.0 %"],
        ["recipe", "epochs 200\naugmentation: Crops, flip 0.5"],
        ["images", "name cifar10, n 50,000"],
        ["seed", "3"],
    ]


def test_time_is_summed_by_stage():
    stages = [{"what": "fit", "detector": "EBM", "seconds": 1.5}, {"what": "fit", "detector": "EBM", "seconds": None}]
    (table,) = provenance_tables({"stages": stages})
    assert table.rows == [["fit", "EBM", "2", "1.5"], ["all", "–", "2", "1.5"]]


def test_whatever_a_name_holds_is_text():
    protocol = Protocol(f"id{NASTY}", near=(f"near{NASTY}",), mid=(), far=())
    run = make_run(protocol, backbones=(f"net{NASTY}",), detectors=(f"det{NASTY}", "EBM"))
    run.provenance = {f"key{NASTY}": f"value{NASTY}", "stages": [{"what": NASTY}], "map": {NASTY: {NASTY: NASTY}}}
    table = Table(
        f"title{NASTY}: {NASTY}", [NASTY], [[f"{NASTY} / {NASTY}"]], best=frozenset({(0, 0, 1)}), notes=(NASTY,)
    )
    text = page(run, [table], intro=NASTY, notes=[NASTY], paper={f"det{NASTY}": {f"near{NASTY}": (1.0, 2.0)}})
    Outline(text)
    assert '<b class="x">' not in text
    assert "&lt;b class=" in text


def test_a_run_without_anything(tmp_path):
    text = page(BenchmarkRun(PROTOCOL))
    outline = Outline(text)
    assert outline.all("section") == []
    assert "known: out-of-distribution detection" in text


@pytest.mark.parametrize(
    ("lacking", "gone"),
    [
        ({"records": []}, {"results", "sets"}),
        ({"scores": {}}, {"roc", "histograms"}),
        ({"histories": {}}, {"training"}),
        ({"views": []}, {"features"}),
        ({"provenance": {}}, {"provenance"}),
        ({"accuracies": {}}, set()),
    ],
)
def test_parts_without_data_are_left_out(lacking, gone):
    run = replace(make_run(backbones=("one",), seeds=(3,), detectors=("EBM",), n=12), **lacking)
    outline = Outline(page(run))
    assert {attributes["id"] for attributes in outline.all("section")} == set(SECTIONS) - gone - {"tables"}


def test_one_backbone_and_one_seed_have_no_spread_and_several_seeds_have_theirs():
    single = page(replace(make_run(backbones=("one",), seeds=(0,)), scores={}, views=[], histories={}))
    assert 'class="spread"' not in single
    assert "standard deviation" not in single
    assert "1 backbone, 6 OOD sets, 1 seed of each" in single
    seeds = page(replace(make_run(backbones=("one",)), scores={}, views=[], histories={}))
    assert "standard deviation over seeds" in seeds
    assert seeds.count('class="spread"') == 2 * 8  # of the two learned detectors


def test_a_set_that_is_missing_is_said():
    run = make_run(backbones=("one",), detectors=("SSD",))
    run = replace(run, records=[r for r in run.records if r.ood != "fish"], scores={}, views=[], histories={})
    assert "Without fish, not there in this run" in page(run)


def test_the_paper_s_means_stand_only_beside_means_over_its_sets():
    run = make_run(backbones=("one",), detectors=("MSP", "SSD"))
    less = [r for r in run.records if r.ood != "bees"]
    text = page(replace(run, records=less, scores={}, views=[], histories={}), paper=PAPER)
    table = text[text.index('<table class="headline') : text.index("</table>")]
    # Of MSP it prints apes, all that is left of near OOD, but not the average without bees; of SSD each set.
    printed = re.findall(r'class="paper">([\d.]+)<', table)
    assert printed == ["57.2", "88.0", "10.0", "90.0", "35.0", "90.0", "55.5", "90.0", f"{191 / 5:.1f}", "90.0"]
    assert "figures, too, are means over the other sets" in text


def test_figures_of_an_earlier_run_do_not_stay(tmp_path):
    run = make_run(backbones=("one",), n=12)
    names = {path.name for path in write_figures(run, tmp_path)}
    assert "training.png" in names
    (tmp_path / "mine.png").write_text("mine")
    left = {path.name for path in write_figures(replace(run, histories={}, views=[]), tmp_path)}
    assert left == names - {"training.png", "features.png"}
    assert {path.name for path in tmp_path.iterdir()} == left | {"mine.png"}


def test_the_file_is_small_and_the_same_each_time(run, text, tmp_path):
    path = tmp_path / "page.html"
    write_page(run, TABLES, path, intro="First lines.\n\nSecond lines.", paper=PAPER, notes=["a remark"])
    assert path.read_text(encoding="utf-8") == text
    assert path.stat().st_size < 1_500_000


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("before")

    def refuse(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(of.StorageError, match="disk full"):
        write_page(BenchmarkRun(PROTOCOL), [], path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]


def test_elements_escape_all_but_html():
    assert element("p", "<", Html("<br>"), None, 3, title='"') == '<p title="&quot;">&lt;<br>3</p>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
