"""Files of torch.export are read without unpickling or evaluating anything, and what costs too much is not run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle

import pytest
import torch
from tests.helpers.exported import changed, made, number, opened, step, taken, value, with_program

import outfield as of
from outfield.backbone.origin import Origin
from outfield.backbone.pt2_steps import KNOWN

SAMPLES = "data/sample_inputs/model.pt"


class Evil:
    """What a pickle can be: reading it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def full(*sizes):
    return step(
        "full.default", [value("as_ints", "size", list(sizes)), value("as_float", "fill_value", 1.0)], made("big")
    )


def squares(count):
    """Steps that square the number of images again and again."""
    steps = [step("sym_size.int", [taken("self", "images"), value("as_int", "dim", 0)], number("n0"))]
    for one in range(count):
        both = [value("as_sym_int", name, {"as_name": f"n{one}"}) for name in "ab"]
        steps.append(step("_operator.mul", both, number(f"n{one + 1}")))
    return steps


TOO_MUCH = {
    "a value of 1,000,000,000,000 numbers, where 268,435,456": [full(10**12)],
    "a value of 8,589,934,592 numbers": [
        full(1),
        step("expand.default", [taken("self", "big"), value("as_ints", "size", [2**33])], made("wide")),
        step("sum.default", [taken("self", "wide")], made("total")),
    ],
    "a value of 268,435,457 numbers": [step("arange.default", [value("as_int", "end", 2**28 + 1)], made("a"))],
    "bytes of memory at a time": [
        step("zeros.default", [value("as_ints", "size", [2**28])], made(f"z{one}")) for one in range(9)
    ] + [step("cat.default", [value("as_tensors", "tensors", [{"name": f"z{one}"} for one in range(9)])], made("z"))],
    "24,577,.* operations, where 20,000,000,000,000": [
        full(16000, 16000),
        *(step("mm.default", [taken("self", "big"), taken("mat2", "big")], made(f"m{one}")) for one in range(3)),
    ],
    "80,.* operations, where": [
        full(1, 1, 4000, 4000),
        step(
            "avg_pool2d.default",
            [taken("self", "big"), value("as_ints", "kernel_size", [2000, 2000]), value("as_ints", "stride", [1, 1])],
            made("pooled"),
        ),
    ],
    "splits 134,217,728 numbers": [
        full(2**27),
        step("unbind.int", [taken("self", "big")], [{"as_tensors": [{"name": "part"}]}]),
    ],
    "has 10,00[0-9] steps": [
        step("relu.default", [taken("self", "images")], made(f"r{one}")) for one in range(10_000)
    ],
    "no size before it is run": [
        step("gt.Scalar", [taken("self", "images"), value("as_float", "other", 0.5)], made("mask")),
        step("index.Tensor", [taken("self", "images"), value("as_tensors", "indices", [{"name": "mask"}])], made("i")),
    ],
}  # fmt: skip


class TestNothingIsRun:
    def test_nothing_is_unpickled(self, program, five_images, tmp_path, monkeypatch):
        evil = changed(program, tmp_path / "evil.pt2", {SAMPLES: pickle.dumps(Evil(tmp_path / "made"))})

        def never(*_, **__):
            raise AssertionError("something was unpickled")

        expected = opened(program).extract(five_images).features
        for owner, name in (
            (pickle, "load"),
            (pickle, "loads"),
            (pickle, "Unpickler"),
            (torch, "load"),
            (torch.export, "load"),
        ):
            monkeypatch.setattr(owner, name, never)
        assert torch.equal(opened(evil).extract(five_images).features, expected)
        assert not (tmp_path / "made").exists()
        monkeypatch.undo()
        with contextlib.suppress(Exception):  # whatever it says: PyTorch has run it by then
            torch.export.load(evil)
        assert (tmp_path / "made").exists()

    def test_texts_of_sizes_are_not_evaluated(self, program, five_images, tmp_path):
        def change(module):
            text = f"__import__('os').mkdir({str(tmp_path / 'made')!r})"
            module["graph"]["tensor_values"]["images"]["sizes"][0] = {
                "as_expr": {"expr_str": text, "hint": {"as_int": 2}}
            }

        opened(with_program(program, tmp_path / "evil.pt2", change)).extract(five_images)
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize(
        "target",
        [
            "torch.os.mkdir",
            "torch.ops.aten.from_file.default",
            "torch.ops.aten.save.default",
            "torch.ops.aten.rand.default",
            "torch.ops.aten.set_.source_Tensor",
            "torch.ops.higher_order.wrap_with_set_grad_enabled",
            "torch.ops.aten.relu.__class__",
            "torch.ops.aten.relu",
            "torch.ops.aten.relu.default.__call__",
            "torch.ops.other.relu.default",
            "_operator.attrgetter",
            "math.floor",
            "#x",
        ],
    )
    def test_steps_that_are_no_networks(self, program, target, tmp_path):
        def change(module):
            place = {"name": "path", "arg": {"as_string": str(tmp_path / "made")}, "kind": 1}
            module["graph"]["nodes"].insert(0, {"target": target, "inputs": [place], "outputs": []})

        with pytest.raises(of.InputError, match="has a step"):
            opened(with_program(program, tmp_path / "evil.pt2", change))
        assert not (tmp_path / "made").exists()

    def test_steps_that_this_pytorch_lacks(self, program, tmp_path):
        def change(module):
            module["graph"]["nodes"][0]["target"] = "torch.ops.aten.conv2d.of_2050"

        with pytest.raises(of.InputError, match=f"which PyTorch {torch.__version__.split('+')[0]}"):
            opened(with_program(program, tmp_path / "new.pt2", change))

    def test_no_step_that_is_known_can_reach_a_file(self):
        for name in sorted(KNOWN):
            for overload in getattr(torch.ops.aten, name).overloads():
                schema = str(getattr(getattr(torch.ops.aten, name), overload)._schema)
                assert "filename" not in schema
                assert "Generator" not in schema


class TestWhatCostsTooMuchIsNotRun:
    """Every file here would take minutes or all memory if a step of it were run."""

    @pytest.mark.parametrize("said", TOO_MUCH)
    def test_too_much(self, program, said, tmp_path):
        def change(module):
            module["graph"]["nodes"][:0] = TOO_MUCH[said]

        with pytest.raises(of.InputError, match=said):
            opened(with_program(program, tmp_path / "net.pt2", change))

    def test_what_grows_faster_than_the_images(self, program, five_images, tmp_path):
        """With two images it is 2¹⁶ numbers, with five it would be 1.5 · 10¹¹."""

        def change(module):
            end = value("as_sym_int", "end", {"as_name": "n4"})
            module["graph"]["nodes"][:0] = [*squares(4), step("arange.default", [end], made("a"))]

        whole = opened(with_program(program, tmp_path / "net.pt2", change))
        whole.network(torch.rand(2, 3, 16, 16))
        with pytest.raises(of.OutfieldError, match="a value of 152,587,890,625 numbers, where"):
            whole.extract(five_images)

    @pytest.mark.parametrize(
        "inputs",
        [
            [value("as_string", "a", "long"), value("as_int", "b", 10**10)],
            [value("as_int", "a", 2**62), value("as_sym_int", "b", {"as_int": 2**63})],
            [value("as_ints", "a", [1]), value("as_int", "b", 10**10)],
        ],
    )
    def test_numbers_without_end(self, program, inputs, tmp_path):
        with pytest.raises(of.FileFormatError, match=r"2\*\*63|is no int"):
            opened(
                with_program(
                    program,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].insert(0, step("_operator.mul", inputs, number("q"))),
                )
            )
        with pytest.raises(of.FileFormatError, match=r"mul takes numbers below 2\*\*63"):
            opened(
                with_program(
                    program,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].__setitem__(slice(0, 0), squares(60)),
                )
            )

    @pytest.mark.parametrize("at", [-1, 1])
    def test_programs_that_run_in_circles(self, program, at, tmp_path):
        def change(module):
            nodes = module["graph"]["nodes"]
            name = nodes[at]["outputs"][0]["as_tensor"]["name"]
            nodes.insert(len(nodes), step("clone.default", [taken("self", name)], made(name)))

        with pytest.raises(of.FileFormatError, match=r"clone\.default makes .* once more"):
            opened(with_program(program, tmp_path / "net.pt2", change))
        with pytest.raises(of.FileFormatError, match="takes 'later', which is not made yet"):
            opened(
                with_program(
                    program,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].insert(
                        0, step("relu.default", [taken("self", "later")], made("x"))
                    ),
                )
            )

    @pytest.mark.parametrize(
        "sizes",
        [(2, 3, 10**6, 10**6), (-1, 3, 16, 16), (0, 3, 16, 16), (2, 3, "16", 16), (True, 3, 16, 16), (2, 3, 10**30, 4)],
    )
    def test_sizes_of_images(self, program, sizes, tmp_path):
        def change(module):
            module["graph"]["tensor_values"]["images"]["sizes"] = [{"as_int": one} for one in sizes]

        with pytest.raises(of.InputError, match=r"takes an input of shape|a value of 6,000,000,000,000"):
            opened(with_program(program, tmp_path / "net.pt2", change))

    def test_a_last_layer_without_what_it_needs(self, program, tmp_path):
        for target, count in (("detach.default", 0), ("linear.default", 1), ("mm.default", 3), ("mm.default", 1)):

            def change(module, target=target, count=count):
                last = module["graph"]["nodes"][-1]
                last["target"], last["inputs"] = f"torch.ops.aten.{target}", last["inputs"][:count]

            with pytest.raises(of.OutfieldError, match=r"does not end with a linear layer|is broken"):
                opened(with_program(program, tmp_path / "net.pt2", change))

    def test_plans_in_files_of_guards(self, program):
        whole = opened(program)
        state = whole.origin.state(whole.network)
        plan = json.loads(bytes(state["plan"].tolist()))
        for broken in (
            {"shape": [2, 3]},
            {"shape": [2, 3, -1, 4]},
            {"image": 5},
            {"features": []},
            {"tensors": []},
            {"nodes": [5]},
            {"nodes": [{**plan["nodes"][0], "inputs": [{"name": "self", "arg": {"as_ints": [[[1]]]}}]}]},
        ):
            content = torch.tensor(list(json.dumps({**plan, **broken}).encode()), dtype=torch.uint8)
            with pytest.raises(of.FileFormatError, match="a file"):
                Origin("pt2").build({**state, "plan": content}, "a file")
