"""Networks in files of torch.export: the same numbers as the module's, read without unpickling or evaluating anything."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import timm
import torch
from tests.helpers.networks import NORMALISED, Lookup, Plain, backbone, seeded
from torch import nn

import outfield as of
from outfield.backbone.backbone import Backbone
from outfield.backbone.origin import Origin
from outfield.backbone.pt2_network import Pt2Network
from outfield.backbone.pt2_steps import KNOWN

SAMPLES = "data/sample_inputs/model.pt"
MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Net(nn.Module):
    """A classifier that can be traced for any number of images; ``ends`` is what it gives."""

    def __init__(self, ends=lambda net, z: net.fc(z)):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.relu, self.shift, self.ends = nn.ReLU(inplace=True), torch.linspace(0, 1, 8)[:, None, None], ends

    def forward(self, images):
        return self.ends(self, self.relu(self.norm(self.conv(images)) + self.shift).mean((2, 3)))


def exported(network, path, rows=None, size=16, examples=None):
    examples = examples or (torch.rand(rows or 2, 3, size, size),)
    free = None if rows else tuple({0: torch.export.Dim("N", min=1, max=2**30)} for _ in examples)
    torch.export.save(torch.export.export(network, examples, dynamic_shapes=free), path)
    return path


def opened(path, **more):
    return Backbone.open(str(path), device="cpu", **{**NORMALISED, **more})


def changed(path, to, members=(), leave_out=(), compression=zipfile.ZIP_STORED, rename=None):
    """A copy of an archive with other members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", compression) as new:
        root = next(name for name in old.namelist() if name.endswith("archive_format")).partition("/")[0]
        for name in old.namelist():
            inner = name.partition("/")[2]
            if inner not in leave_out:
                new.writestr(name, dict(members).get(inner, old.read(name)))
        for inner in dict(members).keys() - {name.partition("/")[2] for name in old.namelist()}:
            new.writestr(f"{root}/{inner}", dict(members)[inner])
    return to


def program_of(path):
    with zipfile.ZipFile(path) as members:
        return json.loads(members.read(next(name for name in members.namelist() if name.endswith(MODEL))))


def config_of(path):
    with zipfile.ZipFile(path) as members:
        return json.loads(members.read(next(name for name in members.namelist() if name.endswith(WEIGHTS))))


def with_program(path, to, change):
    program = program_of(path)
    change(program["graph_module"])
    return changed(path, to, {MODEL: json.dumps(program)})


@pytest.fixture(scope="module")
def network():
    return seeded(Net)


@pytest.fixture(scope="module")
def path(network, tmp_path_factory):
    return exported(network, tmp_path_factory.mktemp("net") / "net.pt2")


@pytest.fixture(scope="module")
def images():
    return Lookup(np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8))


class Evil:
    """What a pickle can be: reading it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


class TestNumbers:
    def test_all_fields_are_the_modules(self, network, path, images):
        found, expected = opened(path).extract(images), backbone(network).extract(images)
        for name in ("features", "logits", "head_weight", "head_bias", "spread"):
            torch.testing.assert_close(found.tensors()[name], expected.tensors()[name], rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_efficientnet"])
    def test_networks_of_timm(self, name, tmp_path):
        whole = seeded(timm.create_model, name, num_classes=4)
        size = whole.pretrained_cfg["input_size"][-1]
        found = opened(exported(whole, tmp_path / "net.pt2", size=size)).network
        some = torch.rand(3, 3, size, size)
        with torch.no_grad():
            assert torch.equal(found(some), whole(some))
            other = copy.deepcopy(found).to(memory_format=torch.channels_last)
            torch.testing.assert_close(
                other(some.to(memory_format=torch.channels_last)), whole(some), rtol=1e-4, atol=1e-5
            )

    @pytest.mark.parametrize("rows", [1, 2, 5, 7])
    def test_a_fixed_number_of_images_is_filled_up(self, network, rows, images, tmp_path):
        found = opened(exported(network, tmp_path / "net.pt2", rows)).extract(images)
        torch.testing.assert_close(found.features, backbone(network).extract(images).features, rtol=1e-5, atol=1e-6)

    def test_what_stands_behind_the_last_layer(self, images, tmp_path):
        expected = backbone(seeded(Net)).extract(images)
        for number, ends in enumerate((
            lambda net, z: net.fc(z).softmax(1),
            lambda net, z: nn.functional.log_softmax(net.fc(z), 1),
            lambda net, z: torch.mm(z, net.fc.weight.T),
            lambda net, z: torch.addmm(net.fc.bias, z, net.fc.weight.t()),
        )):  # fmt: skip
            found = opened(exported(seeded(Net, ends), tmp_path / f"{number}.pt2")).extract(images)
            torch.testing.assert_close(found.features, expected.features, rtol=1e-6, atol=1e-6)
            logits = expected.logits - (seeded(Net).fc.bias.detach() if number == 2 else 0)
            torch.testing.assert_close(found.logits, logits, rtol=1e-5, atol=1e-6)

    def test_features_may_be_named(self, images, tmp_path):
        both = seeded(Net, lambda net, z: {"logits": net.fc(z).square(), "features": z * 2})
        found, plain = (
            opened(exported(both, tmp_path / "net.pt2")).extract(images),
            backbone(seeded(Net)).extract(images),
        )
        torch.testing.assert_close(found.features, 2 * plain.features)
        torch.testing.assert_close(found.logits, plain.logits.square())

    def test_grey_images_and_gradients(self, network, path, images, tmp_path):
        odin = opened(path).extract(images, odin=of.Odin()).odin_logits
        torch.testing.assert_close(
            odin, backbone(network).extract(images, odin=of.Odin()).odin_logits, rtol=1e-5, atol=1e-5
        )
        grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
        exported(grey, tmp_path / "grey.pt2", examples=(torch.rand(2, 1, 16, 16),))
        assert opened(tmp_path / "grey.pt2", mean=(0.5,), std=(0.5,)).extract(images).logits.shape == (5, 2)
        with pytest.raises(of.InputError, match="with 1 channels"):
            opened(tmp_path / "grey.pt2")

    def test_copies_and_what_is_kept(self, path, images):
        whole = opened(path)
        state = whole.origin.state(whole.network)
        some = torch.rand(2, 3, 16, 16)
        for other in (copy.deepcopy(whole.network), Origin.of_json(whole.origin.to_json()).build(state, "a file")):
            assert torch.equal(other(some), whole.network(some))
        assert "head.weight" not in state
        for broken in (
            {},
            {**state, "plan": torch.zeros(3)},
            {**state, "plan": state["plan"][:-9]},
            {"plan": state["plan"]},
        ):
            with pytest.raises(of.FileFormatError, match=r"holds no program of torch\.export"):
                Origin("pt2").build(broken, "a file")

    def test_fewer_bits(self, network, path, images):
        expected = backbone(network).extract(images, precision="bfloat16").features
        found = opened(path)
        torch.testing.assert_close(found.extract(images, precision="bfloat16").features, expected, rtol=0.02, atol=0.02)
        narrow = copy.deepcopy(found.network).to(torch.bfloat16)
        assert narrow(torch.rand(3, 3, 16, 16).bfloat16()).dtype == torch.bfloat16
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            assert opened(path).network(torch.rand(3, 3, 16, 16, dtype=torch.float32)).dtype == torch.float32
        finally:
            torch.set_default_dtype(default)


class TestNothingIsRun:
    def test_nothing_is_unpickled(self, path, images, tmp_path, monkeypatch):
        evil = changed(path, tmp_path / "evil.pt2", {SAMPLES: pickle.dumps(Evil(tmp_path / "made"))})

        def never(*_, **__):
            raise AssertionError("something was unpickled")

        expected = opened(path).extract(images).features
        for owner, name in (
            (pickle, "load"),
            (pickle, "loads"),
            (pickle, "Unpickler"),
            (torch, "load"),
            (torch.export, "load"),
        ):
            monkeypatch.setattr(owner, name, never)
        assert torch.equal(opened(evil).extract(images).features, expected)
        assert not (tmp_path / "made").exists()
        monkeypatch.undo()
        with contextlib.suppress(Exception):  # whatever it says: PyTorch has run it by then
            torch.export.load(evil)
        assert (tmp_path / "made").exists()

    def test_texts_of_sizes_are_not_evaluated(self, path, images, tmp_path):
        def change(module):
            text = f"__import__('os').mkdir({str(tmp_path / 'made')!r})"
            module["graph"]["tensor_values"]["images"]["sizes"][0] = {
                "as_expr": {"expr_str": text, "hint": {"as_int": 2}}
            }

        opened(with_program(path, tmp_path / "evil.pt2", change)).extract(images)
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
    def test_steps_that_are_no_networks(self, path, target, tmp_path):
        def change(module):
            place = {"name": "path", "arg": {"as_string": str(tmp_path / "made")}, "kind": 1}
            module["graph"]["nodes"].insert(0, {"target": target, "inputs": [place], "outputs": []})

        with pytest.raises(of.InputError, match="has a step"):
            opened(with_program(path, tmp_path / "evil.pt2", change))
        assert not (tmp_path / "made").exists()

    def test_steps_that_this_pytorch_lacks(self, path, tmp_path):
        def change(module):
            module["graph"]["nodes"][0]["target"] = "torch.ops.aten.conv2d.of_2050"

        with pytest.raises(of.InputError, match=f"which PyTorch {torch.__version__.split('+')[0]}"):
            opened(with_program(path, tmp_path / "new.pt2", change))

    def test_no_step_that_is_known_can_reach_a_file(self):
        for name in sorted(KNOWN):
            for overload in getattr(torch.ops.aten, name).overloads():
                schema = str(getattr(getattr(torch.ops.aten, name), overload)._schema)
                assert "filename" not in schema
                assert "Generator" not in schema


def value(kind, name, content):
    return {"name": name, "arg": {kind: content}, "kind": 1}


def made(name):
    return [{"as_tensor": {"name": name}}]


def taken(name, content):
    return value("as_tensor", name, {"name": content})


def step(target, inputs, outputs):
    return {
        "target": target if target.startswith("_operator.") else f"torch.ops.aten.{target}",
        "inputs": inputs,
        "outputs": outputs,
    }


def number(name):
    return [{"as_sym_int": {"as_name": name}}]


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


class TestWhatCostsTooMuchIsNotRun:
    """Every file here would take minutes or all memory if a step of it were run."""

    @pytest.mark.parametrize("said", TOO_MUCH)
    def test_too_much(self, path, said, tmp_path):
        def change(module):
            module["graph"]["nodes"][:0] = TOO_MUCH[said]

        with pytest.raises(of.InputError, match=said):
            opened(with_program(path, tmp_path / "net.pt2", change))

    def test_what_grows_faster_than_the_images(self, path, images, tmp_path):
        """With two images it is 2¹⁶ numbers, with five it would be 1.5 · 10¹¹."""

        def change(module):
            end = value("as_sym_int", "end", {"as_name": "n4"})
            module["graph"]["nodes"][:0] = [*squares(4), step("arange.default", [end], made("a"))]

        whole = opened(with_program(path, tmp_path / "net.pt2", change))
        whole.network(torch.rand(2, 3, 16, 16))
        with pytest.raises(of.OutfieldError, match="a value of 152,587,890,625 numbers, where"):
            whole.extract(images)

    @pytest.mark.parametrize(
        "inputs",
        [
            [value("as_string", "a", "long"), value("as_int", "b", 10**10)],
            [value("as_int", "a", 2**62), value("as_sym_int", "b", {"as_int": 2**63})],
            [value("as_ints", "a", [1]), value("as_int", "b", 10**10)],
        ],
    )
    def test_numbers_without_end(self, path, inputs, tmp_path):
        with pytest.raises(of.FileFormatError, match=r"2\*\*63|is no int"):
            opened(
                with_program(
                    path,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].insert(0, step("_operator.mul", inputs, number("q"))),
                )
            )
        with pytest.raises(of.FileFormatError, match=r"mul takes numbers below 2\*\*63"):
            opened(
                with_program(
                    path,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].__setitem__(slice(0, 0), squares(60)),
                )
            )

    @pytest.mark.parametrize("at", [-1, 1])
    def test_programs_that_run_in_circles(self, path, at, tmp_path):
        def change(module):
            nodes = module["graph"]["nodes"]
            name = nodes[at]["outputs"][0]["as_tensor"]["name"]
            nodes.insert(len(nodes), step("clone.default", [taken("self", name)], made(name)))

        with pytest.raises(of.FileFormatError, match=r"clone\.default makes .* once more"):
            opened(with_program(path, tmp_path / "net.pt2", change))
        with pytest.raises(of.FileFormatError, match="takes 'later', which is not made yet"):
            opened(
                with_program(
                    path,
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
    def test_sizes_of_images(self, path, sizes, tmp_path):
        def change(module):
            module["graph"]["tensor_values"]["images"]["sizes"] = [{"as_int": one} for one in sizes]

        with pytest.raises(of.InputError, match=r"takes an input of shape|a value of 6,000,000,000,000"):
            opened(with_program(path, tmp_path / "net.pt2", change))

    def test_a_last_layer_without_what_it_needs(self, path, tmp_path):
        for target, count in (("detach.default", 0), ("linear.default", 1), ("mm.default", 3), ("mm.default", 1)):

            def change(module, target=target, count=count):
                last = module["graph"]["nodes"][-1]
                last["target"], last["inputs"] = f"torch.ops.aten.{target}", last["inputs"][:count]

            with pytest.raises(of.OutfieldError, match=r"does not end with a linear layer|is broken"):
                opened(with_program(path, tmp_path / "net.pt2", change))

    def test_plans_in_files_of_guards(self, path):
        whole = opened(path)
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


class TestRefusals:
    @pytest.mark.parametrize(
        "about",
        [
            {"tensor_meta": 5},
            {"tensor_meta": []},
            {"dtype": []},
            {"sizes": None},
            {"sizes": [0, 2**39, 2**39], "strides": [1, 1, 1]},
            {"sizes": [1] * 65, "strides": [1] * 65},
            {"sizes": [-1], "strides": [1]},
            {"sizes": [1], "strides": [-1]},
            {"storage_offset": {"as_int": -1}},
            {"path_name": "../../../../../../etc/passwd"},
        ],
    )
    def test_tensors_that_are_none(self, path, about, tmp_path):
        def counted(found):
            return [{"as_int": one} for one in found] if isinstance(found, list) else found

        first = config_of(path)
        entry = next(iter(first["config"].values()))
        for name, found in about.items():
            if name in entry:
                entry[name] = found
            else:
                entry["tensor_meta"][name] = counted(found) if name in ("sizes", "strides") else found
        with pytest.raises(of.FileFormatError):
            opened(changed(path, tmp_path / "net.pt2", {WEIGHTS: json.dumps(first)}))

    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_a_last_layer_whose_bias_is_another_ones(self, path, rows, tmp_path):
        found = config_of(path)
        found["config"]["fc.weight"]["tensor_meta"]["sizes"][0] = {"as_int": rows}
        with pytest.raises(of.InputError, match="does not end with a linear layer"):
            opened(changed(path, tmp_path / "net.pt2", {WEIGHTS: json.dumps(found)}))

    def test_many_names_for_the_same_bytes(self, path, tmp_path):
        """Names that share a tensor share its memory; what they take together is not more than the file."""
        found = config_of(path)
        entry = found["config"]["conv.weight"]
        same = {f"same{one}": entry for one in range(1000)}
        opened(changed(path, tmp_path / "net.pt2", {WEIGHTS: json.dumps({"config": {**found["config"], **same}})}))
        large = {"path_name": "large", "use_pickle": False, "tensor_meta": {**entry["tensor_meta"], "dtype": 1}}
        other = {
            f"other{one}": {
                **large,
                "tensor_meta": {**large["tensor_meta"], "sizes": [{"as_int": one}], "strides": [{"as_int": 1}]},
            }
            for one in range(1, 100)
        }
        text = json.dumps({"config": {**found["config"], **other}})
        with pytest.raises(of.FileFormatError, match="lie over each other"):
            opened(changed(path, tmp_path / "net.pt2", {WEIGHTS: text, "data/weights/large": b"\0" * 10**5}))

    def test_two_files_of_the_same_name(self, path, tmp_path):
        with (
            zipfile.ZipFile(changed(path, tmp_path / "net.pt2"), "a") as members,
            pytest.warns(UserWarning, match="Duplicate name"),
        ):
            members.writestr(next(name for name in members.namelist() if name.endswith(MODEL)), "{}")
        with pytest.raises(of.FileFormatError, match="two files of the same name"):
            opened(tmp_path / "net.pt2")

    def test_weights_and_images_that_are_written_to_by_another_name(self, path, tmp_path):
        for name in ("p_conv_weight", "images"):

            def change(module, name=name):
                module["graph"]["nodes"][:0] = [
                    step("detach.default", [taken("self", name)], made("view")),
                    step("fill_.Scalar", [taken("self", "view"), value("as_float", "value", 0.5)], made("other")),
                ]

            with pytest.raises(of.InputError, match="changes its own weights or its images"):
                opened(with_program(path, tmp_path / "net.pt2", change))
        places = [
            taken("self", "images"),
            value("as_int", "dim", 0),
            taken("max", "p_fc_bias"),
            taken("max_values", "p_fc_bias"),
        ]
        with pytest.raises(of.InputError, match=r"has a step 'torch\.ops\.aten\.max\.dim_max'"):
            opened(
                with_program(
                    path,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].insert(0, step("max.dim_max", places, [])),
                )
            )

    @pytest.mark.parametrize("kind", ["weights", "constants"])
    def test_weights_that_are_pickles(self, path, kind, tmp_path):
        listed = f"data/{kind}/model_{kind}_config.json"
        with zipfile.ZipFile(path) as members:
            config = json.loads(members.read(next(name for name in members.namelist() if name.endswith(listed))))
        next(iter(config["config"].values()))["use_pickle"] = True
        with pytest.raises(of.FileFormatError, match=r"is a pickle, which can run any code; write it anew with"):
            opened(changed(path, tmp_path / "one.pt2", {listed: json.dumps(config)}))
        old = changed(path, tmp_path / "old.pt2", {f"data/{kind}/model.pt": b"x"}, leave_out=[listed])
        with pytest.raises(of.FileFormatError, match=f"the {kind} in .* are a pickle, as older"):
            opened(old)

    def test_files_of_older_versions(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "old.pt2", "w") as members:
            for name in ("version", "serialized_exported_program.json", "serialized_state_dict.pt"):
                members.writestr(name, b"8.2")
        with pytest.raises(of.FileFormatError, match=r"are a pickle, as PyTorch wrote them up to 2\.7"):
            opened(tmp_path / "old.pt2")

    def test_files_that_are_none(self, path, tmp_path):
        content = path.read_bytes()
        other = tmp_path / "net.pt2"
        for broken in (b"", b"no archive", content[:-200], content[: len(content) // 2]):
            other.write_bytes(broken)
            with pytest.raises(of.FileFormatError, match=r"is no (whole )?file of torch\.export"):
                opened(other)
        with zipfile.ZipFile(other, "w") as members:
            members.writestr("a/b", "c")
        with pytest.raises(of.FileFormatError, match="it has no archive_format"):
            opened(other)
        with pytest.raises(of.FileFormatError, match="compressed"):
            opened(changed(path, other, compression=zipfile.ZIP_DEFLATED))
        with pytest.raises(of.InputError, match="holds 2 programs"):
            opened(changed(path, other, {"models/other.json": "{}"}))
        with pytest.raises(of.StorageError, match="no such file"):
            opened(tmp_path / "none.pt2")

    @pytest.mark.parametrize(
        "text", ["[]", "{}", "{", '{"graph_module": {"graph": {}, "signature": {}}}', "[" * 100_000]
    )
    def test_programs_that_are_none(self, path, text, tmp_path):
        with pytest.raises(of.FileFormatError):
            opened(changed(path, tmp_path / "net.pt2", {MODEL: text}))

    def test_weights_that_do_not_fit(self, path, tmp_path):
        for content in (b"", b"123", b"\0" * 8):
            with pytest.raises(of.FileFormatError, match=r"too few for its sizes"):
                opened(changed(path, tmp_path / "net.pt2", {"data/weights/weight_0": content}))
        with pytest.raises(of.FileFormatError, match="not finite"):
            opened(changed(path, tmp_path / "net.pt2", {"data/weights/weight_0": b"\xff" * 864}))
        with pytest.raises(of.FileFormatError, match="no item named"):
            opened(changed(path, tmp_path / "net.pt2", leave_out=["data/weights/weight_0"]))

    def test_a_program_that_fails(self, path, tmp_path):
        def change(module):
            module["graph"]["nodes"][0]["inputs"][1]["arg"]["as_tensor"]["name"] = "images"

        with pytest.raises(of.FileFormatError, match="cannot be run"):
            opened(with_program(path, tmp_path / "net.pt2", change))

    def test_what_is_no_classifier_of_images(self, tmp_path):
        cases = {
            "takes an input of shape": (nn.Linear(3, 2).eval(), (torch.rand(2, 3),)),
            "does not end with a linear layer": (seeded(Net, lambda net, z: z.square()), None),
            "gives 2 outputs": (seeded(Net, lambda net, z: (z, net.fc(z))), None),
            "has 2 inputs": (nn.Bilinear(3, 3, 2).eval(), (torch.rand(2, 3), torch.rand(2, 3))),
        }
        for number, (said, (network, examples)) in enumerate(cases.items()):
            with pytest.raises(of.InputError, match=said):
                opened(exported(network, tmp_path / f"{number}.pt2", examples=examples))

    def test_networks_that_are_being_trained(self, tmp_path):
        class Dropping(Net):
            def forward(self, images):
                return nn.functional.dropout(super().forward(images), 0.5, True)

        with pytest.raises(of.InputError, match=r"call eval\(\)"):
            opened(exported(seeded(Net).train(), tmp_path / "batch_norm.pt2"))
        with pytest.raises(of.InputError, match=r"call eval\(\)"):
            opened(exported(seeded(Dropping), tmp_path / "dropout.pt2"))

    def test_weights_that_are_written_to(self, path, tmp_path):
        def change(module):
            name = module["signature"]["input_specs"][0]["parameter"]["arg"]["name"]
            step = {"target": "torch.ops.aten.relu_.default", "outputs": [{"as_tensor": {"name": "other"}}]}
            step["inputs"] = [{"name": "self", "arg": {"as_tensor": {"name": name}}, "kind": 1}]
            module["graph"]["nodes"].insert(0, step)

        with pytest.raises(of.InputError, match="changes its own weights"):
            opened(with_program(path, tmp_path / "net.pt2", change))

    def test_what_the_file_does_not_say_must_be_given(self, path):
        with pytest.raises(of.InputError, match="give mean, std"):
            Backbone.open(str(path), device="cpu")
        with pytest.raises(of.InputError, match="takes images of 16 × 16"):
            opened(path, size=32)
        assert isinstance(opened(path).network, Pt2Network)


def test_len_of_a_network_that_counts_its_rows(tmp_path):
    """The networks of other tests are refused by torch.export itself or traced with one number of images."""
    found = opened(exported(seeded(Plain), tmp_path / "net.pt2", rows=3))
    assert found.network.asked.shape == (3, 3, 16, 16)
