"""Files of torch.export that are broken, or hold no classifier of images, are refused with the reason."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch
from tests.helpers.exported import (
    MODEL,
    WEIGHTS,
    Net,
    changed,
    config_of,
    exported,
    made,
    opened,
    step,
    taken,
    value,
    with_program,
)
from tests.helpers.networks import seeded
from torch import nn

import outfield as of
from outfield.backbone.backbone import Backbone
from outfield.backbone.pt2_network import Pt2Network


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
    def test_tensors_that_are_none(self, program, about, tmp_path):
        def counted(found):
            return [{"as_int": one} for one in found] if isinstance(found, list) else found

        first = config_of(program)
        entry = next(iter(first["config"].values()))
        for name, found in about.items():
            if name in entry:
                entry[name] = found
            else:
                entry["tensor_meta"][name] = counted(found) if name in ("sizes", "strides") else found
        with pytest.raises(of.FileFormatError):
            opened(changed(program, tmp_path / "net.pt2", {WEIGHTS: json.dumps(first)}))

    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_a_last_layer_whose_bias_is_another_ones(self, program, rows, tmp_path):
        found = config_of(program)
        found["config"]["fc.weight"]["tensor_meta"]["sizes"][0] = {"as_int": rows}
        with pytest.raises(of.InputError, match="does not end with a linear layer"):
            opened(changed(program, tmp_path / "net.pt2", {WEIGHTS: json.dumps(found)}))

    def test_many_names_for_the_same_bytes(self, program, tmp_path):
        """Names that share a tensor share its memory; what they take together is not more than the file."""
        found = config_of(program)
        entry = found["config"]["conv.weight"]
        same = {f"same{one}": entry for one in range(1000)}
        opened(changed(program, tmp_path / "net.pt2", {WEIGHTS: json.dumps({"config": {**found["config"], **same}})}))
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
            opened(changed(program, tmp_path / "net.pt2", {WEIGHTS: text, "data/weights/large": b"\0" * 10**5}))

    def test_two_files_of_the_same_name(self, program, tmp_path):
        with (
            zipfile.ZipFile(changed(program, tmp_path / "net.pt2"), "a") as members,
            pytest.warns(UserWarning, match="Duplicate name"),
        ):
            members.writestr(next(name for name in members.namelist() if name.endswith(MODEL)), "{}")
        with pytest.raises(of.FileFormatError, match="two files of the same name"):
            opened(tmp_path / "net.pt2")

    def test_weights_and_images_that_are_written_to_by_another_name(self, program, tmp_path):
        for name in ("p_conv_weight", "images"):

            def change(module, name=name):
                module["graph"]["nodes"][:0] = [
                    step("detach.default", [taken("self", name)], made("view")),
                    step("fill_.Scalar", [taken("self", "view"), value("as_float", "value", 0.5)], made("other")),
                ]

            with pytest.raises(of.InputError, match="changes its own weights or its images"):
                opened(with_program(program, tmp_path / "net.pt2", change))
        places = [
            taken("self", "images"),
            value("as_int", "dim", 0),
            taken("max", "p_fc_bias"),
            taken("max_values", "p_fc_bias"),
        ]
        with pytest.raises(of.InputError, match=r"has a step 'torch\.ops\.aten\.max\.dim_max'"):
            opened(
                with_program(
                    program,
                    tmp_path / "net.pt2",
                    lambda module: module["graph"]["nodes"].insert(0, step("max.dim_max", places, [])),
                )
            )

    @pytest.mark.parametrize("kind", ["weights", "constants"])
    def test_weights_that_are_pickles(self, program, kind, tmp_path):
        listed = f"data/{kind}/model_{kind}_config.json"
        with zipfile.ZipFile(program) as members:
            config = json.loads(members.read(next(name for name in members.namelist() if name.endswith(listed))))
        next(iter(config["config"].values()))["use_pickle"] = True
        with pytest.raises(of.FileFormatError, match=r"is a pickle, which can run any code; write it anew with"):
            opened(changed(program, tmp_path / "one.pt2", {listed: json.dumps(config)}))
        old = changed(program, tmp_path / "old.pt2", {f"data/{kind}/model.pt": b"x"}, leave_out=[listed])
        with pytest.raises(of.FileFormatError, match=f"the {kind} in .* are a pickle, as older"):
            opened(old)

    def test_files_of_older_versions(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "old.pt2", "w") as members:
            for name in ("version", "serialized_exported_program.json", "serialized_state_dict.pt"):
                members.writestr(name, b"8.2")
        with pytest.raises(of.FileFormatError, match=r"are a pickle, as PyTorch wrote them up to 2\.7"):
            opened(tmp_path / "old.pt2")

    def test_files_that_are_none(self, program, tmp_path):
        content = program.read_bytes()
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
            opened(changed(program, other, compression=zipfile.ZIP_DEFLATED))
        with pytest.raises(of.InputError, match="holds 2 programs"):
            opened(changed(program, other, {"models/other.json": "{}"}))
        with pytest.raises(of.StorageError, match="no such file"):
            opened(tmp_path / "none.pt2")

    @pytest.mark.parametrize(
        "text", ["[]", "{}", "{", '{"graph_module": {"graph": {}, "signature": {}}}', "[" * 100_000]
    )
    def test_programs_that_are_none(self, program, text, tmp_path):
        with pytest.raises(of.FileFormatError):
            opened(changed(program, tmp_path / "net.pt2", {MODEL: text}))

    def test_weights_that_do_not_fit(self, program, tmp_path):
        for content in (b"", b"123", b"\0" * 8):
            with pytest.raises(of.FileFormatError, match=r"too few for its sizes"):
                opened(changed(program, tmp_path / "net.pt2", {"data/weights/weight_0": content}))
        with pytest.raises(of.FileFormatError, match="not finite"):
            opened(changed(program, tmp_path / "net.pt2", {"data/weights/weight_0": b"\xff" * 864}))
        with pytest.raises(of.FileFormatError, match="no item named"):
            opened(changed(program, tmp_path / "net.pt2", leave_out=["data/weights/weight_0"]))

    def test_a_program_that_fails(self, program, tmp_path):
        def change(module):
            module["graph"]["nodes"][0]["inputs"][1]["arg"]["as_tensor"]["name"] = "images"

        with pytest.raises(of.FileFormatError, match="cannot be run"):
            opened(with_program(program, tmp_path / "net.pt2", change))

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

    def test_weights_that_are_written_to(self, program, tmp_path):
        def change(module):
            name = module["signature"]["input_specs"][0]["parameter"]["arg"]["name"]
            step = {"target": "torch.ops.aten.relu_.default", "outputs": [{"as_tensor": {"name": "other"}}]}
            step["inputs"] = [{"name": "self", "arg": {"as_tensor": {"name": name}}, "kind": 1}]
            module["graph"]["nodes"].insert(0, step)

        with pytest.raises(of.InputError, match="changes its own weights"):
            opened(with_program(program, tmp_path / "net.pt2", change))

    def test_what_the_file_does_not_say_must_be_given(self, program):
        with pytest.raises(of.InputError, match="give mean, std"):
            Backbone.open(str(program), device="cpu")
        with pytest.raises(of.InputError, match="takes images of 16 × 16"):
            opened(program, size=32)
        assert isinstance(opened(program).network, Pt2Network)
