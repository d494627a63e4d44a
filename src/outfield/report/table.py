"""Results to text: all formatting of numbers lives here. Nothing here computes a metric."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

from outfield.benchmark.evaluation import Result
from outfield.studies.toy import ToyRun


@dataclass(frozen=True)
class Table:
    """A table ready to print: a header and rows of text.

    Args:
        title: one line.
        header: of each column.
        rows: of text. A cell may show two numbers, "47.5 / 89.9". A row whose first cell is empty belongs to
            the one above.
        left: so many first columns are words, the others numbers.
        best: what to set in bold: (row, column, which of the numbers in the cell).
        notes: lines to go below it.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: int = 1
    best: frozenset[tuple[int, int, int]] = frozenset()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As a Markdown table."""
        rows = [
            [*map(_markdown, self.header)],
            ["---"] * len(self.header),
            *self._marked(_markdown, lambda text: f"**{text}**"),
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def latex(self) -> str:
        """As a LaTeX ``tabular`` with the rules of booktabs."""
        lines = [rf"\begin{{tabular}}{{{'l' * self.left}{'r' * (len(self.header) - self.left)}}}", r"\toprule"]
        lines += [" & ".join(map(tex, self.header)) + r" \\", r"\midrule"]
        grouped = any(not row[0] for row in self.rows)
        for index, row in enumerate(self._marked(tex, lambda text: rf"\textbf{{{text}}}")):
            lines += [r"\addlinespace"] * (grouped and index > 0 and bool(row[0]))
            lines.append(" & ".join(row) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def _marked(self, escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
        """Rows with their text escaped and the best numbers in bold."""
        return [
            [
                " / ".join(
                    bold(escape(part)) if (i, j, k) in self.best else escape(part)
                    for k, part in enumerate(cell.split(" / "))
                )
                for j, cell in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]


def _markdown(text: str) -> str:
    """Text that cannot end a cell of a Markdown table or begin markup in it."""
    return re.sub(r"([\\|*`<])", r"\\\1", text)


TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # at the start of a row they would be arguments of the row's end before
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "→": r"$\rightarrow$",
    "…": r"\ldots{}",
    "’": "'",
}
"""What LaTeX would take for a command, or may have no letter for."""


def tex(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    >>> print(tex("50 % of a_b & {c} ± 1"))
    50 \% of a\_b \& \{c\} $\pm$ 1
    """
    return "".join(TEX.get(sign, sign) for sign in text)


def percent(fraction: float) -> str:
    """0.4567 → 45.7."""
    return f"{100 * fraction:.1f}"


def results_table(results: Sequence[Result]) -> Table:
    """One row per detector, FPR95 / AUROC for each OOD set and their mean, in percent."""
    sets = list(dict.fromkeys(result.ood for result in results))
    rows = []
    for name in dict.fromkeys(result.detector for result in results):
        mine = {result.ood: result for result in results if result.detector == name}
        cells = [f"{percent(mine[s].fpr95)} / {percent(mine[s].auroc)}" for s in sets]
        mean = f"{percent(statistics.mean(r.fpr95 for r in mine.values()))} / " + percent(
            statistics.mean(r.auroc for r in mine.values())
        )
        rows.append([name, *cells, *([mean] if len(sets) > 1 else [])])
    return Table("FPR95 ↓ / AUROC ↑ (%)", ["detector", *sets, *(["mean"] if len(sets) > 1 else [])], rows)


def full_table(results: Sequence[Result]) -> Table:
    """One row per detector and OOD set with every metric, in percent."""
    rows = [
        [r.detector, r.ood, percent(r.fpr95), percent(r.auroc), percent(r.aupr_in), percent(r.aupr_out), f"{r.n_ood:,}"]
        for r in results
    ]
    header = ["detector", "OOD set", "FPR95 ↓", "AUROC ↑", "AUPR in ↑", "AUPR out ↑", "OOD samples"]
    return Table("in percent", header, rows, left=2)


def results_json(results: Sequence[Result]) -> str:
    """All results, fractions, as JSON."""
    return json.dumps([asdict(result) for result in results], indent=2) + "\n"


def results_csv(results: Sequence[Result]) -> str:
    """All results, fractions, as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(Result)])
    writer.writeheader()
    writer.writerows(asdict(result) for result in results)
    return buffer.getvalue()


def mean_std(values: Sequence[float], digits: int = 3) -> str:
    """mean ± standard deviation over seeds; without ± for a single value."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def toy_table(runs: Sequence[ToyRun]) -> Table:
    """Held-out NLL and the modes' masses of each model, over the seeds of one toy."""
    data = runs[0].data
    share = 1 / len(data.centres)
    rows = [
        ["true density", mean_std([run.true_nll for run in runs]), *([f"{share:.3f}", "0.000"] if share < 1 else [])]
    ]
    for index, model in enumerate(runs[0].models):
        models = [run.models[index] for run in runs]
        masses = [mass for m in models for mass in m.masses.tolist()]
        worst = max(abs(mass - share) for mass in masses)
        spread = [f"{min(masses):.3f} to {max(masses):.3f}", f"{worst:.3f}"] if share < 1 else []
        rows.append([model.name, mean_std([m.nll for m in models]), *spread])
    header = ["model", "held-out NLL ↓"]
    if share < 1:
        header += ["mass of a mode (all seeds)", f"largest |mass − 1/{len(data.centres)}|"]
    seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    return Table(f"{data.name}: {len(data.centres)} mode{'s' if share < 1 else ''}, {seeds}", header, rows)


def toy_json(runs: Sequence[ToyRun]) -> str:
    """Every toy run's numbers as JSON."""
    rows = [
        {
            "toy": run.data.name,
            "seed": run.seed,
            "true_nll": run.true_nll,
            "models": {m.name: {"nll": m.nll, "masses": m.masses.tolist()} for m in run.models},
        }
        for run in runs
    ]
    return json.dumps(rows, indent=2) + "\n"
