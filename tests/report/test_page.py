"""The page: complete, balanced, and on its own; it shows every number and says what was run and where that came from."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.helpers.benchmark_samples import PAPER, PROTOCOL, make_run
from tests.helpers.html_tree import parse, rows_of
from tests.helpers.records import C10, as_the_paper

from outfield.benchmark import BenchmarkRun, check_claims, level_columns, summarise
from outfield.report import Table
from outfield.report.benchmark_tables import all_tables, origin
from outfield.report.canvas import FAINT, RULE
from outfield.report.page import page, write_page
from outfield.report.page.grids import provenance_tables
from outfield.report.page.template import DARK, asset

HEADER = ["detector", "", "near", "AUROC ↑"]
ROWS = [
    ["MSP", "this run", "47.5 / 89.9", "1"],
    ["", "paper", "46.0 / 90.0", ""],
    ["SSD", "this run", "50.0 / 91.0", "3"],
]
BEST = frozenset({(0, 2, 0), (2, 2, 1)})
TABLES = [
    Table("known against each set: in percent", HEADER, ROWS, 2, BEST, ("a note below",)),
    Table("net timm:resnet18: in percent", ["name", "number"], [["x", "1"]]),
]
SECTIONS = ["results", "sets", "roc", "histograms", "features", "training", "tables", "provenance"]
BARE = {"scores": {}, "layouts": [], "histories": {}}
"""Nothing to draw but records, which is quick."""


@pytest.fixture(scope="module")
def run():
    return make_run()


@pytest.fixture(scope="module")
def text(run):
    return page(run, TABLES, intro="First lines.\n\nSecond lines.", paper=PAPER, notes=["a remark"])


@pytest.fixture(scope="module")
def tree(text):
    return parse(text)


def headline(tree):
    return tree.one("table", class_="headline")


def test_every_section_is_there_and_linked(tree):
    assert [section.attributes["id"] for section in tree.all("section")] == SECTIONS
    ids = [node.attributes["id"] for node in tree.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids)), "an id is used twice"
    links = [node.attributes["href"] for node in tree.walk() if "href" in node.attributes]
    assert {f"#{name}" for name in (*SECTIONS, "table-1", "table-2", "main")} <= set(links)
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_clip_paths_lead_to_ids_of_the_same_drawing(tree):
    used = 0
    for drawing in tree.all("svg"):
        ids = {node.attributes["id"] for node in drawing.walk() if "id" in node.attributes}
        for node in drawing.walk():
            leads = re.findall(r"#([^)]*)", f"{node.attributes.get('clip-path', '')}{node.attributes.get('href', '')}")
            used += len(leads)
            assert set(leads) <= ids
    assert used


def test_nothing_is_asked_for_from_outside(text, tree):
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    for node in tree.walk():
        assert not {"src", "srcset", "action", "data"} & set(node.attributes)
        assert (node.attributes.get("href") or "#").startswith("#")
    policy = next(a.attributes["content"] for a in tree.all("meta") if "http-equiv" in a.attributes)
    assert policy.startswith("default-src 'none'")


def test_the_first_table_has_every_mean_spread_and_printed_figure(run, tree):
    cells = summarise(run.records, level_columns(run.records, run.protocol))
    rows = headline(tree).all("tbody")
    assert [row.one("th").text for row in rows] == list(cells)
    for row, mine in zip(rows, cells.values(), strict=True):
        spreads = [spread for cell in mine.values() for spread in (cell.fpr95, cell.auroc)]
        shown = row.all("td")
        assert [td.one(class_="value").text for td in shown] == [f"{100 * s.mean:.1f}" for s in spreads]
        assert [td.one(class_="spread").text for td in shown] == [f"±{100 * s.over_backbones:.1f}" for s in spreads]
        assert [float(td.attributes["data-value"]) for td in shown] == [s.mean for s in spreads]
    printed = [span.text for span in headline(tree).all("span", class_="paper")]
    # MSP's as printed; SSD's as means over the sets that make up a column.
    assert printed[:4] == ["55.5", "87.5", "48.2", "91.2"]
    assert printed[4:] == ["15.0", "90.0", "35.0", "90.0", "55.5", "90.0", f"{211 / 6:.1f}", "90.0"]
    bold = [node.text for node in headline(tree).all("strong")]
    for column in ("near", "mid", "far", "average"):
        assert f"{100 * min(mine[column].fpr95.mean for mine in cells.values()):.1f}" in bold
        assert f"{100 * max(mine[column].auroc.mean for mine in cells.values()):.1f}" in bold


def test_the_head_says_what_was_run_and_what_came_out(run, tree):
    head = tree.one("header")
    assert "4 detectors, 2 backbones, 6 OOD sets, 2 seeds of each learned detector." in head.text
    assert [node.text for node in head.all("p")][-2:] == ["First lines.", "Second lines."]
    figures = [node.text for node in head.all("dd", class_="figure")]
    averages = {name: cells["average"] for name, cells in summarise(run.records, {"average": PROTOCOL.ood}).items()}
    lowest = min(averages, key=lambda name: averages[name].fpr95.mean)
    assert figures[:2] == ["90.0–91.0 %", f"{100 * averages[lowest].fpr95.mean:.1f} %"]
    assert head.all("dd", class_="detail")[1].text == lowest
    assert not head.all(class_="verdict")


def test_a_number_and_its_sign_of_percent_are_never_parted(tree):
    words = [part for node in tree.walk() if node.tag not in ("script", "style") for part in node.content]
    shown = "".join(part for part in words if isinstance(part, str))
    assert shown.count("\u00a0%") > 20
    assert not re.search(r"\d ?%", shown)


def test_verdicts_on_the_paper_s_claims_stand_at_the_top():
    run = BenchmarkRun(C10, [r for r in as_the_paper(C10) if (r.detector, r.ood) != ("KNN", "svhn")])
    claims = check_claims(run.records, run.protocol)
    tree = parse(page(run, list(all_tables(run).values()), claims=claims))
    head = tree.one("header")
    assert [node.text for node in head.all(class_="verdict")] == [claim.verdict for claim in claims]
    for claim, line in zip(claims, head.all("li"), strict=True):
        assert claim.statement in line.text
        assert ("lacks SVHN" in line.text) == bool(claim.lacks)
    target = head.one("a").attributes["href"].removeprefix("#")
    assert "What the paper says of CIFAR-10" in tree.one(id=target).text
    looks = {node.text: node.classes - {"verdict"} for node in head.all(class_="verdict")}
    assert len({frozenset(look) for look in looks.values()}) == len(looks) == 3


def test_figures_are_described_and_take_their_colours_from_the_page(text, tree):
    described = tree.all("svg", role="img")
    assert len(described) == 6 + 6 + 2 * 4 + 2 * 7 + 2 * 3
    assert all(len(svg.attributes["aria-label"]) > 30 for svg in described)
    assert all("aria-label" in s.attributes or s.attributes.get("aria-hidden") == "true" for s in tree.all("svg"))
    for svg in described:
        assert not svg.all("style")
        assert not any("font-family" in (node.attributes.get("style") or "") for node in svg.walk())
    letters = {node.text for node in tree.one("section", id="sets").all("text")}
    assert {"MSP", "SSD", "EBM", "EnergyCorrected"} <= letters  # and not their outlines
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert not {found for drawing in drawings for found in re.findall(r"#[0-9a-f]{6}\b", drawing)}
    names = set(re.findall(r"var\((--[\w-]+)", text))
    assert names - {"--heat", "--columns", "--rows"} <= set(re.findall(r"(--[\w-]+): light-dark", text))


def test_legends_show_what_is_there(tree):
    legends = {
        name: [li.text for li in tree.one("section", id=name).one("ul", class_="legend").all("li")]
        for name in SECTIONS[1:6]
    }
    assert legends["sets"] == ["one", "two", "mean", "the paper"]
    assert legends["histograms"] == ["known (ID)", "near-OOD", "mid-OOD", "far-OOD", "threshold that keeps 95 % of ID"]
    assert legends["training"] == ["energy of real features", "energy of chain ends", "one fit", "mean"]


def test_tables_can_be_understood_by_ear(tree):
    tables, captions = tree.all("table"), tree.all("caption")
    assert len(tables) == len(captions) >= 8
    assert all("scope" in th.attributes for th in tree.all("th"))
    regions = tree.all("div", role="region")
    assert all(a.attributes["aria-label"] and a.attributes["tabindex"] == "0" for a in regions)
    levels = [int(node.tag[1]) for node in tree.walk() if re.fullmatch(r"h\d", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert tree.one("html").attributes["lang"] == "en"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


THEME = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", asset("page.css"))}


@pytest.mark.parametrize("mode", [0, 1])
def test_words_stand_out_in_light_and_dark(mode):
    for ground in ("page", "card"):
        for words in ("ink", "soft", "accent", "near-ink", "mid-ink", "far-ink", "good", "mixed", "bad"):
            assert contrast(THEME[words][mode], THEME[ground][mode]) >= 4.5, (words, ground)
    for light, dark in DARK.items():
        if light not in (FAINT, RULE):
            assert contrast((light, dark)[mode], THEME["card"][mode]) >= 2.6


def test_tables_keep_their_groups_and_bold_figures(tree):
    section = tree.one("section", id="tables")
    first = section.one(id="table-1")
    assert rows_of(first) == [ROWS[0], ROWS[1][1:], ROWS[2]]
    assert [len(body.all("tr")) for body in first.all("tbody")] == [2, 1]
    head = first.one("tbody").one("th")
    assert (head.attributes["scope"], head.attributes["rowspan"]) == ("rowgroup", "2")
    assert [node.text for node in first.all("strong")] == ["47.5", "91.0"]
    assert [note.text for note in first.one("ul", class_="notes").all("li")] == ["a note below"]
    assert "Against each set" in [a.text for a in tree.one("nav").all("a")]  # linked without the ID set's name
    assert "Net timm:resnet18" in [a.text for a in tree.one("nav").all("a")]  # whole, though it has a colon
    assert "a remark" in tree.one("section", id="results").text


def test_columns_say_in_which_order_their_best_comes_first(tree):
    heads, up = headline(tree).all("th", scope="col"), "ascending"
    first = [(th.text, th.attributes["data-first"]) for th in heads[:3]]
    assert first == [("Detector", up), ("FPR95 ↓", up), ("AUROC ↑", "descending")]
    assert [th.attributes["data-column"] for th in heads] == [str(place) for place in range(9)]
    first = tree.one(id="table-1").all("th", scope="col")
    assert [th.attributes.get("data-first") for th in first] == ["ascending", None, "ascending", "descending"]
    assert {"number"} == first[2].classes
    assert "sortable" in tree.one(id="table-1").one("table").classes
    assert "sortable" not in tree.one(id="table-2").one("table").classes  # there is one row


@pytest.mark.parametrize(("lacking", "gone"), [
    ({"scores": {}}, {"roc", "histograms"}),
    ({"histories": {}}, {"training"}),
    ({"layouts": []}, {"features"}),
    ({"provenance": {}}, {"provenance"}),
    ({"accuracies": {}}, set()),
])  # fmt: skip
def test_parts_without_data_are_left_out(lacking, gone):
    run = replace(make_run(backbones=("one",), seeds=(3,), detectors=("EBM",), n=12), **lacking)
    tree = parse(page(run))
    assert {section.attributes["id"] for section in tree.all("section")} == set(SECTIONS) - gone - {"tables"}


def test_one_backbone_and_one_seed_have_no_spread_and_several_seeds_have_theirs():
    single = parse(page(replace(make_run(backbones=("one",), seeds=(0,)), **BARE)))
    assert not single.all(class_="spread")
    assert "standard deviation" not in single.text
    assert "1 backbone, 6 OOD sets, 1 seed of each" in single.text
    assert not [li for li in single.one("section", id="sets").all("li") if li.text == "mean"]
    seeds = parse(page(replace(make_run(backbones=("one",)), **BARE)))
    assert "standard deviation over seeds" in seeds.text
    assert len(seeds.all(class_="spread")) == 2 * 8  # of the two learned detectors


def test_one_detector_alone_is_not_called_the_best():
    tree = parse(page(replace(make_run(backbones=("one",), detectors=("SSD",)), **BARE)))
    assert not headline(tree).all("strong")
    assert "in bold" not in headline(tree).text


def test_the_paper_s_means_stand_only_beside_means_over_its_sets():
    run = make_run(backbones=("one",), detectors=("MSP", "SSD"))
    less = [r for r in run.records if r.ood != "bees"]
    tree = parse(page(replace(run, records=less, **BARE), paper=PAPER))
    # Of MSP it prints apes, all that is left of near OOD, but not the average without bees; of SSD each set.
    printed = [node.text for node in headline(tree).all(class_="paper")]
    assert printed == ["57.2", "88.0", "10.0", "90.0", "35.0", "90.0", "55.5", "90.0", f"{191 / 5:.1f}", "90.0"]
    assert "figures, too, are means over the other sets" in tree.text


def test_the_file_is_small_and_the_same_each_time(run, text, tmp_path):
    path = tmp_path / "page.html"
    write_page(run, TABLES, path, intro="First lines.\n\nSecond lines.", paper=PAPER, notes=["a remark"])
    assert path.read_text(encoding="utf-8") == text
    assert path.stat().st_size < 1_500_000


def test_provenance_is_readable(tree):
    section = tree.one("section", id="provenance")
    for words in ("uncommitted changes", "50,000", "90.0 %", "inner: MLP, rate 1e-05", "k 50"):
        assert words in section.text
    assert 64 * "b" in {node.text for node in section.all("code")}
    assert "commit 0123456789ab, 2025-01-02T03:04:05+00:00." in tree.one("footer").text


@pytest.mark.parametrize(("dirty", "row", "footer"), [
    (False, "no", "commit 0123456789ab."),
    (True, "yes", "commit 0123456789ab with changes."),
    (None, "unknown", "commit 0123456789ab, changes unknown."),
])  # fmt: skip
def test_whether_the_code_was_changed_is_said_or_said_to_be_unknown(dirty, row, footer):
    about = {"commit": "0123456789abcdef", "dirty": dirty}
    (table,) = provenance_tables(about)
    assert table.rows[1] == ["uncommitted changes", row]
    assert f"{origin(about)}.".endswith(footer)


def test_provenance_tables_take_whatever_comes():
    deep = {"p": {"q": {"r": 1}}}
    about = {
        "a_b": 1.5,
        "none": None,
        "empty": {},
        "list": [1, 2],
        "sets": {"x": {"n": True}, "y": {"m": 3}},
        "deep": deep,
    }
    tables = {table.title: table for table in provenance_tables(about)}
    assert tables["This run"].rows == [["a b", "1.5"], ["none", "–"], ["list", "1, 2"]]
    assert tables["Sets"].rows == [["x", "yes", "–"], ["y", "–", "3"]]
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
