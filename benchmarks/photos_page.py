"""The tables of a page, docs/results/imagenette.md among them, from the figures that benchmarks/photos.py computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.benchmark import LEVELS, Protocol
from outfield.benchmark.sets import STAND_IN
from outfield.files import write_bytes
from outfield.images import title
from outfield.report import Table

AUTO = "Auto"
Figures = Mapping[str, Sequence[float]]
"""FPR95 and AUROC by set."""


class Part:
    """Everything that was found with one head and views."""

    def __init__(self, name: str, found: Mapping[str, Any], protocol: Protocol) -> None:
        self.name, self.found, self.protocol = name, found, protocol
        self.rows: dict[str, list[Figures]] = found["rows"]

    def mean(self, detector: str, sets: Sequence[str] = (), metric: int = 0) -> float:
        """In percent, over seeds and sets; over all OOD sets if none are named."""
        return 100 * float(
            np.mean([[one[name][metric] for name in sets or self.protocol.ood] for one in self.rows[detector]])
        )

    def spread(self, detector: str) -> float:
        """Standard deviation over seeds of the mean FPR95, in points; 0 where there is one."""
        means = [np.mean([one[name][0] for name in self.protocol.ood]) for one in self.rows[detector]]
        return 100 * float(np.std(means, ddof=1)) if len(means) > 1 else 0.0

    def pair(self, detector: str, sets: Sequence[str] = ()) -> str:
        return f"{self.mean(detector, sets):.1f} / {self.mean(detector, sets, 1):.1f}"

    @property
    def ranked(self) -> list[str]:
        """Detectors but Auto, the lowest mean FPR95 first."""
        return sorted((name for name in self.rows if name != AUTO), key=self.mean)

    def agreement(self, level: str) -> float:
        """Spearman's correlation over detectors but Auto of FPR95 on stand-ins of a level with FPR95 on real sets."""
        made = [f"{STAND_IN}{kind}" for kind, at in self.found["levels"].items() if at == level]
        real = self.protocol.far if level == "far" else (*self.protocol.near, *self.protocol.mid)
        names = [name for name in self.ranked if made[0] in self.rows[name][0]]
        return spearman([self.mean(name, made) for name in names], [self.mean(name, real) for name in names])


class Found:
    """The figures of a file, and the tables of a page by their names."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.protocol = Protocol(**body["protocol"])
        self.parts = {name: Part(name, one, self.protocol) for name, one in body["parts"].items()}
        self.tables: dict[str, Callable[..., Table]] = {
            "levels": self.levels,
            "sets": self.sets,
            "summary": self.summary,
            "members": self.members,
            "images": self.images,
        }

    def levels(self, which: str) -> Table:
        """Every detector on near, mid and far OOD."""
        part = self.parts[which]
        columns: dict[str, Sequence[str]] = {f"{level} OOD": self.protocol.levels[level] for level in LEVELS}
        return self._table(part, columns | {"average": ()})

    def sets(self, which: str) -> Table:
        """Auto and the best ten on each set."""
        part = self.parts[which]
        columns: dict[str, Sequence[str]] = {title(name): (name,) for name in self.protocol.ood}
        return self._table(part, columns, part.ranked[:10])

    def _table(self, part: Part, columns: Mapping[str, Sequence[str]], names: Sequence[str] | None = None) -> Table:
        """Auto, then others; the best figures of each column in bold."""
        shown = [AUTO, *(part.ranked if names is None else names)]
        rows = [[name, *(part.pair(name, sets) for sets in columns.values())] for name in shown]
        spreads = {name: part.spread(name) for name in shown}
        labels = {name: f"{name} (± {spread:.1f})" for name, spread in spreads.items() if spread}
        labelled = [[labels.get(row[0], row[0]), *row[1:]] for row in rows]
        labelled[0][0] = f"{AUTO} (the default)"
        return Table("", ["detector", *columns], labelled, best=best_of(rows))

    def summary(self) -> Table:
        """One row for each head and views: the default beside the best other, and how well stand-ins chose."""
        rows = []
        for part in self.parts.values():
            best, regret = part.ranked[0], part.found["regret"]
            rows.append([
                part.name.replace(" ", ", "),
                f"{100 * part.found['accuracy']:.1f}",
                part.pair(AUTO),
                f"{best} {part.pair(best)}",
                f"{part.mean(AUTO) - part.mean(best):+.1f}".replace("-", "−"),
                *(f"{100 * regret[name]:.1f}" for name in ("chosen", "best")),
                f"{part.agreement('near'):.2f}",
                f"{part.agreement('far'):.2f}",
                f"{100 * part.found['loss']:.1f}",
            ])  # fmt: skip
        header = [
            "head, views",
            "% right",
            "Auto",
            "best other",
            "less",
            "chosen, held-out",
            "best sum",
            "near, mid",
            "far",
        ]
        return Table("", [*header, "by"], rows)

    def members(self) -> Table:
        """What Auto took."""
        rows = []
        for part in self.parts.values():
            heaviest = sorted(part.found["members"].items(), key=lambda item: -item[1])
            told = ", ".join(f"{name} {weight:.2f}" for name, weight in heaviest)
            rows.append([part.name.replace(" ", ", "), told])
        return Table("", ["head, views", "members and how much each counts"], rows)

    def images(self) -> Table:
        """How many images of each set."""
        found = next(iter(self.parts.values())).found["images"]
        names = {"train": "Imagenette, train", "": "Imagenette, val, judged", "held_out": "Imagenette, val, held out"}
        rows = [[names.get(name, title(name)), f"{count:,}"] for name, count in found.items() if STAND_IN not in name]
        return Table("", ["set", "images"], rows)


def fill(page: Path, found: Found) -> None:
    """Write every table of a page anew: each stands between ``<!-- NAME [PART] -->`` and ``<!-- end -->``."""

    def table(place: re.Match[str]) -> str:
        kind, _, which = place[1].partition(" ")
        if kind not in found.tables:
            raise SystemExit(f"{page} has a place for {kind!r}; there are {', '.join(found.tables)}")
        made = found.tables[kind](*([which] if which else []))
        return f"<!-- {place[1]} -->\n{made.markdown()}\n<!-- end -->"

    text = page.read_text()
    done, places = re.subn(r"<!-- (?!end)([^>]+?) -->\n(?:(?!<!-- ).)*<!-- end -->", table, text, flags=re.DOTALL)
    if 2 * places != text.count("<!-- "):
        raise SystemExit(f"{page}: every <!-- NAME --> needs an <!-- end --> before the next")
    write_bytes(page, done.encode())
    print(page)


def best_of(rows: Sequence[Sequence[str]]) -> frozenset[tuple[int, int, int]]:
    """Which of the cells "FPR95 / AUROC" after the first column have the lowest and the highest figure of their column."""
    best = set()
    for column in range(1, len(rows[0])):
        for place, choose in enumerate((min, max)):
            values = [float(row[column].split(" / ")[place]) for row in rows]
            best |= {(at, column, place) for at, value in enumerate(values) if value == choose(values)}
    return frozenset(best)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of the ranks."""
    first, second = (np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1])
