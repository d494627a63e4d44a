"""The results pages hold what the results beside them hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.helpers.html_tree import parse

from outfield.benchmark import check_claims, level_columns, summarise
from outfield.report.benchmark_files import read_run, run_json, tables_latex, tables_markdown
from outfield.report.benchmark_tables import all_tables

RESULTS = Path(__file__, "../../../docs/results").resolve()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
class TestPage:
    def test_every_table_is_that_of_the_records(self, name):
        page, run = (RESULTS / f"{name}.md").read_text(), read_run(RESULTS / name)
        for table in all_tables(run).values():
            notes = "".join(f"\n{note}\n" for note in table.notes)
            assert f"**{table.title}**\n\n{table.markdown()}\n{notes}<!-- end -->" in page

    def test_the_json_follows_from_its_records(self, name):
        file = RESULTS / name / "results.json"
        assert run_json(read_run(file)) == file.read_text()

    def test_tables_in_files_are_those_of_the_records(self, name):
        run = read_run(RESULTS / name)
        for made, file in ((tables_markdown(run), "tables.md"), (tables_latex(run), "tables.tex")):
            written = (RESULTS / name / file).read_text().split("\n\n")
            there = {paragraph: place for place, paragraph in enumerate(written)}
            places = [there[paragraph] for paragraph in made.split("\n\n") if paragraph.strip()]
            assert len({*places}) > 5
            # What the file has besides, the comparison with Auto, needs the scores, which are not among the records.
            more = [paragraph for place, paragraph in enumerate(written) if place not in places]
            assert sum("Auto against the others" in paragraph for paragraph in more) == (file == "tables.md")

    def test_the_report_shows_the_verdicts_and_means_of_the_records(self, name):
        run, tree = read_run(RESULTS / name), parse((RESULTS / name / "report.html").read_text())
        shown = [node.text for node in tree.one("header").all(class_="verdict")]
        assert shown == [claim.verdict for claim in check_claims(run.records, run.protocol)]
        means = summarise(run.records, level_columns(run.records, run.protocol))
        for row in tree.one("table", class_="headline").all("tbody"):
            cells = means[row.one("th").text].values()
            values = [float(td.attributes["data-value"]) for td in row.all("td")]
            assert values == [spread.mean for cell in cells for spread in (cell.fpr95, cell.auroc)]
        drawn = {section.attributes["id"]: len(section.all("svg", role="img")) for section in tree.all("section")}
        assert [drawn[kind] for kind in ("sets", "roc", "histograms", "features", "training")] == [6, 6, 27, 21, 6]
        assert "unknown" in tree.one("section", id="provenance").text  # whether the code had changes

    def test_links_and_figures_are_there(self, name):
        page = (RESULTS / f"{name}.md").read_text()
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page)]
        assert len(links) > 8
        for link in links:
            assert (RESULTS / link).exists(), link

    def test_enough_was_run(self, name):
        run = read_run(RESULTS / name)
        fits = {(record.backbone, record.seed) for record in run.records if record.detector == "EnergyCorrected"}
        assert len({backbone for backbone, _ in fits}) >= 2
        assert len(fits) >= 6
        assert {record.ood for record in run.records} == set(run.protocol.ood)
