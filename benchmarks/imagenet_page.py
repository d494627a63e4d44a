"""The tables of docs/results/imagenet.md, from the figures that benchmarks/imagenet.py computed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from imagenet import FEW, FITTED, FOLDS
from outfield.benchmark.sets import STAND_IN
from outfield.report import Table
from photos_page import AUTO, Found, best_of


class Real(Found):
    """The figures of all networks, and the page's tables."""

    def __init__(self, folder: Path) -> None:
        bodies = [json.loads(path.read_text()) for path in sorted(folder.glob("lite*.json"))]
        parts = {name: one for body in bodies for name, one in body["parts"].items()}
        super().__init__({"protocol": bodies[0]["protocol"], "parts": parts})
        self.networks = {name: part for name, part in self.parts.items() if "," not in name}
        self.tables.update(networks=self.beside, few=self.few, shifts=self.shifts, speakers=self.speakers)

    def summary(self) -> Table:
        """One row for each network: Auto beside the best other."""
        rows = []
        for name, part in self.networks.items():
            best, regrets = part.ranked[0], [one["regret"] for one in part.found["folds"]]
            less = part.found["less"][best]
            ends = [
                f"{low:+.1f} to {high:+.1f}"
                for low, high in (100 * np.asarray(less[way]) for way in ("over images", "over folds"))
            ]
            rows.append([
                name.capitalize(), f"{100 * part.found['accuracy']:.1f}", f"{part.pair(AUTO)} (± {part.spread(AUTO):.1f})",
                f"{best} {part.pair(best)} (± {part.spread(best):.1f})", f"{100 * less['value']:+.1f}", *ends,
                *(f"{100 * np.mean([one[way] for one in regrets]):.1f}" for way in ("chosen", "best")),
                *(f"{part.agreement(level):.2f}" for level in ("near", "far")),
            ])  # fmt: skip
        rows = [[cell.replace("-", "−") for cell in row] for row in rows]
        return Table(
            "",
            [
                *("network", "% right", "Auto", "best other", "less", "over images"),
                "and folds",
                "chosen",
                "best sum",
                "near, mid",
                "far",
            ],
            rows,
        )

    def beside(self) -> Table:
        """Every detector on every network, the lowest mean first."""
        parts = [*self.networks.values()]
        shared = [name for name in parts[0].rows if all(name in part.rows for part in parts)]
        order = sorted(shared, key=lambda name: float(np.mean([part.mean(name) for part in parts])))
        rows = [[name, *(part.pair(name) for part in parts)] for name in order]
        labelled = [[f"{name} (the default)" if name == AUTO else name, *row] for name, *row in rows]
        return Table("", ["detector", *(name.capitalize() for name in self.networks)], labelled, best=best_of(rows))

    def members(self) -> Table:
        """What Auto took: how much each counts, the mean over folds, and in how many it was."""
        rows = []
        for name, part in self.networks.items():
            folds = [one["members"] for one in part.found["folds"]]
            weights = {member: [one[member] for one in folds if member in one] for one in folds for member in one}
            order = sorted(weights, key=lambda member: -sum(weights[member]))
            rows.append(
                [
                    name.capitalize(),
                    ", ".join(f"{one} {sum(weights[one]) / FOLDS:.2f} ({len(weights[one])})" for one in order[:12]),
                ]
            )
        return Table("", ["network", "members"], rows)

    def few(self, which: str) -> Table:
        """What fewer images of a class do."""
        parts = [self.parts[f"{which}, {count} a class"] for count in range(1, FITTED)] + [self.parts[which]]
        rows = [
            [name, *(part.pair(name) for part in parts)]
            for name in (AUTO, *FEW)
            if all(name in part.rows for part in parts)
        ]
        return Table(
            "", ["detector", *(f"{count} a class" for count in range(1, FITTED + 1))], rows, best=best_of(rows)
        )

    def shifts(self, which: str) -> Table:
        """Of images that look otherwise: how many are refused, and whether it is those that the network gets wrong."""
        rows = []
        for shift, by in self.parts[which].found["shifts"].items():
            auto, msp, ssd = (
                ["–" if value is None else f"{100 * value:.1f}" for value in by[name]]
                for name in ("Auto", "MSP", "SSD")
            )
            rows.append(
                [
                    shift.replace("_", " "),
                    auto[1],
                    *(one[0] for one in (auto, msp, ssd)),
                    *auto[2:4],
                    *(one[4] for one in (auto, msp, ssd)),
                ]
            )
        told = [f"{name}: AUROC" for name in ("Auto", "MSP", "SSD")]
        return Table(
            "",
            ["images", "% right", "refused by Auto", "MSP", "SSD", "right of the kept", "right of the refused", *told],
            rows,
        )

    def speakers(self, which: str) -> Table:
        """Of what Auto refuses, which member adds most to the score."""
        found = {name: Counter(counts) for name, counts in self.parts[which].found["speakers"].items()}
        members = [member for member, _ in sum(found.values(), Counter()).most_common()]
        rows = [
            [
                name.replace("_", " "),
                str(counts.total()),
                *(f"{100 * counts[one] / counts.total():.0f}" for one in members),
            ]
            for name, counts in found.items()
        ]
        return Table("", ["images", "refused, all folds", *members], rows)

    def images(self) -> Table:
        found = next(iter(self.networks.values())).found["images"]
        names = {"train": "fitted, a fold", "held_out": "held out, a fold", "": "judged, a fold"}
        kept = [name for name in found if STAND_IN not in name]
        return Table("", ["set", "images"], [[names.get(name, name), f"{found[name]:,}"] for name in kept])
