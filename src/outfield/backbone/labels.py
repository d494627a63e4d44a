"""Labels of images beside a network's classes: which of them its rows keep, and how often it is right."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from outfield.errors import InputError, MissingFieldError
from outfield.features import FeatureSet
from outfield.images import ImageSource


def check_names(images: ImageSource, name: str, names: tuple[str, ...]) -> None:
    """Refuse labels that mean other classes than those (``names``) of the network (``name``), where both are known.

    Raises:
        InputError: they do.
    """
    if not names or not images.classes:
        return
    for label, (theirs, ours) in enumerate(zip_longest(images.classes, names)):
        if theirs != ours:
            shown = ["missing" if one is None else repr(one) for one in (theirs, ours)]
            raise InputError(
                f"class {label} of {images.name} is {shown[0]}, but that of {name} is {shown[1]}; labels must mean the same "
                "classes in the same order, or be left out: extract with --no-labels, in Python labels=False"
            )


def match_labels(images: ImageSource, names: tuple[str, ...], classes: int) -> tuple[np.ndarray | None, str]:
    """The labels of images as a network counts its classes; None, and why, where they mean other classes.

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


def check_range(labels: np.ndarray | None, source: str, name: str, classes: int) -> None:
    """Refuse labels of images (``source``) beyond the classes of a network (``name``).

    Raises:
        InputError: there are such.
    """
    if labels is not None and int(labels.max()) >= classes:
        raise InputError(
            f"{source} has a label {int(labels.max())}, but the network of {name} knows {classes} classes, from 0; for "
            "images of other classes, such as OOD sets, extract with --no-labels, in Python labels=False"
        )


def accuracy(features: FeatureSet) -> float:
    """The share of samples whose largest logit is that of their label.

    Raises:
        MissingFieldError: there are no logits or no labels.

    >>> accuracy(FeatureSet([[0.0], [0.0]], logits=[[1.0, 2.0], [3.0, 1.0]], labels=[1, 1]))
    0.5
    """
    if features.logits is None or features.labels is None:
        raise MissingFieldError(f"accuracy needs logits and labels; there are {', '.join(features.shapes)}")
    return float((features.logits.argmax(1) == features.labels).double().mean())
