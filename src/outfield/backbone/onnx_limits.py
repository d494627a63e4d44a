"""What an ONNX file may ask for, looked at before anything of it is run: a file is anybody's, and one step of it could ask for
all memory there is, or never end.

Steps, numbers in the file and the sizes that can be told are counted first; ONNX Runtime then runs the graph once as it is, with
bounded memory and time, before it may fold constants, which no bound holds for.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from outfield.backbone.onnx_sizes import check_sizes
from outfield.errors import FileFormatError, InputError
from outfield.extras import library

Sizes = dict[str, list[int]]
"""Sizes of values by name, without axes that are not known."""
MOST_NUMBERS = 2**28
"""In one value, as of programs of torch.export."""
MOST_AXES = 64
MOST_BYTES = 2**33
"""That ONNX Runtime may take for two images, weights among them."""
MOST_SECONDS = 300.0
"""For the first run."""
MOST_STEPS = 100_000
"""Nodes, those of functions and branches counted wherever they are used."""
DEEPEST = 16
"""Branches within branches, and functions that use functions."""
STANDARD = ("", "ai.onnx", "ai.onnx.ml")
FUSED = (
    *("Attention", "BiasGelu", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "LayerNormalization"),
    *("MultiHeadAttention", "NhwcMaxPool", "QuickGelu", "SimplifiedLayerNormalization", "SkipLayerNormalization"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearAdd", "QLinearAveragePool"),
    *(
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearSoftmax",
    ),
)
"""Of the domain com.microsoft: what ONNX Runtime's own optimiser and quantiser write; outputs are as large as inputs are."""
MOST_WORK = 2e13
"""Operations for the first images, as of programs of torch.export."""
POOLS = ("MaxPool", "AveragePool", "LpPool")
LOOPS = ("Loop", "Scan", "SequenceMap")
_SHAPES = 1024
"""Numbers of a tensor that may be a shape; of larger ones only the size is looked at."""


def check_model(model: Any, source: str) -> None:
    """Look through a model (``onnx.ModelProto``) and refuse what has no bound.

    Raises:
        InputError: It has loops, too many steps, or a value is too large.
        FileFormatError: It has operators that nobody knows, or numbers that lie elsewhere.
    """
    _Steps(model, source).count()
    for tensor in tensors_of(model):
        if tensor.data_location == tensor.EXTERNAL:
            raise FileFormatError(f"the numbers of {tensor.name!r:.100} of {source} lie in another file")
    for dims, what in _sizes(model):
        _check_size(dims, what, source)


def check_shapes(model: Any, image: str, shape: Sequence[int], source: str) -> Sizes:
    """The sizes of a model's values, as far as they can be told from that of its images, none of them too large.

    Raises:
        InputError: One has more than ``MOST_NUMBERS`` numbers, or what is in an image decides a size.
    """
    _check_size(shape, f"the input {image!r:.100}", source)
    light = _with_sizes(model, image, shape)
    check_sizes(light.graph, image, source)
    sizes = _values(light)
    for name, dims in sizes.items():
        _check_size(dims, f"the value {name!r:.100}", source)
    work = sum(_work(node, sizes) for graph in _graphs(light.graph) for node in graph.node)
    if work > MOST_WORK:
        raise InputError(f"{source} takes {work:.1e} operations for {shape[0]} images; it may take {MOST_WORK:.0e}")
    return sizes


def check_growth(model: Any, image: str, small: Sizes, many: Sequence[int], source: str) -> None:
    """Refuse a model in which a value grows faster than the number of images.

    Args:
        model: an ``onnx.ModelProto``.
        image: name of its input.
        small: what :func:`check_shapes` gave for fewer images.
        many: the size of more images.
        source: for errors.

    Raises:
        InputError: One does.
    """
    few, large = small[image], _values(_with_sizes(model, image, many))
    for name in small.keys() & large.keys():
        told = len(small[name]) == len(large[name])
        if told and few[0] * math.prod(large[name]) > many[0] * math.prod(small[name]):
            raise InputError(
                f"the value {name!r:.100} of {source} grows faster than the number of images: {math.prod(small[name]):,} numbers "
                f"for {few[0]}, {math.prod(large[name]):,} for {many[0]}"
            )


def try_once(content: bytes, wanted: Sequence[str], given: Mapping[str, np.ndarray], source: str) -> None:
    """Run a model as it is, nothing folded, with bounded memory and time.

    Raises:
        InputError: It took too much memory or time.
        FileFormatError: It cannot be run.
    """
    runtime = library("onnxruntime", extra="onnx")
    place = runtime.OrtMemoryInfo("Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT)
    # Only sessions that ask for it use this allocator; sessions of others keep theirs.
    runtime.create_and_register_allocator(place, runtime.OrtArenaCfg({"max_mem": MOST_BYTES}))
    options, run = runtime.SessionOptions(), runtime.RunOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = run.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    late = threading.Timer(MOST_SECONDS, lambda: setattr(run, "terminate", True))
    late.daemon = True
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        late.start()
        session.run([*wanted], dict(given), run)
    except Exception as error:  # of ONNX Runtime
        said = str(error)
        if run.terminate:
            raise InputError(f"{source} takes more than {MOST_SECONDS:g} s for {_count(given)} images") from error
        if "bfc_arena" in said or "Failed to allocate memory" in said:
            raise InputError(
                f"{source} takes more than {MOST_BYTES:,} bytes of memory for {_count(given)} images"
            ) from error
        raise FileFormatError(f"{source} cannot be run: {said.splitlines()[0][:300]}") from error
    finally:
        late.cancel()


def tensors_of(model: Any) -> Iterator[Any]:
    """Every tensor with numbers of its own, wherever in the model."""
    for graph in _graphs(model.graph):
        yield from graph.initializer
        for one in graph.sparse_initializer:
            yield from (one.values, one.indices)
    for node in _nodes(model):
        for one in node.attribute:
            yield from (*([one.t] if one.HasField("t") else ()), *one.tensors)
            for sparse in (*([one.sparse_tensor] if one.HasField("sparse_tensor") else ()), *one.sparse_tensors):
                yield from (sparse.values, sparse.indices)


class _Steps:
    """How many nodes a model has once functions stand where they are used."""

    def __init__(self, model: Any, source: str) -> None:
        self.model, self.source = model, source
        self.functions = {(one.domain, one.name): one for one in model.functions}
        for domain, name in self.functions:
            if domain in (*STANDARD, "com.microsoft"):
                raise FileFormatError(f"{source} has a function in the place of the operator {name!r:.100}")
        self.counts: dict[tuple[str, str], int] = {}

    def count(self) -> int:
        return self._of(self.model.graph.node, 0)

    def _of(self, nodes: Any, depth: int) -> int:
        if depth > DEEPEST:
            raise InputError(f"{self.source} has branches or functions within others, more than {DEEPEST} deep")
        total = 0
        for node in nodes:
            total += self._one(node, depth)
            if total > MOST_STEPS:
                raise InputError(f"{self.source} has more than {MOST_STEPS:,} steps")
        return total

    def _one(self, node: Any, depth: int) -> int:
        name = (node.domain, node.op_type)
        if name in self.functions:
            if name not in self.counts:
                self.counts[name] = self._of(self.functions[name].node, depth + 1)
            return self.counts[name]
        if node.domain not in STANDARD and not (node.domain == "com.microsoft" and node.op_type in FUSED):
            raise FileFormatError(
                f"{self.source} has the operator {node.op_type} of {node.domain!r:.100}, which is not known"
            )
        if node.op_type in LOOPS:
            raise InputError(
                f"{self.source} has a loop ({node.op_type}), whose work cannot be told before it ends; export it without loops"
            )
        return 1 + sum(self._of(graph.node, depth + 1) for one in node.attribute for graph in _inner(one))


def _inner(attribute: Any) -> Iterator[Any]:
    yield from (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those of its branches; ``check_model`` has seen that they are not deep."""
    yield graph
    for node in graph.node:
        for one in node.attribute:
            for inner in _inner(one):
                yield from _graphs(inner)


def _nodes(model: Any) -> Iterator[Any]:
    for graph in _graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for one in node.attribute:
                for inner in _inner(one):
                    for graph in _graphs(inner):
                        yield from graph.node


def _sizes(model: Any) -> Iterator[tuple[Sequence[int], str]]:
    """The size of every tensor in the file, those among them of which only some numbers are written."""
    for tensor in tensors_of(model):
        yield tensor.dims, f"the tensor {tensor.name!r:.100}"
    for graph in _graphs(model.graph):
        for one in graph.sparse_initializer:
            yield one.dims, f"the tensor {one.values.name!r:.100}"
    for node in _nodes(model):
        for attribute in node.attribute:
            sparse = [
                *attribute.sparse_tensors,
                *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()),
            ]
            for one in sparse:
                yield one.dims, f"the tensor of {node.name!r:.100}"


def _check_size(dims: Sequence[int], what: str, source: str) -> None:
    if min(dims, default=0) < 0:
        raise FileFormatError(f"{what} of {source} has a negative size")
    if len(dims) > MOST_AXES:
        raise FileFormatError(f"{what} of {source} has {len(dims)} axes")
    if math.prod(dims) > MOST_NUMBERS:
        raise InputError(f"{what} of {source} has {math.prod(dims):,} numbers; it may have {MOST_NUMBERS:,}")


def _with_sizes(model: Any, image: str, shape: Sequence[int]) -> Any:
    """The model without its large tensors, functions where they are used, and sizes as far as they can be told."""
    light = _without_weights(model, image, shape)
    if light.functions:
        light = library("onnx.inliner", extra="onnx").inline_local_functions(light)
    try:
        return library("onnx", extra="onnx").shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # of its checks; what cannot be told is bounded when it runs
        return light


def _values(light: Any) -> Sizes:
    """The sizes of values by name, without those that are not known."""
    found: Sizes = {}
    for graph in _graphs(light.graph):
        for value in (*graph.value_info, *graph.input, *graph.output):
            found[value.name] = [one.dim_value for one in value.type.tensor_type.shape.dim if one.dim_value > 0]
        found |= {one.name: [*one.dims] for one in graph.initializer}
    return found


def _work(node: Any, sizes: Sizes) -> float:
    """Operations of products, convolutions and pools, as far as sizes are known; those of a pool count a hundredfold, as slow."""
    out = math.prod(sizes[node.output[0]]) if node.output and node.output[0] in sizes else 0
    if node.op_type in POOLS:
        kernel = [int(size) for one in node.attribute if one.name == "kernel_shape" for size in one.ints]
        return 100.0 * out * math.prod(kernel)
    second = sizes.get(node.input[1], ()) if len(node.input) > 1 else ()
    if node.op_type in ("Conv", "ConvTranspose"):
        return 2.0 * out * math.prod(second[1:])
    if node.op_type in ("MatMul", "Gemm"):
        inner = sizes.get(node.input[0], ())
        return 2.0 * out * (max(inner[-2:]) if node.op_type == "Gemm" else inner[-1]) if inner else float(out)
    return float(out)


def _without_weights(model: Any, image: str, shape: Sequence[int]) -> Any:
    """The model with images of that size and without its large tensors, whose sizes are enough."""
    onnx = library("onnx", extra="onnx")
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    light.graph.output.extend(model.graph.output)
    for one in model.graph.initializer:
        small = math.prod(one.dims) <= _SHAPES
        kept = one if small else onnx.TensorProto(name=one.name, dims=one.dims, data_type=one.data_type)
        light.graph.initializer.append(kept)
    for one in model.graph.input:
        given = light.graph.input.add()
        given.CopyFrom(one)
        if one.name == image:
            for dim, size in zip(given.type.tensor_type.shape.dim, shape, strict=True):
                dim.dim_value = size
    return light


def _count(given: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(given.values())))
