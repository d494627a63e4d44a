"""A benchmark's run as tables: the paper's three with its figures beside, one for each backbone, the claims, the best detector
against the others, fewer training rows; and what ``evaluate`` found.

A detector has a row for this run's means, one for each spread that there is (over seeds, over backbones) and one for what the
paper prints. Cells are "FPR95 / AUROC" in percent; the best means of a column are in bold.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfield import benchmark
from outfield.benchmark import (
    AVERAGE,
    LEVELS,
    BenchmarkRun,
    Cell,
    Columns,
    Difference,
    PrintedTable,
    Result,
    RiskCurves,
)
from outfield.benchmark import published_beside as beside
from outfield.images import title
from outfield.percent import counted, in_percent, percent
from outfield.report.table import Table
from outfield.version import __version__

Best = frozenset[tuple[int, int, int]]
DEFAULT, OURS = "Auto", "EnergyCorrected"
ABLATION = ("GaussianMixture", "EBM", OURS)
TABLE_1 = tuple(name for name in benchmark.ROWS if name not in ABLATION or name == OURS)
METRICS = "FPR95 ↓ / AUROC ↑ in percent"
THIS_RUN, OVER_SEEDS, OVER_BACKBONES, PAPER = "this run", "± seeds", "± backbones", "paper"
RIGHT = ((0.99, 0.95), (0.9, 0.8))  # of accepted answers, in the table of risk: ID data alone, and with OOD data
RESAMPLES = 400  # enough for the one digit that is shown


@dataclass(frozen=True)
class Block:
    """Which detectors and columns a table shows, and what the paper has there, over the same sets."""

    name: str
    title: str
    detectors: Sequence[str]
    columns: Columns
    printed: PrintedTable
    labels: Mapping[str, str]
    whose: str = PAPER


def blocks(run: BenchmarkRun) -> list[Block]:
    """The paper's tables: Table 1, that of each set, and the ablation where the run has two of its rows."""
    records, protocol, theirs = run.records, run.protocol, beside(run.protocol)
    found = list(dict.fromkeys(record.detector for record in records))
    levels, sets = benchmark.level_columns(records, protocol), benchmark.set_columns(records, protocol)
    ours = {OURS: f"{OURS} (ours)", DEFAULT: f"{DEFAULT} (the default)"}
    parts = ours | {"GaussianMixture": "GaussianMixture (ours w/o energy)", "EBM": "EBM (ours w/o MoG)"}
    ablation = [name for name in ABLATION if name in found]
    apart = ablation if len(ablation) > 1 else []

    def with_others(rows: Sequence[str], elsewhere: Sequence[str] = ()) -> list[str]:
        """The default, the paper's rows, then detectors that have none: those it knows, then one's own."""
        order = dict.fromkeys([DEFAULT, *rows, *benchmark.ROWS, *found])
        return [name for name in order if name in found and (name in rows or name not in elsewhere)]

    *first, last = [column for column in levels if column != AVERAGE]
    listed = f"{', '.join(first)} and {last}" if first else last
    made = (
        ("levels", f"against {listed} OOD", with_others(TABLE_1, apart), levels, ours),
        ("detailed", "against each OOD set", with_others(benchmark.COMPARED), sets, ours),
        ("ablation", "without parts of the method", apart, levels, parts),
    )
    blocks = []
    for name, words, rows, columns, labels in made:
        printed = benchmark.published(theirs.rows, columns, protocol)
        blocks.append(Block(name, f"{title(protocol.id)} {words}", rows, columns, printed, labels, theirs.label))
    return [block for block in blocks if block.detectors]


def tables(run: BenchmarkRun) -> dict[str, Table]:
    """Every table by name: "levels", "detailed", "ablation", then "backbone NAME" for each if there are several."""
    backbones = dict.fromkeys(record.backbone for record in run.records)
    several = backbones if len(backbones) > 1 else ()
    made = {block.name: table(block, run) for block in blocks(run)}
    return made | {f"backbone {name}": backbone_table(run, name) for name in several}


def all_tables(run: BenchmarkRun, *, claims: bool = True) -> dict[str, Table]:
    """What :func:`tables` gives, and "claims" where they are asked for and there are any to judge."""
    judged = claims_table(run) if claims else None
    return tables(run) | ({} if judged is None else {"claims": judged})


def table(block: Block, run: BenchmarkRun) -> Table:
    """A table of the paper, from this run, with the paper's figures beside."""
    where = f"{block.title}: {METRICS}, {_what_was_run(run, block.detectors)}"
    made = _filled(block, where, run.records)
    return replace(made, notes=_notes(run, block, {row[1] for row in made.rows}))


def backbone_table(run: BenchmarkRun, backbone: str) -> Table:
    """All detectors on one backbone's features; its accuracy in the title."""
    records = [record for record in run.records if record.backbone == backbone]
    names = list(dict.fromkeys(record.detector for record in records))
    columns = benchmark.level_columns(records, run.protocol)
    accuracy = f" (accuracy {percent(run.accuracies[backbone])})" if backbone in run.accuracies else ""
    where = f"{title(run.protocol.id)}, backbone {backbone}{accuracy}: {METRICS}"
    block = Block(backbone, "", names, columns, {}, {OURS: f"{OURS} (ours)"})
    return replace(_filled(block, where, records), notes=notes_on_sets(run))


def _filled(block: Block, name: str, records: Sequence[Result]) -> Table:
    """The table with its rows, but without notes."""
    cells, rows, means = benchmark.summarise(records, block.columns), list[list[str]](), list[int]()
    for detector in block.detectors:
        mine, printed = cells[detector], block.printed.get(detector, {})
        means.append(len(rows))
        lines = {
            THIS_RUN: [_means(mine.get(column)) for column in block.columns],
            OVER_SEEDS: [_spreads(mine.get(column), "over_seeds") for column in block.columns],
            OVER_BACKBONES: [_spreads(mine.get(column), "over_backbones") for column in block.columns],
            block.whose: [_printed(printed.get(column)) for column in block.columns],
        }
        rows += [["", kind, *line] for kind, line in lines.items() if kind == THIS_RUN or any(line)]
        rows[means[-1]][0] = block.labels.get(detector, detector)
    return Table(name, ["detector", "", *map(_heading, block.columns)], rows, 2, _best(rows, means, 2))


def _best(rows: Sequence[Sequence[str]], among: Sequence[int], first: int) -> Best:
    """The lowest FPR95 and the highest AUROC of each column from ``first`` on, as printed: equal figures are equally good."""
    best = set()
    for column in range(first, len(rows[0])):
        for part, choose in enumerate((min, max)):
            cells = {row: rows[row][column] for row in among}
            values = {row: float(cell.split(" / ")[part]) for row, cell in cells.items() if " / " in cell}
            if len(values) > 1:
                best |= {(row, column, part) for row, value in values.items() if value == choose(values.values())}
    return frozenset(best)


def _pair(fpr95: float, auroc: float) -> str:
    return f"{in_percent(fpr95)} / {in_percent(auroc)}"


def _means(cell: Cell | None) -> str:
    return "" if cell is None else _pair(cell.fpr95.mean, cell.auroc.mean)


def _spreads(cell: Cell | None, over: str) -> str:
    """Two digits, since what varies by less than 0.05 points does vary."""
    pair = [] if cell is None else [getattr(cell.fpr95, over), getattr(cell.auroc, over)]
    return " / ".join(f"{100 * value:.2f}" for value in pair if value is not None)


def _printed(cell: benchmark.Printed | None) -> str:
    if cell is None:
        return ""
    return f"{'–' if cell.fpr95 is None else f'{cell.fpr95:.1f}'} / {cell.auroc:.1f}"


def _heading(column: str) -> str:
    return column if column == AVERAGE else f"{column} OOD" if column in LEVELS else title(column)


def _what_was_run(run: BenchmarkRun, detectors: Sequence[str]) -> str:
    """How many backbones and seeds stand behind a mean; the accuracies of the backbones."""
    shown = [record for record in run.records if record.detector in detectors]
    backbones, seeds = dict.fromkeys(record.backbone for record in shown), {record.seed for record in shown} - {None}
    known = [in_percent(run.accuracies[name]) for name in backbones if name in run.accuracies]
    text = counted(len(backbones), "backbone") + (f" (accuracy {', '.join(known)} %)" if known else "")
    return text + (f", {counted(len(seeds), 'seed')} of each learned detector" if seeds else "")


def _notes(run: BenchmarkRun, block: Block, kinds: Collection[str]) -> tuple[str, ...]:
    """What is to be said of a table with rows of these kinds."""
    printed = block.whose in kinds
    notes = list(notes_on_sets(run, printed))
    if OVER_SEEDS in kinds or OVER_BACKBONES in kinds:
        notes.append(
            f"{OVER_SEEDS}: standard deviation over seeds on one backbone, root mean square over backbones; {OVER_BACKBONES}: "
            "standard deviation over backbones of the mean over seeds. Both n − 1."
        )
    theirs = beside(run.protocol, block.detectors)
    notes += [f"{theirs.label}: {theirs.reference}."] * printed
    if "GaussianMixture" in block.detectors and block.printed.get("GaussianMixture"):
        notes.append("For the mixture alone the paper prints SSD's figures.")
    return (*notes, *(theirs.notes if printed else ()))


def notes_on_sets(run: BenchmarkRun, printed: bool = False) -> tuple[str, ...]:
    """Which sets are missing, which the paper does not have, and what that does to means and to figures printed beside them."""
    found, theirs = benchmark.present(run.records, run.protocol), benchmark.paper_columns(run.protocol)
    who = beside(run.protocol).words
    absent = [title(name) for name in dict.fromkeys((*run.protocol.ood, *theirs[AVERAGE])) if name not in found]
    added = [title(name) for name in found if name not in theirs[AVERAGE]]
    notes = []
    if absent:
        notes.append(f"Without {', '.join(absent)}, not there in this run: means are over the other sets.")
    if added:
        notes.append(f"With {', '.join(added)}, not in {who}: it has no figure for a mean over more than its sets.")
    if absent and printed:
        whose = f"{who[0].upper()}{who[1:]}'s"
        notes.append(f"{whose} figures, too, are means over the other sets, where it prints each of them.")
    held = [f"{n:,} {what}" for what, n in run.provenance.get("held_out", {}).items() if what in ("images", "rows")]
    notes += [f"{n} of the ID test set only calibrate Auto and its like; no detector is judged on them." for n in held]
    notes += [f"{name} is left out, {why}." for name, why in run.provenance.get("left_out", {}).items()]
    return tuple(notes)


def origin(about: Mapping[str, Any]) -> str:
    """Where numbers come from in one line: version, commit, libraries, machine, time."""
    versions, machine = about.get("versions", {}), about.get("machine", {})
    words = [f"Outfield {versions.get('outfield', __version__)}"]
    words += [benchmark.commit_in_words(about)] * bool(about.get("commit"))
    words += [f"{name} {versions[name]}" for name in ("torch", "torchvision", "timm") if versions.get(name)]
    words += [str(machine.get("gpu") or f"{machine.get('cpus')} CPU cores")] * bool(machine)
    return ", ".join([*words, *filter(None, [about.get("started")])])


def claims_table(run: BenchmarkRun) -> Table | None:
    """What the paper claims, what was compared, and whether it came out so; None where there is no claim to test."""
    rows = []
    for claim in benchmark.check_claims(run.records, run.protocol):
        lines = [["", f"the run lacks {', '.join(claim.lacks)}", "", "", ""]] * bool(claim.lacks)
        for check in claim.checks:
            outcome = f"{check.passed} of {check.of}" if check.of > 1 else "yes" if check.passed else "no"
            lines.append(["", check.what, in_percent(check.found), in_percent(check.against), outcome])
        lines[0][0] = f"({claim.name}) {claim.statement}: {claim.verdict}"
        rows += lines
    header = ["claim", "what was compared", THIS_RUN, "against", "as claimed"]
    name = f"What the paper says of {title(run.protocol.id)}, and what this run finds (in percent)"
    points = {metric: 100 * margin for metric, margin in benchmark.MARGIN.items()}
    rules = (
        f"On par: worse by at most {points['fpr95']:g} point of FPR95 and {points['auroc']:g} of AUROC. "
        "Judged on means over backbones and seeds, however they spread, except where every backbone and seed is named."
    )
    sets = "Judged on the paper's sets only; a claim about a set that is missing is not tested."
    return Table(name, header, rows, 2, notes=(rules, sets)) if rows else None


def comparison_table(run: BenchmarkRun, resamples: int = RESAMPLES) -> Table | None:
    """How the row with the lowest mean FPR95 differs from the others, in points; None without two of scores on the same rows."""
    best = best_row(run)
    others = [name for name in dict.fromkeys(key.detector for key in run.scores) if name != best]
    if best is None or not others:
        return None
    found = benchmark.compare(run, best, others, resamples=resamples)
    columns = [column for column in (*LEVELS, AVERAGE) if column in found[0].fpr95]
    rows: list[list[str]] = []
    clear: set[tuple[int, int, int]] = set()
    for one in found:
        for label, words, by_column in ((one.second, "FPR95 ↓", one.fpr95), ("", "AUROC ↑", one.auroc)):
            clear |= {(len(rows), place, 0) for place, column in enumerate(columns, 2) if by_column[column].clear}
            rows.append([label, words, *(_interval(by_column[column]) for column in columns)])
    name = f"{title(run.protocol.id)}, {best} against the others: {best} less the other, in points of percent"
    several = max(len(one.backbones) for one in found)
    over = f"samples and over the {several} backbones (few make it too narrow)" if several > 1 else "samples"
    notes = (
        f"In brackets the 95 % interval of a paired bootstrap ({resamples} resamples, the same rows for both detectors) over "
        f"{over}; in bold where zero lies outside of it.",
        f"{best} has the lowest mean FPR95 on these very sets: that choice is not in the intervals.",
    )
    return Table(name, ["detector", "", *map(_heading, columns)], rows, 2, frozenset(clear), notes)


def best_row(run: BenchmarkRun) -> str | None:
    """The detector with scores whose mean FPR95 over all sets is lowest; the first of those, None where there is none."""
    cells = benchmark.summarise(run.records, {AVERAGE: benchmark.present(run.records, run.protocol)})
    scored = {key.detector for key in run.scores}
    means = {name: mine[AVERAGE].fpr95.mean for name, mine in cells.items() if AVERAGE in mine and name in scored}
    return min(means, key=lambda name: means[name], default=None)


def _interval(difference: Difference) -> str:
    low, high = difference.widest
    return f"{_points(difference.value)} [{_points(low)}, {_points(high)}]"


def _points(share: float) -> str:
    """A difference in points with its sign; what rounds to zero has none.

    >>> _points(-0.0312), _points(0.002), _points(-0.0001)
    ('−3.1', '+0.2', '0.0')
    """
    text = f"{100 * share:+.1f}"
    return "0.0" if text[1:] == "0.0" else text.replace("-", "−")


def fraction_table(run: BenchmarkRun) -> Table | None:
    """FPR95 and AUROC by the fraction of training rows; None where there are none. A dash: not fitted, and a note says why."""
    if not (cells := benchmark.fraction_cells(run)):
        return None
    fractions = sorted({fraction for mine in cells.values() for fraction in mine})
    rows = [[name, *(_fraction(mine.get(fraction)) for fraction in fractions)] for name, mine in cells.items()]
    notes = [
        "Means over all OOD sets, seeds and backbones. The rows of a smaller share are among those of a larger one."
    ]
    for name, mine in cells.items():
        if failed := [cell for cell in mine.values() if cell.reason]:
            shares = ", ".join(f"{100 * cell.fraction:g} %" for cell in failed)
            notes.append(f"{name} cannot be fitted on {shares}: {failed[0].reason}.")
    name = f"{title(run.protocol.id)}, fewer training rows: {METRICS}, by the share of the rows of each class"
    header = ["detector", *(f"{100 * fraction:g} %" for fraction in fractions)]
    return Table(name, header, rows, 1, _best(rows, range(len(rows)), 1), tuple(notes))


def _fraction(cell: benchmark.LowData | None) -> str:
    if cell is None:
        return ""
    return "–" if cell.fpr95 is None or cell.auroc is None else _pair(cell.fpr95, cell.auroc)


def risk_figures(risks: Mapping[str, RiskCurves]) -> dict[str, dict[str, float]]:
    """What :func:`risk_table` shows by detector, fractions by name."""
    found: dict[str, dict[str, float]] = {detector: {} for detector in risks}
    for own, curves in zip(found.values(), risks.values(), strict=True):
        for start, curve, shares in zip(("", "with_ood_"), curves, RIGHT, strict=True):
            if curve is not None:
                own |= {f"{start}aurc": curve.aurc(), f"{start}augrc": curve.augrc()}
                own |= {f"{start}coverage_at_risk_{1 - x:.2g}": curve.coverage_at(1 - x + 1e-12) for x in shares}
    return found


def risk_table(risks: Mapping[str, RiskCurves], name: str = "") -> Table | None:
    """How well detectors rank the classifier's answers, on ID data alone and with OOD data; None where that is not known."""
    if not risks:
        return None
    shown = [[f"{100 * share:g} % right ↑" for share in shares] for shares in RIGHT]
    header = ["detector", "AURC ↓", "AUGRC ↓", *shown[0], "with OOD: AURC ↓", "AUGRC ↓", *shown[1]]
    rows = [[detector, *map(in_percent, own.values())] for detector, own in risk_figures(risks).items()]
    rows = [[*row, *[""] * (len(header) - len(row))] for row in rows]
    notes = (
        "A detector's score ranks the answers of the classifier; the lowest are accepted first. 99 % right: the share of answers "
        "that can be accepted so that 99 % of these are right. With OOD: half of the inputs are OOD, of all sets in equal parts, "
        "and every answer to one is wrong.",
    )
    return Table(f"{name}Risk and coverage, in percent", header, rows, 1, notes=notes)


def results_table(results: Sequence[Result]) -> Table:
    """One row per detector, FPR95 / AUROC for each OOD set and their mean, in percent."""
    sets = list(dict.fromkeys(result.ood for result in results))
    rows = []
    for name in dict.fromkeys(result.detector for result in results):
        mine = {result.ood: result for result in results if result.detector == name}
        pairs = [(mine[ood].fpr95, mine[ood].auroc) for ood in sets]
        mean = map(statistics.mean, zip(*pairs, strict=True))
        rows.append([name, *(_pair(*pair) for pair in pairs), *[_pair(*mean)] * (len(sets) > 1)])
    return Table("FPR95 ↓ / AUROC ↑ (%)", ["detector", *sets, *["mean"] * (len(sets) > 1)], rows)


def full_table(results: Sequence[Result]) -> Table:
    """One row per detector and OOD set with every metric, in percent."""
    header = ["detector", "OOD set", "FPR95 ↓", "AUROC ↑", "AUPR in ↑", "AUPR out ↑", "OOD samples"]
    rows = []
    for one in results:
        metrics = map(in_percent, (one.fpr95, one.auroc, one.aupr_in, one.aupr_out))
        rows.append([one.detector, one.ood, *metrics, f"{one.n_ood:,}"])
    return Table("in percent", header, rows, left=2)
