"""Tables of several benchmark runs side by side: every detector's mean FPR95 / AUROC, and how far the default is from the best.

    python benchmarks/runs_beside.py 'ViT=vit/run.safetensors' 'ConvNeXt=convnext/run.safetensors' --out beside.json
    python benchmarks/runs_beside.py --show beside.json --page docs/results/architectures.md

A run's figures are means over its OOD sets, seeds and backbones. With ``--page`` the tables go between ``<!-- beside -->`` and
``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outfield.benchmark import BenchmarkRun, level_columns, load_run, summarise
from outfield.files import write_bytes
from outfield.report import Table

DEFAULT = "Auto"
PARTS = ("Fused",)
"""Rows that are no single detector."""
Result = dict[str, Any]


def figures(run: BenchmarkRun) -> Result:
    """What a run says, ready for JSON: accuracies, members of the default, and figures by detector and column, in percent."""
    summary = summarise(run.records, level_columns(run.records, run.protocol))
    return {
        "id": run.protocol.id,
        "sets": {record.ood: record.n_ood for record in run.records},
        "accuracies": {name: round(100 * value, 2) for name, value in run.accuracies.items()},
        "chosen": run.provenance.get("chosen", {}),
        "seeds": len({record.seed for record in run.records if record.seed is not None}),
        "detectors": {
            name: {
                column: {
                    "fpr95": round(100 * cell.fpr95.mean, 3),
                    "auroc": round(100 * cell.auroc.mean, 3),
                    "over_backbones": None
                    if cell.fpr95.over_backbones is None
                    else round(100 * cell.fpr95.over_backbones, 3),
                }
                for column, cell in cells.items()
            }
            for name, cells in summary.items()
        },
    }


def best_of(result: Result, column: str = "average") -> str:
    """The detector besides the default and sums of several with the lowest FPR95."""
    rows = {name: cells for name, cells in result["detectors"].items() if name not in (DEFAULT, *PARTS)}
    return str(min(rows, key=lambda name: float(rows[name][column]["fpr95"])))


def overview(results: Mapping[str, Result]) -> Table:
    """Each run in one row: accuracy, the default, the best other row, and the difference."""
    rows = []
    for title, result in results.items():
        best = best_of(result)
        ours, theirs = (result["detectors"][name]["average"] for name in (DEFAULT, best))
        right = ", ".join(f"{value:.1f}" for value in result["accuracies"].values()) or "no classes"
        difference = ours["fpr95"] - theirs["fpr95"]
        rows.append([title, right, shown(ours), f"{best} {shown(theirs)}", f"{difference:+.1f}".replace("-", "−")])
    header = ["network", "accuracy, %", "Auto (the default)", "best single detector", "FPR95, Auto − best"]
    return Table("The default beside the best of all others, FPR95 ↓ / AUROC ↑ in percent", header, rows, left=1)


def everything(results: Mapping[str, Result]) -> Table:
    """Every detector in every run; the default first, then by its mean FPR95."""
    names = list(dict.fromkeys(name for result in results.values() for name in result["detectors"]))

    def mean(name: str) -> float:
        found = [
            result["detectors"][name]["average"]["fpr95"] for result in results.values() if name in result["detectors"]
        ]
        return float(sum(found) / len(found))

    names.sort(key=lambda name: (name != DEFAULT, mean(name)))
    rows = [
        [name, *(shown(r["detectors"][name]["average"]) if name in r["detectors"] else "–" for r in results.values())]
        for name in names
    ]
    best = set()
    for column, result in enumerate(results.values(), 1):
        for place, (metric, sign) in enumerate((("fpr95", 1), ("auroc", -1))):
            top = min(result["detectors"], key=lambda n: sign * result["detectors"][n]["average"][metric])
            best.add((names.index(top), column, place))
    return Table(
        "Mean over all OOD sets, FPR95 ↓ / AUROC ↑ in percent", ["detector", *results], rows, best=frozenset(best)
    )


def levels(results: Mapping[str, Result]) -> Table:
    """The default and the best other row by level."""
    rows = []
    columns = list(dict.fromkeys(c for r in results.values() for c in next(iter(r["detectors"].values()))))
    for title, result in results.items():
        for name in (DEFAULT, best_of(result)):
            cells = result["detectors"][name]
            rows.append(
                [title if name == DEFAULT else "", name, *(shown(cells[c]) if c in cells else "–" for c in columns)]
            )
    return Table("By level, FPR95 ↓ / AUROC ↑ in percent", ["network", "detector", *columns], rows, left=2)


def shown(cell: Mapping[str, float]) -> str:
    return f"{cell['fpr95']:.1f} / {cell['auroc']:.1f}"


def put(page: Path, text: str) -> None:
    """Replace what stands between the page's marks."""
    old = page.read_text()
    new, count = re.subn(
        r"(<!-- beside -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", old, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{page} needs one <!-- beside --> with an <!-- end -->")
    write_bytes(page, new.encode())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="TITLE=RUN.safetensors")
    parser.add_argument("--out", type=Path, help="where the figures go (.json)")
    parser.add_argument("--show", type=Path, help="figures that were written before")
    parser.add_argument("--page", type=Path, help="a page that gets the tables")
    options = parser.parse_args(given)
    if bool(options.runs) == bool(options.show):
        parser.error("give either runs or --show")
    if options.show:
        results: dict[str, Result] = json.loads(options.show.read_text())
    else:
        pairs = [text.partition("=") for text in options.runs]
        results = {title: figures(load_run(path)) for title, _, path in pairs}
    if options.out:
        write_bytes(options.out, (json.dumps(results, indent=1) + "\n").encode())
    tables = (overview(results), levels(results), everything(results))
    text = "\n\n".join(f"**{table.title}**\n\n{table.markdown()}" for table in tables)
    print(text)
    if options.page:
        put(options.page, text)


if __name__ == "__main__":
    main()
