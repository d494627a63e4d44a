"""ONNX files that ask for more than there is: refused before they run, and quickly."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.backbone.test_other_networks import WEIGHT, by_hand

import outfield as of
from outfield.backbone import onnx_limits, onnx_network
from outfield.backbone.onnx_network import OnnxNetwork, read_model

END = [helper.make_node("Add", ["f", "k"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])]
"""The last layer, with a number added that something large was made for."""
LARGEST = helper.make_node("ReduceMax", ["c"], ["k"], keepdims=0)
POWER = (np.array([10.0, 10.0], np.float32), np.array([5.0, 6.0], np.float32))


def opened(nodes, constants):
    return OnnxNetwork(by_hand([*nodes, *END], {"w": WEIGHT, **constants}).SerializeToString(), "net.onnx")


def shape(*sizes):
    return np.array(sizes, np.int64)


ONE = np.ones((1, 1), np.float32)
BOMBS = {
    "constant": ([helper.make_node("ConstantOfShape", ["s"], ["c"]), LARGEST], {"s": shape(10**5, 10**6)}),
    "expand": ([helper.make_node("Expand", ["a", "s"], ["c"]), LARGEST], {"a": ONE, "s": shape(10**5, 10**6)}),
    "tile": ([helper.make_node("Tile", ["a", "s"], ["c"]), LARGEST], {"a": ONE, "s": shape(10**5, 10**6)}),
    "product": (
        [helper.make_node("ConstantOfShape", ["s"], ["a"]), helper.make_node("ConstantOfShape", ["t"], ["b"]),
         helper.make_node("MatMul", ["a", "b"], ["c"]), LARGEST],
        {"s": shape(10**5, 1), "t": shape(1, 10**5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_values_that_are_too_large_are_refused_before_they_are_made(name, monkeypatch):
    monkeypatch.setattr(onnx_network, "try_once", lambda *_: pytest.fail("it was run"))
    began = time.monotonic()
    with pytest.raises(
        of.InputError, match=r"the value 'c' of net.onnx has 10+(,000){3} numbers; it may have 268,435,456"
    ):
        opened(*BOMBS[name])
    assert time.monotonic() - began < 5


def test_the_largest_value_that_is_allowed(monkeypatch):
    given = [helper.make_node("ConstantOfShape", ["s"], ["c"]), LARGEST], {"s": shape(64, 32)}
    monkeypatch.setattr(onnx_limits, "MOST_NUMBERS", 2048)
    assert opened(*given).size == (8, 8)
    monkeypatch.setattr(onnx_limits, "MOST_NUMBERS", 2047)
    with pytest.raises(of.InputError, match=r"the value 'c' of net.onnx has 2,048 numbers; it may have 2,047"):
        opened(*given)


def test_a_size_that_nobody_can_tell_is_bounded_when_it_runs():
    nodes = [
        helper.make_node("Pow", ["a", "b"], ["q"]),
        helper.make_node("Cast", ["q"], ["s"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["s"], ["c"]),
        LARGEST,
    ]
    began = time.monotonic()
    with pytest.raises(of.InputError, match="takes more than 8,589,934,592 bytes of memory for 2 images"):
        opened(nodes, dict(zip("ab", POWER, strict=True)))
    assert time.monotonic() - began < 5


def test_work_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(onnx_limits, "MOST_SECONDS", 0.05)
    side = 1000
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["m0"])]
    nodes += [helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(200)]
    nodes += [helper.make_node("ReduceMax", ["m200"], ["k"], keepdims=0)]
    began = time.monotonic()
    with pytest.raises(of.InputError, match=r"takes more than 0.05 s for 2 images"):
        opened(nodes, {"s": shape(side, side)})
    assert time.monotonic() - began < 5


def body():
    nodes = [helper.make_node("Identity", ["go"], ["went"]), helper.make_node("Identity", ["a"], ["b"])]
    kinds = (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("a", TensorProto.FLOAT, None))
    ends = (("went", TensorProto.BOOL, []), ("b", TensorProto.FLOAT, None))
    made = [[helper.make_tensor_value_info(*one) for one in values] for values in (kinds, ends)]
    return helper.make_graph(nodes, "body", *made)


def test_loops_are_refused():
    began = time.monotonic()
    with pytest.raises(of.InputError, match=r"has a loop \(Loop\).*export it without loops"):
        opened([helper.make_node("Loop", ["t", "", "f"], ["k"], body=body())], {"t": np.array(2**62)})
    assert time.monotonic() - began < 5


def test_operators_of_others_are_refused_and_those_of_the_runtime_are_not():
    with pytest.raises(of.FileFormatError, match=r"the operator Mine of 'my\.domain', which is not known"):
        opened([helper.make_node("Mine", ["f"], ["k"], domain="my.domain")], {})
    with pytest.raises(of.FileFormatError, match=r"the operator BeamSearch of 'com\.microsoft'"):
        opened([helper.make_node("BeamSearch", ["f"], ["k"], domain="com.microsoft")], {})
    model = by_hand([helper.make_node("Gelu", ["f"], ["k"], domain="com.microsoft"), *END], {"w": WEIGHT})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert OnnxNetwork(model.SerializeToString(), "net.onnx").channels == 3


def doubling(depth):
    """Functions of which each uses the one before twice: 2^depth nodes."""
    model = by_hand([helper.make_node(f"F{depth}", ["f"], ["k"], domain="own"), *END], {"w": WEIGHT})
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.opset_import.append(versions[1])
    for i in range(depth + 1):
        used = (
            helper.make_node(f"F{i - 1}", ["a"], ["m"], domain="own") if i else helper.make_node("Relu", ["a"], ["m"])
        )
        again = (
            helper.make_node(f"F{i - 1}", ["m"], ["b"], domain="own") if i else helper.make_node("Relu", ["m"], ["b"])
        )
        model.functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], [used, again], versions))
    return model


def test_functions_are_counted_where_they_are_used(monkeypatch):
    assert OnnxNetwork(doubling(2).SerializeToString(), "net.onnx").channels == 3
    monkeypatch.setattr(onnx_limits, "MOST_STEPS", 12)
    assert OnnxNetwork(doubling(2).SerializeToString(), "net.onnx").channels == 3
    monkeypatch.setattr(onnx_limits, "MOST_STEPS", 11)
    with pytest.raises(of.InputError, match="has more than 11 steps"):
        OnnxNetwork(doubling(2).SerializeToString(), "net.onnx")
    with pytest.raises(of.InputError, match="more than 16 deep"):
        OnnxNetwork(doubling(17).SerializeToString(), "net.onnx")
    model = doubling(0)
    model.functions[0].domain = ""
    with pytest.raises(of.FileFormatError, match="in the place of the operator 'F0'"):
        OnnxNetwork(model.SerializeToString(), "net.onnx")


def test_what_is_in_an_image_decides_no_size():
    cast = helper.make_node("Cast", ["f"], ["n"], to=TensorProto.INT64)
    flat = helper.make_node("Reshape", ["n", "flat"], ["s"])
    with pytest.raises(of.InputError, match=r"decides how large a value is \(ConstantOfShape\)"):
        opened([cast, flat, helper.make_node("ConstantOfShape", ["s"], ["c"]), LARGEST], {"flat": shape(-1)})
    sized = [helper.make_node("Shape", ["f"], ["s"]), helper.make_node("ConstantOfShape", ["s"], ["c"]), LARGEST]
    assert opened(sized, {}).channels == 3


def test_sparse_tensors_are_as_large_as_they_say():
    model = by_hand([LARGEST, *END], {"w": WEIGHT})
    values = numpy_helper.from_array(np.ones(1, np.float32), "c")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(shape(5), "at"), [10**5, 10**6])
    model.graph.sparse_initializer.append(sparse)
    with pytest.raises(of.InputError, match=r"the tensor 'c' of net.onnx has 100,000,000,000 numbers"):
        OnnxNetwork(model.SerializeToString(), "net.onnx")


def test_an_input_of_too_many_images():
    model = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 10**9
    with pytest.raises(of.InputError, match=r"the input 'x' of net.onnx has 192,000,000,000 numbers"):
        OnnxNetwork(model.SerializeToString(), "net.onnx")


def test_numbers_in_other_files(tmp_path):
    model = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    content = (tmp_path / "net.onnx").read_bytes()
    with pytest.raises(of.FileFormatError, match="the numbers of 'w' of a guard lie in another file"):
        OnnxNetwork(content, "a guard")
    assert OnnxNetwork(read_model(tmp_path / "net.onnx"), "net.onnx").channels == 3
    with (tmp_path / "net.data").open("r+b") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(of.InputError, match=r"the weights of .*net.onnx are too large: 1,099,511,627,776 bytes"):
        read_model(tmp_path / "net.onnx")
    changed = onnx.load_model(tmp_path / "net.onnx", load_external_data=False)
    next(one for one in changed.graph.initializer[0].external_data if one.key == "location").value = "../net.data"
    (tmp_path / "in").mkdir()
    onnx.save_model(changed, tmp_path / "in" / "net.onnx")
    (tmp_path / "net.data").write_bytes(WEIGHT.tobytes())
    with pytest.raises(of.FileFormatError, match="cannot be read"):
        read_model(tmp_path / "in" / "net.onnx")


BRIGHT = [helper.make_node("Greater", ["x", "two"], ["seen"]), helper.make_node("NonZero", ["seen"], ["places"])]
TWO = {"two": np.array(2.0, np.float32)}
BY_CONTENT = {
    "NonZero": [*BRIGHT, helper.make_node("Cast", ["places"], ["c"], to=TensorProto.FLOAT), LARGEST],
    "Shape of it": [*BRIGHT, helper.make_node("Shape", ["places"], ["s"]),
                    helper.make_node("ConstantOfShape", ["s"], ["c"]), LARGEST],
    "Reshape": [helper.make_node("Cast", ["f"], ["i"], to=TensorProto.INT64),
                helper.make_node("Reshape", ["f", "i"], ["c"]), LARGEST],
    "TopK": [helper.make_node("Cast", ["f"], ["i"], to=TensorProto.INT64),
             helper.make_node("TopK", ["f", "i"], ["c", "which"]), LARGEST],
}  # fmt: skip


@pytest.mark.parametrize("name", BY_CONTENT)
def test_places_and_counts_that_depend_on_an_image_decide_no_size(name):
    with pytest.raises(of.InputError, match="what is in an image decides how large a value is"):
        opened(BY_CONTENT[name], TWO)


def test_values_grow_no_faster_than_the_number_of_images():
    square = [helper.make_node("Transpose", ["f"], ["t"]), helper.make_node("MatMul", ["f", "t"], ["c"]), LARGEST]
    with pytest.raises(of.InputError, match=r"the value 'c' .* grows .*: 4 numbers for 2, 1,024 for 32"):
        opened(square, {})
    line = [helper.make_node("MatMul", ["f", "v"], ["c"]), LARGEST]
    assert opened(line, {"v": np.ones((3, 7), np.float32)}).channels == 3


def test_one_step_that_takes_too_long_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr(onnx_network, "try_once", lambda *_: pytest.fail("it was run"))
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["a"]),
             helper.make_node("MaxPool", ["a"], ["c"], kernel_shape=[900, 900]), LARGEST]  # fmt: skip
    with pytest.raises(of.InputError, match=r"takes 8\.\de\+13 operations for 2 images; it may take 2e\+13"):
        opened(nodes, {"s": shape(1, 1, 1900, 1900)})


def test_products_and_convolutions_are_counted(monkeypatch):
    nodes = [helper.make_node("Conv", ["x", "v"], ["a"]), helper.make_node("GlobalAveragePool", ["a"], ["c"]), LARGEST]
    kernel = {"v": np.ones((5, 3, 3, 3), np.float32)}
    work = 2 * (2 * 5 * 6 * 6) * 27
    monkeypatch.setattr(onnx_limits, "MOST_WORK", work)
    with pytest.raises(of.InputError, match="operations for 2 images"):
        opened(nodes, kernel)
    monkeypatch.setattr(onnx_limits, "MOST_WORK", work + 1000)
    assert opened(nodes, kernel).channels == 3


class TestBroken:
    """Files that no program wrote so end in one kind of error."""

    def refused(self, model, match):
        began = time.monotonic()
        with pytest.raises(of.FileFormatError, match=match):
            OnnxNetwork(model.SerializeToString(), "net.onnx")
        assert time.monotonic() - began < 5

    def test_a_circle(self):
        nodes = [helper.make_node("Identity", ["q"], ["y"]), helper.make_node("Identity", ["y"], ["q"])]
        self.refused(by_hand(nodes, {}), "goes in a circle: 'y' is made of itself")

    def test_transposed_without_end(self):
        turned = [helper.make_node("Transpose", [f"w{i}"], [f"w{i + 1}"]) for i in range(3000)]
        model = by_hand([*turned, helper.make_node("MatMul", ["f", "w3000"], ["y"])], {"w0": WEIGHT})
        assert OnnxNetwork(model.SerializeToString(), "net.onnx").graph.layer is None

    @pytest.mark.parametrize("dims", [[5, 4], [-3, -4], [2**62] * 300])
    def test_tensors_of_another_size(self, dims):
        model = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        self.refused(model, "is broken: ValueError|has a negative size|has 300 axes")

    def test_types_that_are_none(self):
        model = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
        model.graph.initializer[0].data_type = 99
        self.refused(model, "net.onnx is broken: KeyError")

    @pytest.mark.parametrize("inputs", [[], ["f"]])
    def test_nodes_without_inputs(self, inputs):
        self.refused(by_hand([helper.make_node("MatMul", inputs, ["y"])], {}), "net.onnx is broken: IndexError")
