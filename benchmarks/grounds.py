"""One picture of all results on images: where the default stands among the others on every network.

    python benchmarks/grounds.py docs/images/grounds.png

Read are the figures that lie in docs/results. A row is one network, or the mean of several that were trained alike. Each grey
dot is a detector's mean FPR95 over the OOD sets, the blue dot the default, the ring that of the others which is best on average
over all rows that have logits. HEAT and other sums of several detectors count as others, too.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.report import read_run
from outfield.report import save_figure as save
from outfield.report.canvas import FAINT, FAR, ID, INK, MUTED, SIZE, Line2D, new_figure, subplots
from runs_beside import DEFAULT, PARTS, figures

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
Row = Mapping[str, float]
"""Mean FPR95 in percent by detector."""
CHOSEN = {"cifar10": "CIFAR-10, ResNet-34", "cifar100": "CIFAR-100, ResNet-34"}
WHOLE = {
    "openood-cifar10": "CIFAR-10, OpenOOD's sets",
    "openood-cifar100": "CIFAR-100, OpenOOD's sets",
    "tinyimagenet": "TinyImageNet, ResNet-34",
}
BESIDE = {"architectures": "CIFAR-10, {}", "losses": "CIFAR-10, ResNet-18, {}"}
PHOTOGRAPHS = (
    ("imagenette/results.json", "ten one", "Imagenette, ten classes"),
    ("imagenette/results.json", "thousand one", "Imagenette, a thousand"),
    *((f"imagenet/lite{number}.json", f"lite{number}", f"ImageNet, Lite{number}") for number in range(3)),
)


def rows(folder: Path = RESULTS) -> dict[str, Row]:
    """Every row by its title, in the order in which it is drawn."""
    studied = json.loads((folder / "choice" / "choice.json").read_text())
    found: dict[str, Row] = {title: chosen(studied, name) for name, title in CHOSEN.items()}
    for name, title in WHOLE.items():
        found[title] = means(figures(read_run(folder / name)))
    for name, title in BESIDE.items():
        whole = json.loads((folder / "architectures" / f"{name}.json").read_text())
        found |= {title.format(key): means(result) for key, result in whole.items()}
    for place, part, title in PHOTOGRAPHS:
        photos = json.loads((folder / place).read_text())
        sets = [name for level in ("near", "mid", "far") for name in photos["protocol"][level]]
        found[title] = {
            name: 100 * float(np.mean([[one[key][0] for key in sets] for one in seeds]))
            for name, seeds in photos["parts"][part]["rows"].items()
        }
    return {title: {name: value for name, value in row.items() if name not in PARTS} for title, row in found.items()}


def chosen(studied: Sequence[Mapping[str, Any]], name: str) -> Row:
    """Means over the networks of an ID set, one view, as choice.py studied them; other settings of a detector are left out."""
    nets = [one for one in studied if one["net"].rpartition("-")[0] == name and one["views"] == "one"]
    every = [{**one["singles"], **one["composed"], DEFAULT: one["auto"]["0"]} for one in nets]
    found = {short(key): key for key in every[0] if " " not in short(key) and all(key in one for one in every)}
    return {
        name: float(np.mean([100 * np.mean([*one[key]["fpr95"].values()]) for one in every]))
        for name, key in found.items()
    }


def short(name: str) -> str:
    """A detector's name without the settings that it has by itself.

    >>> short("SSD ridge=0.0"), short("KNN k=50"), short("KNN k=5")
    ('SSD', 'KNN', 'KNN k=5')
    """
    return re.sub(r" (ridge=0\.0|k=50|centre=mean|prior_temperature=500 .*)$", "", name)


def means(result: Mapping[str, Any]) -> Row:
    return {name: float(cells["average"]["fpr95"]) for name, cells in result["detectors"].items()}


def steadiest(found: Mapping[str, Row]) -> str:
    """The single detector that is in every row with logits and has the lowest mean over these."""
    whole = [row for row in found.values() if "MSP" in row]
    names = set.intersection(*(set(row) for row in whole)) - {DEFAULT}
    return min(sorted(names), key=lambda name: float(np.mean([row[name] for row in whole])))


def draw(found: Mapping[str, Row]) -> Any:
    """The picture."""
    steady, height = steadiest(found), 0.36 * len(found) + 1.55
    figure = new_figure(9.6, height)
    axes = subplots(figure, left=0.25, right=0.745, top=1 - 0.95 / height, bottom=0.55 / height)[0][0]
    for place, row in enumerate(found.values()):
        others = {name: value for name, value in row.items() if name != DEFAULT}
        axes.plot([*others.values()], [place] * len(others), "o", color=MUTED, alpha=0.33, markersize=5, zorder=2)
        if steady in row:
            axes.plot(row[steady], place, "o", color=FAR, markerfacecolor="none", markersize=9, zorder=3)
        axes.plot(row[DEFAULT], place, "o", color=ID, markersize=9, zorder=4)
        best = min(others, key=lambda name: others[name])
        said = f"{row[DEFAULT]:.1f}   {best} {others[best]:.1f}"
        axes.annotate(
            said, (1.02, place), xycoords=axes.get_yaxis_transform(), va="center", fontsize=SIZE - 1.5, annotation_clip=False,
            color=INK if row[DEFAULT] <= others[best] else FAR,
        )  # fmt: skip
    above = {"xycoords": axes.get_yaxis_transform(), "va": "center", "fontsize": SIZE - 1.5, "color": MUTED}
    axes.annotate("Auto   best other", (1.02, -0.85), annotation_clip=False, **above)
    axes.set_yticks(range(len(found)), [*found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(-2, 100)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="both", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("FPR95 ↓: % of OOD images accepted where 95 % of ID images are, mean over OOD sets")
    edge = 0.02
    first = sum(row[DEFAULT] == min(row.values()) for row in found.values())
    words = (
        f"One default for every network: the best row on {first} of {len(found)}; which other is best keeps changing"
    )
    figure.text(edge, 1 - 0.26 / height, words, fontsize=11.5, fontweight="bold", color=INK, va="center")
    dot = {"linestyle": "none", "marker": "o"}
    marks = [
        Line2D([], [], color=ID, markersize=9, label="Auto, the default", **dot),
        Line2D(
            [], [], color=FAR, markerfacecolor="none", markersize=9, label=f"{steady}, the best other on average", **dot
        ),
        Line2D([], [], color=MUTED, alpha=0.33, markersize=5, label="every other detector", **dot),
    ]
    look = {"fontsize": SIZE, "labelcolor": INK, "frameon": False, "ncols": 3, "borderaxespad": 0, "borderpad": 0}
    figure.legend(handles=marks, loc="center left", bbox_to_anchor=(edge, 1 - 0.58 / height), **look)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    found = rows()
    save(draw(found), parser.parse_args().picture, dpi=120)
    for title, row in found.items():
        best = min((name for name in row if name != DEFAULT), key=lambda name: row[name])
        print(f"{title}: {DEFAULT} {row[DEFAULT]:.1f}, {best} {row[best]:.1f}, {len(row) - 1} others")


if __name__ == "__main__":
    main()
