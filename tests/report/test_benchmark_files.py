"""A benchmark's tables and records as files; the results pages of the documentation hold what the results beside them hold."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.html_tree import parse
from tests.helpers.records import C10, SMALL, as_the_paper, small_run

import outfield as of
from outfield.benchmark import HOLDS, PARTLY, BenchmarkRun, check_claims, level_columns, summarise
from outfield.report.benchmark_files import read_run, records_csv, run_json, tables_latex, tables_markdown, write_tables
from outfield.report.benchmark_tables import all_tables


class TestLatex:
    def test_every_row_has_every_column_and_braces_match(self):
        run = small_run()
        run.records = [replace(r, backbone=r.backbone.replace("one", r"o_n&e{%\[")) for r in run.records]
        text = tables_latex(run)
        for block in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", text, re.S):
            rows = [line for line in block[1].splitlines() if line.endswith(r" \\")]
            assert len(rows) > 2
            assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(block[0]) - 1}
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 4
        assert r"o\_n\&e\{\%\textbackslash{}{[}" in text
        assert text.isascii()

    def test_wide_tables_are_shrunk(self):
        text = tables_latex(BenchmarkRun(C10, as_the_paper(C10)))
        assert text.count(r"\resizebox{\linewidth}") == 1


class TestFiles:
    def test_they_are_written_and_read_back(self, tmp_path):
        run = small_run(provenance={"commit": "0123456789abcdef", "dirty": True, "missing": []})
        files = write_tables(run, tmp_path / "new" / "folder")
        assert [file.name for file in files] == ["tables.md", "tables.tex", "results.csv", "results.json"]
        for source in (tmp_path / "new" / "folder", files[-1]):
            found = read_run(source)
            assert found.protocol == run.protocol
            assert (found.records, found.accuracies, found.provenance) == (run.records, run.accuracies, run.provenance)
        assert "commit 0123456789ab with changes" in files[0].read_text()
        assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {file.name for file in files}

    def test_the_csv_holds_every_record(self):
        run = small_run()
        rows = list(csv.DictReader(records_csv(run).splitlines()))
        assert len(rows) == len(run.records)
        assert rows[0] == {name: "" if value is None else str(value) for name, value in vars(run.records[0]).items()}

    def test_the_json_holds_means_and_the_paper_s_figures_as_fractions(self):
        body = json.loads(run_json(BenchmarkRun(C10, as_the_paper(C10))))
        cell = body["tables"]["levels"]["detectors"]["EnergyCorrected"]["mid"]
        assert cell["paper"] == {"fpr95": 0.41, "auroc": 0.925}
        assert cell["this_run"]["fpr95"] == {"mean": pytest.approx(0.4105), "over_seeds": 0.0, "over_backbones": None}
        assert body["tables"]["detailed"]["columns"]["average"] == list(C10.ood)
        expected = {"a": HOLDS, "b": HOLDS, "c": HOLDS, "e": PARTLY}
        assert {claim["name"]: claim["verdict"] for claim in body["claims"]} == expected

    def test_nothing_to_write_and_nothing_to_read(self, tmp_path):
        with pytest.raises(of.InputError, match="no records"):
            write_tables(BenchmarkRun(SMALL), tmp_path)
        with pytest.raises(of.StorageError, match="no such file"):
            read_run(tmp_path)
        empty = '{"format": 1, "records": [{}], "protocol": {}}'
        for text in ("{", "[]", "{}", '{"format": 1}', '{"format": 2}', empty):
            (tmp_path / "results.json").write_text(text)
            with pytest.raises(of.FileFormatError):
                read_run(tmp_path)
        (tmp_path / "file").write_text("here")
        with pytest.raises(of.StorageError):
            write_tables(small_run(), tmp_path / "file")


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
        links = re.findall(r"\]\(([^)#]+)", (RESULTS / f"{name}.md").read_text())
        assert len(links) > 8
        assert not [link for link in links if not (RESULTS / link).exists()]
