"""The results pages hold what the results beside them hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
        assert tables_markdown(run) == (RESULTS / name / "tables.md").read_text()
        assert tables_latex(run) == (RESULTS / name / "tables.tex").read_text()

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
