"""The table and the picture of what a filter does to each detector; see filters.py, which measures it.

A result has ``protocol``, ``filters`` (two names), ``sets`` (name → images) and ``backbones``: backbone → detector → filter →
set → ``fpr95`` and ``auroc``. A difference is the first filter's figure minus the second's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outfield.benchmark import PROTOCOLS
from outfield.images import title
from outfield.report import Table
from outfield.report.canvas import FAINT, FAR, ID, INK, MUTED, SIZE, Line2D, MaxNLocator, new_figure, subplots
from outfield.report.figures.chart import short

Result = Mapping[str, Any]
METRICS = ("fpr95", "auroc")


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def table(result: Result) -> list[dict[str, Any]]:
    """Rows by detector, the one that the filter moves most first: figures in [0, 1], means over backbones.

    ``sets`` has for each set, and ``mean`` over the sets, for each metric [first, second, difference]; ``moved`` is the mean
    over sets of the absolute difference in FPR95, by which rows are sorted. Detectors that not every backbone has are left out.
    """
    backbones = list(result["backbones"].values())
    rows = []
    for name in backbones[0]:
        if not all(name in backbone for backbone in backbones):
            continue
        cells = {
            one: {
                metric: both([backbone[name] for backbone in backbones], result["filters"], one, metric)
                for metric in METRICS
            }
            for one in result["sets"]
        }
        means = {metric: [mean(cell[metric][i] for cell in cells.values()) for i in range(3)] for metric in METRICS}
        moved = mean(abs(cell["fpr95"][2]) for cell in cells.values())
        rows.append({"detector": name, "sets": cells, "mean": means, "moved": moved})
    return sorted(rows, key=lambda row: -float(row["moved"]))


def both(detector: Sequence[Any], filters: Sequence[str], one: str, metric: str) -> list[float]:
    """A metric on a set with the first filter, with the second, and the difference; means over backbones."""
    first, second = (mean(backbone[name][one][metric] for backbone in detector) for name in filters)
    return [first, second, first - second]


def merged(results: Sequence[Result]) -> list[Result]:
    """One result for each protocol, with the backbones of all results for it.

    Raises:
        SystemExit: results for one protocol are of other filters or sets, or have a backbone twice.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in results:
        whole = found.setdefault(one["protocol"], {**one, "backbones": {}})
        for what in ("filters", "sets"):
            if whole[what] != one[what]:
                raise SystemExit(
                    f"two results for {one['protocol']} differ in their {what}: {whole[what]}, {one[what]}"
                )
        twice = whole["backbones"].keys() & one["backbones"].keys()
        if twice:
            raise SystemExit(f"two results for {one['protocol']} have the backbone {', '.join(sorted(twice))}")
        whole["backbones"] |= one["backbones"]
    return list(found.values())


def heading(result: Result) -> str:
    """The ID set and how many backbones, in words."""
    count = len(result["backbones"])
    return (
        f"{title(PROTOCOLS[result['protocol']].id)}, {'one backbone' if count == 1 else f'mean of {count} backbones'}"
    )


def markdown(result: Result) -> str:
    """Two tables in percent: FPR95, then AUROC, on each set and their mean, second filter → first, and how the mean changes."""
    first, second = result["filters"]
    found, header = table(result), ["", *map(title, result["sets"]), "mean", "change"]
    texts = []
    for metric, name in zip(METRICS, ("FPR95", "AUROC"), strict=True):
        rows = [
            [
                row["detector"],
                *(arrow(cell[metric]) for cell in row["sets"].values()),
                arrow(row["mean"][metric]),
                signed(row["mean"][metric][2]),
            ]
            for row in found
        ]
        texts.append(f"**{heading(result)}: {name}, {second} → {first}**\n\n{Table('', header, rows).markdown()}")
    return "\n\n".join(texts)


def arrow(cell: Sequence[float]) -> str:
    """
    >>> arrow([0.626, 0.745, -0.119])
    '74.5 → 62.6'
    """
    return f"{100 * cell[1]:.1f} → {100 * cell[0]:.1f}"


def signed(value: float) -> str:
    """A difference in percentage points; a typographic minus, and no sign on what rounds to 0.

    >>> signed(-0.119), signed(0.0312), signed(-0.0001)
    ('−11.9', '+3.1', '0.0')
    """
    shown = f"{100 * value:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")


def draw(results: Sequence[Result]) -> Any:
    """One panel for each protocol: mean FPR95 of every detector, a line from the second filter (ring) to the first (dot).

    The detector whose FPR95 falls most is at the top.
    """
    tables = [{row["detector"]: row for row in table(result)} for result in results]
    order = by_change(tables)
    first, second = results[0]["filters"]
    width, height = 2.7 + (5.2 if len(results) == 1 else 3.7 * len(results)), 0.215 * len(order) + 1.7
    figure = new_figure(width, height)
    place = {"left": 1.95 / width, "right": 1 - 0.72 / width, "bottom": 0.65 / height, "top": 1 - 1.05 / height}
    panels = subplots(figure, 1, len(results), **place, wspace=0.27)[0]
    for number, (axes, result, rows) in enumerate(zip(panels, results, tables, strict=True)):
        panel(axes, order, rows)
        axes.set_title(heading(result), fontsize=10, fontweight="bold", color=INK, pad=8)
        axes.set_xlabel(f"FPR95 ↓ (%), mean of\n{', '.join(map(title, result['sets']))}")
        axes.set_yticks(range(len(order)), [short(name, 24) if number == 0 else "" for name in order])
    edge = 0.12 / width
    words = "The same OOD images, shrunk by another filter: FPR95 of each detector"
    figure.text(edge, 1 - 0.3 / height, words, fontsize=12, fontweight="bold", color=INK, va="center")
    marks = [ring(MUTED, second), dot(MUTED, first), line(ID, f"lower with {first}"), line(FAR, f"higher with {first}")]
    look = {"fontsize": SIZE, "labelcolor": INK, "frameon": False, "ncols": 4, "borderaxespad": 0, "borderpad": 0}
    figure.legend(handles=marks, loc="center left", bbox_to_anchor=(edge, 1 - 0.58 / height), **look)
    return figure


def by_change(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of detectors, the one whose FPR95 falls most first; means over the tables that have it."""
    names = dict.fromkeys(name for rows in tables for name in rows)
    return sorted(names, key=lambda name: mean(rows[name]["mean"]["fpr95"][2] for rows in tables if name in rows))


def panel(axes: Any, order: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Lines and dots, and the change of each detector at the right edge."""
    for place, name in enumerate(order):
        if name not in rows:
            continue
        now, before, change = rows[name]["mean"]["fpr95"]
        said = signed(change)
        colour = MUTED if said == "0.0" else ID if change < 0 else FAR
        ends = [100 * before, 100 * now]
        axes.plot(ends, [place, place], color=colour, linewidth=2.2, alpha=0.55, solid_capstyle="butt", zorder=2)
        axes.plot(ends[0], place, "o", color=colour, markerfacecolor="white", markersize=5.2, zorder=3)
        axes.plot(ends[1], place, "o", color=colour, markersize=5.2, zorder=4)
        axes.annotate(
            said, (1, place), (40, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            ha="right", va="center_baseline", color=INK, fontsize=SIZE, annotation_clip=False,
        )  # fmt: skip
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.margins(x=0.06)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="both", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)


def ring(colour: str, label: str) -> Any:
    return Line2D(
        [], [], linestyle="none", marker="o", color=colour, markerfacecolor="white", markersize=6, label=label
    )


def dot(colour: str, label: str) -> Any:
    return Line2D([], [], linestyle="none", marker="o", color=colour, markersize=6, label=label)


def line(colour: str, label: str) -> Any:
    return Line2D([], [], color=colour, linewidth=2.2, alpha=0.55, label=label)
