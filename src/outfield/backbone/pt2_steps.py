"""Steps of a program of ``torch.export``, checked against a list of what a network may do, and run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from outfield.backbone.pt2_archive import TYPES
from outfield.backbone.pt2_numbers import ON_NUMBERS, PLAIN, plain
from outfield.errors import FileFormatError, InputError, OutfieldError

OPERATORS = """
abs adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d add addcmul addmm alias all amax amin any
arange argmax avg_pool1d avg_pool2d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bmm cat ceil chunk clamp clamp_max
clamp_min clone constant_pad_nd contiguous conv1d conv2d conv3d convolution copy cos cumsum detach div dropout einsum elu
embedding eq erf exp expand expand_as feature_dropout fill flatten flip floor floor_divide full full_like gather ge gelu glu
group_norm gt hardsigmoid hardswish hardtanh im2col index index_select instance_norm layer_norm le leaky_relu lift_fresh
lift_fresh_copy linalg_vector_norm linear linspace log log1p log_softmax _log_softmax logical_and logical_not logical_or
logsumexp lt masked_fill matmul max max_pool2d max_pool2d_with_indices maximum mean meshgrid min minimum mish mm movedim mul
narrow _native_batch_norm_legit_no_training native_group_norm native_layer_norm ne neg new_full new_ones new_zeros norm numpy_T
ones ones_like pad permute pixel_shuffle pixel_unshuffle pow prelu reciprocal reflection_pad2d relu relu6 remainder repeat
repeat_interleave replication_pad2d reshape reshape_as rms_norm roll round rsqrt rsub scalar_tensor scaled_dot_product_attention
select selu sigmoid sign silu sin slice softmax _softmax softplus split split_with_sizes sqrt square squeeze stack std sub sum
swapaxes sym_size t tanh tensor_split to _to_copy topk transpose tril triu type_as unbind unflatten unfold unsafe_split
_unsafe_view unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_nearest2d var var_mean view view_as where zeros
zeros_like
"""
KNOWN = frozenset(OPERATORS.split())
"""PyTorch's own operators that networks are made of: none reads or writes a file, draws random numbers, or keeps anything."""
LEFT_OUT = (
    "torch.ops.aten._assert_tensor_metadata.",
    "torch.ops.aten._assert_scalar.",
    "torch.ops.aten.sym_constrain_range",
)
"""Checks of what was true where the program was traced, such as the device."""
VIEWS = ("torch.ops.aten.view.default", "torch.ops.aten._unsafe_view.default")
"""Steps that fail where another layout in memory, such as channels-last, needs a copy; ``reshape`` makes it."""
FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}


class Place(Enum):
    """In the place of a device: the one that the images are on."""

    IMAGES = "images"


@dataclass(frozen=True)
class Named:
    """In the place of a value: the one of this name."""

    name: str


@dataclass(frozen=True)
class Step:
    """One call: which function, with what, and what its results are called."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[str, ...]
    listed: bool

    def run(self, known: dict[str, Any], device: torch.device) -> None:
        """Call it, and add its results to what is known."""
        found = self.function(
            *(_filled(one, known, device) for one in self.args),
            **{name: _filled(one, known, device) for name, one in self.kwargs.items()},
        )
        for name, value in zip(self.outputs, found if self.listed else (found,), strict=False):
            known[name] = value

    @property
    def base(self) -> str:
        """The name of the operator, without its overload."""
        return self.name.split(".")[3] if self.name.startswith("torch.ops.") else self.name

    def given(self) -> dict[str, Any]:
        """What it takes, by the names that the operator has for it."""
        return dict(zip(_positional(self.function), self.args, strict=False)) | dict(self.kwargs)

    def uses(self) -> set[str]:
        """Names of the values that it takes."""
        return set().union(*(_names(one) for one in (*self.args, *self.kwargs.values())))


def steps_of(nodes: Sequence[Any], source: str) -> list[Step]:
    """The steps of a program, in their order.

    Args:
        nodes: as JSON, each with ``target``, ``inputs`` and ``outputs``.
        source: where they come from, for errors.

    Raises:
        InputError: a step is none that a network may have.
        FileFormatError: a step is broken.
    """
    try:
        return [_step(node, source) for node in nodes if not str(node["target"]).startswith(LEFT_OUT)]
    except OutfieldError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"a step in {source} is broken: {type(error).__name__}: {str(error)[:100]}") from error


def _step(node: Mapping[str, Any], source: str) -> Step:
    target = str(node["target"])
    given = [(str(one["name"]), _argument(one["arg"], source)) for one in node["inputs"]]
    names, listed = _outputs(node["outputs"], source)
    if target in ON_NUMBERS:
        return Step(target, ON_NUMBERS[target], tuple(value for _, value in given), {}, names, listed)
    function = _operator(target, source)
    order = _positional(function)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in given:
        if not kwargs and len(args) < len(order) and order[len(args)] == name:
            args.append(value)
        else:
            kwargs[name] = value
    if target in VIEWS and not kwargs:
        function = torch.ops.aten.reshape.default
    if kwargs.get("device") is None and "device" in {one.name for one in function._schema.arguments} - set(
        order[: len(args)]
    ):
        kwargs["device"] = Place.IMAGES
    step = Step(target, function, tuple(args), kwargs, names, listed)
    _check_mode(step, step.given(), source)
    return step


def _positional(function: Any) -> list[str]:
    """Names of what an operator takes by position."""
    schema = getattr(function, "_schema", None)
    return [] if schema is None else [one.name for one in schema.arguments if not one.kwarg_only]


def _operator(target: str, source: str) -> Any:
    """One of PyTorch's operators by its name, ``torch.ops.aten.NAME.OVERLOAD``."""
    parts = target.split(".")
    base = parts[3].rstrip("_") if len(parts) == 5 and parts[3] not in KNOWN else "".join(parts[3:4])
    if len(parts) != 5 or parts[:3] != ["torch", "ops", "aten"] or base not in KNOWN or parts[4].startswith("_"):
        raise InputError(
            f"{source} has a step {target[:80]!r}, which is none of those that networks in such files may have; export the "
            "network to ONNX (torch.onnx.export) and open that"
        )
    packet = getattr(torch.ops.aten, parts[3], None)
    function = getattr(packet, parts[4]) if packet is not None and parts[4] in packet.overloads() else None
    if function is None or any(one.is_out for one in function._schema.arguments):
        raise InputError(f"{source} has a step {target[:80]!r}, which PyTorch {torch.__version__} does not know")
    return function


def _check_mode(step: Step, given: Mapping[str, Any], source: str) -> None:
    """Refuse what a network does only while it is trained."""
    training = given.get("train", given.get("training", False))
    if training is True or (given.get("use_input_stats") is True and given.get("running_mean") is not None):
        raise InputError(
            f"{source} was exported while it was trained ({step.name}); call eval() before torch.export.export"
        )
    if given.get("dropout_p", 0.0) != 0.0:
        raise InputError(f"{source} draws random numbers ({step.name}); call eval() before torch.export.export")


def _argument(arg: Mapping[str, Any], source: str) -> Any:
    """A value of JSON: a number, a list, or the name of what is known when the step is run."""
    ((kind, value),) = arg.items()
    if kind == "as_none":
        return None
    if kind in PLAIN:
        return plain(kind, value)
    if kind in ("as_tensor", "as_optional_tensor"):
        return None if "as_none" in value else Named(str(value.get("as_tensor", value)["name"]))
    if kind in ("as_tensors", "as_optional_tensors"):
        return [None if "as_none" in one else Named(str(one.get("as_tensor", one)["name"])) for one in value]
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        return _symbol(value)
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
        return [_symbol(one) for one in value]
    if kind == "as_scalar_type":
        return TYPES[value]
    if kind == "as_memory_format":
        return FORMATS[value]
    if kind == "as_layout" and value == 7:
        return torch.strided
    if kind == "as_device":
        return Place.IMAGES
    raise InputError(
        f"{source} has a step with a value of the kind {kind[:40]!r}, which is not understood; export it to ONNX"
    )


def _symbol(value: Mapping[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    return Named(str(inner)) if kind == "as_name" else plain(kind, inner)


def _outputs(outputs: Sequence[Any], source: str) -> tuple[tuple[str, ...], bool]:
    """Names of the results, and whether the function gives them as a list or tuple."""
    found: list[str] = []
    for one in outputs:
        value = _argument(one, source)
        found += [one.name if isinstance(one, Named) else "" for one in (value if isinstance(value, list) else [value])]
    return tuple(found), len(outputs) > 1 or any("as_tensors" in one for one in outputs)


def _filled(value: Any, known: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(value, Named):
        return known[value.name]
    if isinstance(value, list):
        return [_filled(one, known, device) for one in value]
    return device if value is Place.IMAGES else value


def _names(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_names, value))
    return {value.name} if isinstance(value, Named) else set()


def writes_to(step: Step, names: Mapping[str, Tensor] | set[str]) -> bool:
    """Whether a step changes one of these values in its place."""
    first = step.args[0] if step.args else None
    return step.base.endswith("_") and isinstance(first, Named) and first.name in names


def check_order(steps: Sequence[Step], known: set[str], source: str) -> None:
    """Refuse a program that makes a value twice, or takes one that is not made yet: it could run in circles.

    Raises:
        FileFormatError: it does.
    """
    made = set(known)
    for step in steps:
        missing, twice = step.uses() - made, made & (set(step.outputs) - {""})
        if missing or twice:
            raise FileFormatError(
                f"the program in {source} is broken: {step.name[:80]} "
                + (
                    f"takes {min(missing)[:40]!r}, which is not made yet"
                    if missing
                    else f"makes {min(twice)[:40]!r} once more"
                )
            )
        made |= set(step.outputs)
