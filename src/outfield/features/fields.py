"""The fields of a set of features, each declared once: a new field is one more entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outfield.errors import InputError
from outfield.files import as_tensor, check_dtype, finite_floats, whole_numbers

# what is said of logits that are one number for each row
TWO_CLASSES = (
    "; a classifier of two classes that gives one number s for each row has the logits 0 and s: "
    "np.stack([np.zeros_like(s), s], axis=1)"
)
MOST_STAGES = 8  # how many blocks of a network a set can hold


@dataclass(frozen=True)
class Field:
    """One field."""

    name: str  # of the attribute of a set, and of the array in a file
    axes: tuple[str, ...]  # one letter for each dimension, N of samples; fields that share a letter agree in that size
    meaning: str  # what it holds, as the table in the README says it
    column: str  # what one of its columns is called in a table: with "feature", they are feature_0, feature_1, …
    counts: str | None = None  # the letter of the axis that its integers count from 0, or None for real numbers
    maker: str = "network"  # where it comes from: the "network", its "blocks", the "images", or the "odin" pass
    option: str | None = None  # of outfield extract that gives it, or None where none is needed

    @property
    def per_row(self) -> bool:
        """Whether it has a row for each sample; the classifier's last layer is the same for all of them."""
        return self.axes[0] == "N"

    @property
    def is_space(self) -> bool:
        """Whether its rows are points that a detector can take in the place of the features."""
        return self.per_row and len(self.axes) == 2 and self.axes[1] != "K"

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse a wrong rank, and an array of numbers without any."""
        if len(shape) != len(self.axes):
            advice = TWO_CLASSES if self.axes == ("N", "K") else ""
            rank = "one dimension" if len(self.axes) == 1 else "two dimensions"
            raise InputError(f"{self.name} must have {rank} ({', '.join(self.axes)}); got shape {shape}{advice}")
        if 0 in shape and self.counts is None:
            raise InputError(f"{self.name} is empty: shape {shape}; at least one row and one column are needed")

    def tensor(self, value: Any) -> Tensor:
        """A value as a tensor of the field's kind and rank; its entries are not looked at."""
        tensor = self._tensor(value)
        self.check_shape(tuple(tensor.shape))
        return tensor

    def _tensor(self, value: Any) -> Tensor:
        tensor = as_tensor(self.name, value)
        check_dtype(self.name, tensor.dtype, whole=self.counts is not None)
        return tensor

    def checked(self, value: Any, sizes: Mapping[str, int], first_row: int | None = None) -> Tensor:
        """The field, or some rows of it, with every entry checked; ``sizes`` of known axes by letter."""
        tensor = self._tensor(value)
        if self.counts is None:
            return finite_floats(self.name, tensor, first_row)
        return whole_numbers(self.name, tensor, first_row or 0, sizes.get(self.counts))


def _stage(i: int) -> Field:
    meaning = f"what block {i} of the network gives, pooled over space or tokens"
    return Field(f"stage{i}", ("N", f"D{i}"), meaning, f"stage{i}", maker="blocks", option="--stages")


_FEATURES = "the input of your classifier's last layer, pooled over space, as it comes: normalisation happens inside"
_LABELS = "classes of the training data, integers from 0"
# Every field by name, in the order in which fields are shown. A set always has the first.
FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("features", ("N", "D"), _FEATURES, "feature"),
        Field("labels", ("N",), _LABELS, "label", counts="K", maker="images", option="--labels"),
        Field("logits", ("N", "K"), "your classifier's outputs", "logit"),
        Field("spread", ("N", "D′"), "spatial standard deviation of the feature map", "spread"),
        *(_stage(i) for i in range(1, MOST_STAGES + 1)),
        Field("odin_logits", ("N", "K"), "its outputs at the perturbed input", "odin_logit", maker="odin", option="--odin"),
        Field("head_weight", ("K", "D"), "weight of your classifier's last layer", "head_weight"),
        Field("head_bias", ("K",), "its bias", "head_bias"),
    )
}  # fmt: skip


def spaces() -> tuple[str, ...]:
    """The names of the fields that a detector can work on."""
    return tuple(name for name, field in FIELDS.items() if field.is_space)


def made_by(maker: str) -> tuple[str, ...]:
    """The names of the fields that come from one place."""
    return tuple(name for name, field in FIELDS.items() if field.maker == maker)


def check_known(names: Mapping[str, Any]) -> None:
    """Refuse names that are no fields."""
    for name in names:
        if name not in FIELDS:
            raise InputError(f"there is no field {name!r}; there are {', '.join(FIELDS)}")


def agreed_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The size of each axis, by its letter."""
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for name, shape in shapes.items():
        for letter, size in zip(FIELDS[name].axes, shape, strict=True):
            owner = owners.setdefault(letter, name)
            if sizes.setdefault(letter, size) == size:
                continue
            if letter == "N":
                raise InputError(f"{name} has {size} rows but {owner} has {sizes[letter]}; they must match")
            raise InputError(f"{name} has shape {shape} but {owner} {shapes[owner]}; they must agree in {letter}")
    return sizes
