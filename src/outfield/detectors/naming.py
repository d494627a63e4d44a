"""Names for several detectors, each once, as short as they can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outfield.config import settings_of
from outfield.detectors.base import Detector


def names_of(detectors: Sequence[Detector]) -> tuple[str, ...]:
    """Each detector in words: its class, what it works on, and the settings in which it differs from others of its kind.

    >>> import outfield as of
    >>> names_of([of.MSP(), of.KNN(k=5), of.KNN(k=50), of.SSD(), of.SSD(on="stage2"), of.SSD()])
    ('MSP', 'KNN k=5', 'KNN k=50', 'SSD', 'SSD on stage2', 'SSD 2')
    """
    groups: dict[str, list[Detector]] = {}
    for detector in detectors:
        groups.setdefault(_kind(detector), []).append(detector)
    found: list[str] = []
    for detector in detectors:
        name = " ".join([_kind(detector), *_differing(detector, groups[_kind(detector)])])
        same = Counter(found)
        number = 2
        while (shown := name if name not in same else f"{name} {number}") in same:
            number += 1
        found.append(shown)
    return tuple(found)


def _kind(detector: Detector) -> str:
    return type(detector).__name__ + ("" if detector.on == "features" else f" on {detector.on}")


def _differing(detector: Detector, group: Sequence[Detector]) -> list[str]:
    """``k=5`` for each setting that is not the same in the whole group."""
    others = [settings_of(other) for other in group]
    return [
        f"{name}={value}" for name, value in settings_of(detector).items() if any(o.get(name) != value for o in others)
    ]
