"""A benchmark's run as tables: the paper's three with its figures beside, one for each backbone, and the claims.

A detector has a row for this run's means, one for each spread that there is (over seeds, over backbones) and one for what the
paper prints. Cells are "FPR95 / AUROC" in percent; the best means of a column are in bold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outfield.benchmark import paper
from outfield.benchmark.beside import beside
from outfield.benchmark.claims import MARGIN, UNTESTED, check_claims
from outfield.benchmark.paper import AVERAGE, Printed, PrintedTable
from outfield.benchmark.records import BenchmarkRun
from outfield.benchmark.summary import (
    Cell,
    Columns,
    level_columns,
    paper_columns,
    present,
    published,
    set_columns,
    summarise,
)
from outfield.images.catalogue import title
from outfield.percent import in_percent, percent
from outfield.report.table import Table

DEFAULT, OURS = "Auto", "EnergyCorrected"
TABLE_1 = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", OURS)
DETAILED = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "EBM", OURS)
ABLATION = ("GaussianMixture", "EBM", OURS)
KNOWN = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "GaussianMixture", "EBM", OURS)
"""Detectors that the paper has a place for, in its order; others are added below those."""
METRICS = "FPR95 ↓ / AUROC ↑ in percent"
THIS_RUN, OVER_SEEDS, OVER_BACKBONES, PAPER = "this run", "± seeds", "± backbones", "paper"


@dataclass(frozen=True)
class Block:
    """Which detectors and columns a table shows, and what the paper has there, over the same sets."""

    name: str
    title: str
    detectors: tuple[str, ...]
    columns: Columns
    printed: PrintedTable
    labels: Mapping[str, str]
    whose: str = PAPER


def blocks(run: BenchmarkRun) -> list[Block]:
    """The paper's tables: Table 1, the detailed one, and the ablation where the run has two of its rows.

    Each detector of the run is in the detailed table, and in Table 1 or the ablation.
    """
    records, protocol = run.records, run.protocol
    found = list(dict.fromkeys(record.detector for record in records))
    levels, sets = level_columns(records, protocol), set_columns(records, protocol)
    whose = beside(protocol).label
    ours, of_id = {OURS: f"{OURS} (ours)", DEFAULT: f"{DEFAULT} (the default)"}, title(protocol.id)
    parts = ours | {"GaussianMixture": "GaussianMixture (ours w/o energy)", "EBM": "EBM (ours w/o MoG)"}
    ablation = [name for name in ABLATION if name in found]
    apart = ablation if len(ablation) > 1 else []

    def block(name: str, words: str, rows: Sequence[str], columns: Columns, labels: Mapping[str, str] = ours) -> Block:
        return Block(name, f"{of_id} {words}", tuple(rows), columns, _printed_table(run, columns), labels, whose)

    def with_others(rows: Sequence[str], elsewhere: Sequence[str] = ()) -> list[str]:
        """The default, the paper's rows, then detectors that have none: those it knows, then one's own."""
        others = [name for name in dict.fromkeys([*KNOWN, *found]) if name not in (DEFAULT, *rows, *elsewhere)]
        return [name for name in (DEFAULT, *rows, *others) if name in found]

    made = [
        block("levels", f"against {_listed(levels)} OOD", with_others(TABLE_1, apart), levels),
        block("detailed", "against each OOD set", with_others(DETAILED), sets),
        block("ablation", "without parts of the method", apart, levels, parts),
    ]
    return [one for one in made if one.detectors]


def _listed(columns: Columns) -> str:
    """The levels that there are: "near, mid and far"."""
    *first, last = [column for column in columns if column != AVERAGE]
    return f"{', '.join(first)} and {last}" if first else last


def _printed_table(run: BenchmarkRun, columns: Columns) -> PrintedTable:
    """What is published for each column, by detector."""
    return {
        detector: {
            column: Printed(*figures)
            for column, sets in columns.items()
            if (figures := published(cells, column, sets, run.protocol)) is not None
        }
        for detector, cells in beside(run.protocol).rows.items()
    }


def tables(run: BenchmarkRun) -> dict[str, Table]:
    """Every table by name: "levels", "detailed", "ablation", then "backbone NAME" for each if there are several."""
    made = {block.name: table(block, run) for block in blocks(run)}
    backbones = list(dict.fromkeys(record.backbone for record in run.records))
    if len(backbones) > 1:
        made |= {f"backbone {name}": backbone_table(run, name) for name in backbones}
    return made


def all_tables(run: BenchmarkRun, *, claims: bool = True) -> dict[str, Table]:
    """What :func:`tables` gives, and "claims" where they are asked for and there are any to judge."""
    judged = claims_table(run) if claims else None
    return tables(run) | ({} if judged is None else {"claims": judged})


def table(block: Block, run: BenchmarkRun) -> Table:
    """A table of the paper, from this run, with the paper's figures beside."""
    cells = summarise(run.records, block.columns)
    rows, best = _rows(block, cells)
    printed = any(row[1] == block.whose for row in rows)
    where = f"{block.title}: {METRICS}, {_what_was_run(run, block.detectors)}"
    return Table(where, ["detector", "", *map(_heading, block.columns)], rows, 2, best, _notes(run, block, printed))


def backbone_table(run: BenchmarkRun, backbone: str) -> Table:
    """All detectors on one backbone's features; its accuracy in the title."""
    records = [record for record in run.records if record.backbone == backbone]
    names = tuple(dict.fromkeys(record.detector for record in records))
    columns = level_columns(records, run.protocol)
    block = Block(backbone, "", names, columns, {}, {OURS: f"{OURS} (ours)"})
    rows, best = _rows(block, summarise(records, columns))
    accuracy = f" (accuracy {percent(run.accuracies[backbone])})" if backbone in run.accuracies else ""
    where = f"{title(run.protocol.id)}, backbone {backbone}{accuracy}: {METRICS}"
    return Table(where, ["detector", "", *map(_heading, columns)], rows, 2, best, notes_on_sets(run))


def _rows(
    block: Block, cells: Mapping[str, Mapping[str, Cell]]
) -> tuple[list[list[str]], frozenset[tuple[int, int, int]]]:
    """Rows of text, and where the best means of each column stand."""
    rows: list[list[str]] = []
    means: dict[str, int] = {}
    for detector in block.detectors:
        mine, printed = cells[detector], block.printed.get(detector, {})
        means[detector] = len(rows)
        lines = {
            THIS_RUN: [_means(mine.get(column)) for column in block.columns],
            OVER_SEEDS: [_spreads(mine.get(column), "over_seeds") for column in block.columns],
            OVER_BACKBONES: [_spreads(mine.get(column), "over_backbones") for column in block.columns],
            block.whose: [_printed(printed.get(column)) for column in block.columns],
        }
        named = [[kind, *line] for kind, line in lines.items() if kind == THIS_RUN or any(line)]
        label = block.labels.get(detector, detector)
        rows += [[label if index == 0 else "", *line] for index, line in enumerate(named)]
    return rows, _best(rows, list(means.values()))


def _best(rows: Sequence[Sequence[str]], means: Sequence[int]) -> frozenset[tuple[int, int, int]]:
    """The lowest FPR95 and the highest AUROC of each column, as printed: equal figures are equally good."""
    best = set()
    for column in range(2, len(rows[0]) if len(means) > 1 else 0):
        for part, choose in enumerate((min, max)):
            values = {row: float(rows[row][column].split(" / ")[part]) for row in means if rows[row][column]}
            best |= {(row, column, part) for row, value in values.items() if value == choose(values.values())}
    return frozenset(best)


def _means(cell: Cell | None) -> str:
    return "" if cell is None else f"{in_percent(cell.fpr95.mean)} / {in_percent(cell.auroc.mean)}"


def _spreads(cell: Cell | None, over: str) -> str:
    """Two digits, since what varies by less than 0.05 points does vary."""
    pair = [] if cell is None else [getattr(cell.fpr95, over), getattr(cell.auroc, over)]
    return " / ".join(f"{100 * value:.2f}" for value in pair if value is not None)


def _printed(cell: Printed | None) -> str:
    if cell is None:
        return ""
    return f"{'–' if cell.fpr95 is None else f'{cell.fpr95:.1f}'} / {cell.auroc:.1f}"


def _heading(column: str) -> str:
    return column if column == AVERAGE else f"{column} OOD" if column in paper.LEVELS else title(column)


def _what_was_run(run: BenchmarkRun, detectors: Sequence[str]) -> str:
    """How many backbones and seeds stand behind a mean; the accuracies of the backbones."""
    shown = [record for record in run.records if record.detector in detectors]
    backbones = list(dict.fromkeys(record.backbone for record in shown))
    seeds = {record.seed for record in shown if record.seed is not None}
    text = f"{len(backbones)} backbone{'s' * (len(backbones) > 1)}"
    known = [in_percent(run.accuracies[name]) for name in backbones if name in run.accuracies]
    text += f" (accuracy {', '.join(known)} %)" if known else ""
    return text + (f", {len(seeds)} seed{'s' * (len(seeds) > 1)} of each learned detector" if seeds else "")


def _notes(run: BenchmarkRun, block: Block, printed: bool) -> tuple[str, ...]:
    notes = list(notes_on_sets(run, printed))
    shown = [record for record in run.records if record.detector in block.detectors]
    if max(len({r.seed for r in shown} - {None}), len({r.backbone for r in shown})) > 1:
        notes.append(
            f"{OVER_SEEDS}: standard deviation over seeds on one backbone, root mean square over backbones; {OVER_BACKBONES}: "
            "standard deviation over backbones of the mean over seeds. Both n − 1."
        )
    theirs = beside(run.protocol, block.detectors)
    if printed:
        notes.append(f"{theirs.label}: {theirs.reference}.")
    if "GaussianMixture" in block.detectors and block.printed.get("GaussianMixture"):
        notes.append("For the mixture alone the paper prints SSD's figures.")
    if printed:
        notes += theirs.notes
    return tuple(notes)


def notes_on_sets(run: BenchmarkRun, printed: bool = False) -> tuple[str, ...]:
    """Which sets are missing, which the paper does not have, and what that does to means.

    Args:
        run: the results.
        printed: whether the paper's figures stand beside.
    """
    found, theirs, who = present(run.records, run.protocol), paper_columns(run.protocol), beside(run.protocol).words
    absent = [title(name) for name in dict.fromkeys((*run.protocol.ood, *theirs[AVERAGE])) if name not in found]
    added = [title(name) for name in found if name not in theirs[AVERAGE]]
    notes = []
    if absent:
        notes.append(f"Without {', '.join(absent)}, not there in this run: means are over the other sets.")
    if added:
        notes.append(f"With {', '.join(added)}, not in {who}: it has no figure for a mean over more than its sets.")
    if absent and printed:
        whose = f"{who[:1].upper()}{who[1:]}'s"
        notes.append(f"{whose} figures, too, are means over the other sets, where it prints each of them.")
    notes += [f"{name} is left out, {why}." for name, why in run.provenance.get("left_out", {}).items()]
    return tuple(notes)


def claims_table(run: BenchmarkRun) -> Table | None:
    """What the paper claims, what was compared, and whether it came out so; None where there is no claim to test.

    The rules are those of :func:`outfield.benchmark.claims.check_claims`.
    """
    rows = []
    for claim in check_claims(run.records, run.protocol):
        head = f"({claim.name}) {claim.statement}: {claim.verdict}"
        lines = [
            [check.what, in_percent(check.found), in_percent(check.against), _outcome(check.passed, check.of)]
            for check in claim.checks
        ]
        if claim.verdict == UNTESTED:
            lines = [[f"the run lacks {', '.join(claim.lacks)}", "", "", ""]]
        rows += [[head if index == 0 else "", *line] for index, line in enumerate(lines)]
    header = ["claim", "what was compared", THIS_RUN, "against", "as claimed"]
    name = f"What the paper says of {title(run.protocol.id)}, and what this run finds (in percent)"
    rules = (
        f"On par: worse by at most {MARGIN['fpr95'] * 100:g} point of FPR95 and {MARGIN['auroc'] * 100:g} of AUROC. "
        "Judged on means over backbones and seeds, however they spread, except where every backbone and seed is named."
    )
    sets = "Judged on the paper's sets only; a claim about a set that is missing is not tested."
    return Table(name, header, rows, 2, notes=(rules, sets)) if rows else None


def _outcome(passed: int, of: int) -> str:
    return f"{passed} of {of}" if of > 1 else "yes" if passed else "no"
