"""Which labels of images a network's rows keep: those that mean the network's own classes."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from outfield.errors import InputError
from outfield.images.source import ImageSource


def check_names(images: ImageSource, name: str, names: tuple[str, ...]) -> None:
    """Refuse labels that mean other classes than the network's, where the names of both are known.

    Args:
        images: whose labels they are.
        name: of the network.
        names: of its classes.

    Raises:
        InputError: they do.
    """
    if not names or not images.classes:
        return
    for label, (theirs, ours) in enumerate(zip_longest(images.classes, names)):
        if theirs != ours:
            raise InputError(
                f"class {label} of {images.name} is {_shown(theirs)}, but that of {name} is {_shown(ours)}; labels must mean "
                "the same classes in the same order, or be left out: extract with --no-labels, in Python labels=False"
            )


def fitting(images: ImageSource, names: tuple[str, ...], classes: int) -> tuple[np.ndarray | None, str]:
    """The labels of images as the network counts its classes; None, and why, where they mean other classes.

    Where the names of all classes are among the network's, they say which is which, whatever their order.

    Args:
        images: whose labels they are.
        names: of the network's classes, or none.
        classes: how many the network has.
    """
    if images.labels is None or images.classes is None:
        return images.labels, ""
    if not names:
        same = len(images.classes) == classes
        return (images.labels, "") if same else (None, f"it has {len(images.classes)} classes, the network {classes}")
    number = {one: label for label, one in enumerate(names)}
    strange = [one for one in images.classes if one not in number]
    if strange:
        return None, f"the network has no class {strange[0]!r:.100}"
    return np.array([number[one] for one in images.classes], np.int64)[images.labels], ""


def _shown(name: str | None) -> str:
    return "missing" if name is None else repr(name)
