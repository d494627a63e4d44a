"""The answer at a glance: the best figures, and every detector at each distance with the paper's figures below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.paper import AVERAGE
from outfield.benchmark.summary import Cell, Columns, Spread, level_columns, present, published, summarise
from outfield.images.catalogue import title as set_title
from outfield.percent import in_percent, percent
from outfield.report.benchmark_tables import notes_on_sets
from outfield.report.figures import Paper
from outfield.report.page.markup import Html, element, join
from outfield.report.page.section import Section, count
from outfield.report.page.tables import caption, framed, notes_below

METHOD = "EnergyCorrected"
"""The paper's method; its row is marked."""
METRICS = {"fpr95": ("FPR95 ↓", min), "auroc": ("AUROC ↑", max)}


def facts(run: BenchmarkRun, paper: Paper) -> Html | None:
    """The answer at a glance: accuracy, the best two averages, the method's own."""
    found = []
    if run.accuracies:
        values = sorted(run.accuracies.values())
        ends = dict.fromkeys(map(in_percent, (values[0], values[-1])))
        who = next(iter(run.accuracies)) if len(values) == 1 else count(len(values), "backbone")
        found.append(("Accuracy on ID test data", f"{'–'.join(ends)} %", who))
    sets = present(run.records, run.protocol)
    means = summarise(run.records, {AVERAGE: sets})
    averages = {name: cells[AVERAGE] for name, cells in means.items() if AVERAGE in cells}
    if averages:
        for metric, words in (("fpr95", "Lowest average FPR95"), ("auroc", "Highest average AUROC")):
            best = METRICS[metric][1](averages, key=lambda name: getattr(averages[name], metric).mean)
            found.append((words, percent(getattr(averages[best], metric).mean), best))
    if METHOD in averages:
        printed = published(paper.get(METHOD, {}), AVERAGE, sets, run.protocol)
        detail = "FPR95 / AUROC in percent"
        detail += f"; the paper: {printed[0]:.1f} / {printed[1]:.1f}" if printed else ""
        cell = averages[METHOD]
        found.append((f"{METHOD}, average", f"{in_percent(cell.fpr95.mean)} / {in_percent(cell.auroc.mean)}", detail))
    tiles = [
        element(
            "div",
            element("dt", words),
            element("dd", figure, class_="figure"),
            element("dd", detail, class_="detail"),
        )
        for words, figure, detail in found
    ]
    return element("dl", *tiles, class_="facts") if tiles else None


def results_section(run: BenchmarkRun, paper: Paper, notes: Sequence[str]) -> Section | None:
    """The first table; None for a run without records."""
    if not run.records:
        return None
    columns = level_columns(run.records, run.protocol)
    cells = summarise(run.records, columns)
    printed = {
        name: {
            column: figures
            for column, sets in columns.items()
            if (figures := published(paper.get(name, {}), column, sets, run.protocol)) is not None
        }
        for name in cells
    }
    reading = _reading(cells, printed)
    head = [
        element("th", "Detector", scope="col", rowspan="2", data_column="0"),
        *(
            element("th", _level_heading(name), class_="group", scope="colgroup", colspan="2", title=_titles(sets))
            for name, sets in columns.items()
        ),
    ]
    below = [
        element(
            "th", words, class_="number first" if metric == "fpr95" else "number", scope="col", data_column=str(place)
        )
        for place, (metric, words) in enumerate(
            ((metric, words) for _ in columns for metric, (words, _) in METRICS.items()), start=1
        )
    ]
    rows = [element("tbody", _result_row(name, cells, columns, printed)) for name in cells]
    words_above = caption(
        f"Telling {set_title(run.protocol.id)} from other images",
        f"In percent; the best of each column in bold, a deeper tint is better{reading}.",
    )
    table = element(
        "table",
        words_above,
        element("thead", element("tr", *head), element("tr", *below)),
        *rows,
        class_=f"headline sortable{' spreads' * ('±' in reading)}",
    )
    words = element(
        "p",
        "FPR95 is the share of OOD samples that pass at the threshold which keeps 95 % of ID samples; lower is better. "
        "AUROC is the chance that an OOD sample scores higher than an ID sample; higher is better.",
    )
    lines = [*_levels(run, any(printed.values())), *notes]
    return Section(
        "results", "Results at a glance", join([words, framed(table, "Results at a glance"), notes_below(lines)])
    )


def _level_heading(column: str) -> object:
    return "Average" if column == AVERAGE else join([element("span", class_=f"tag {column}"), f"{column}-OOD"])


def _titles(sets: Sequence[str]) -> str:
    return ", ".join(map(set_title, sets))


def _reading(cells: Mapping[str, Mapping[str, Cell]], printed: Paper) -> str:
    """How to read the small figures of the first table."""
    spreads = [cell.fpr95 for mine in cells.values() for cell in mine.values()]
    words = ""
    if any(spread.over_backbones is not None for spread in spreads):
        words += "; ± is the standard deviation over backbones"
    elif any(spread.over_seeds is not None for spread in spreads):
        words += "; ± is the standard deviation over seeds"
    return f"{words}; in italics, below ours, the paper's figures" if any(printed.values()) else words


def _levels(run: BenchmarkRun, printed: bool) -> list[str]:
    there = present(run.records, run.protocol)
    shown = {level: [name for name in names if name in there] for level, names in run.protocol.levels.items()}
    lines = ["; ".join(f"{level}-OOD: {_titles(names)}" for level, names in shown.items() if names) + "."]
    return [*lines, *notes_on_sets(run, printed)]


def _result_row(name: str, cells: Mapping[str, Mapping[str, Cell]], columns: Columns, printed: Paper) -> Html:
    shown: list[Html] = [element("th", name, scope="row")]
    for column in columns:
        for place, (metric, (_, best)) in enumerate(METRICS.items()):
            means = {other: getattr(mine[column], metric).mean for other, mine in cells.items() if column in mine}
            first = "number first" if place == 0 else "number"
            if name not in means:
                shown.append(element("td", "–", class_=first))
                continue
            figures = printed[name].get(column)
            shown.append(
                element(
                    "td",
                    _value(
                        getattr(cells[name][column], metric),
                        in_percent(means[name]) == in_percent(best(means.values())),
                    ),
                    element("span", f"{figures[place]:.1f}", class_="paper") if figures else None,
                    class_=first,
                    style=f"--heat:{_heat(means[name], list(means.values()), best is max):.2f}",
                )
            )
    return element("tr", *shown, class_="method" if name == METHOD else None)


def _value(spread: Spread, best: bool) -> Html:
    varies = spread.over_seeds if spread.over_backbones is None else spread.over_backbones
    mean = element("strong" if best else "span", in_percent(spread.mean), class_="value")
    return join([mean, None if varies is None else element("span", f"±{in_percent(varies)}", class_="spread")])


def _heat(value: float, values: Sequence[float], high: bool) -> float:
    """0 for the worst of a column, 1 for its best."""
    low, top = min(values), max(values)
    share = (value - low) / (top - low) if top > low else 0.0
    return share if high else (1 - share) * (top > low)
