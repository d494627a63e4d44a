"""Guards of networks that are no modules of ours, of transformers, ONNX and torch.export: saved, loaded, the same verdicts."""

import numpy as np
import pytest
import torch
import transformers
from tests.helpers.guards import labelled
from tests.helpers.networks import Plain, seeded
from torch import nn

import outfield as of
from outfield.backbone import Origin


def in_a_folder(place):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "image_size": 16, "patch_size": 8}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, num_labels=4)
    transformers.ViTForImageClassification(config).save_pretrained(place)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(place)
    return of.Backbone.open(f"hf:{place}", device="cpu")


def in_a_file(place):
    example = torch.rand(2, 3, 16, 16)
    free = {"images": {0: "n"}, "logits": {0: "n"}}
    torch.onnx.export(
        seeded(Plain).eval(), (example,), f"{place}.onnx", input_names=["images"], output_names=["logits"], dynamic_axes=free,
        dynamo=False,
    )  # fmt: skip
    return of.Backbone.open(f"{place}.onnx", device="cpu", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def in_an_exported_program(place):
    free = ({0: torch.export.Dim("N", min=1, max=2**30)},)
    body = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(*body, nn.Linear(8, 4))
    program = torch.export.export(network.eval(), (torch.rand(2, 3, 16, 16),), dynamic_shapes=free)
    torch.export.save(program, f"{place}.pt2")
    return of.Backbone.open(f"{place}.pt2", device="cpu", trust=True, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@pytest.mark.parametrize("make", [in_a_folder, in_a_file, in_an_exported_program])
def test_saved_and_loaded(make, tmp_path):
    torch.manual_seed(0)
    backbone = make(tmp_path / "net")
    guard = of.Guard.build(backbone, labelled(160, 0), labelled(120, 1), detector=of.KNN(k=5), device="cpu")
    guard.save(tmp_path / "my.guard")
    network = None
    if make is in_an_exported_program:  # which can run code, so that no guard holds it
        with pytest.raises(of.InputError, match=r"does not hold its network .* Backbone\.open\(FILE, trust=True"):
            of.Guard.load(tmp_path / "my.guard", device="cpu")
        again = of.Backbone.open(f"{tmp_path / 'net'}.pt2", device="cpu", trust=True, mean=(0.5,) * 3, std=(0.5,) * 3)
        network = again.network
    again = of.Guard.load(tmp_path / "my.guard", device="cpu", network=network)
    test = labelled(20, 3)
    one, other = guard(test), again(test)
    assert np.array_equal(one.is_ood, other.is_ood)
    assert np.allclose([v.score for v in one], [v.score for v in other])
    assert again.backbone.preprocessing == backbone.preprocessing


def test_a_guard_of_an_exported_program_is_exported_itself(tmp_path):
    """Its steps can be traced again, unlike those of an ONNX file."""
    from outfield.adapters import to_onnx, to_pt2

    torch.manual_seed(0)
    backbone = in_an_exported_program(tmp_path / "net")
    guard = of.Guard.build(backbone, labelled(160, 0), labelled(120, 1), detector="SSD", device="cpu")
    assert to_pt2(guard, tmp_path / "guard.pt2").apart <= 1e-4
    assert to_onnx(guard, tmp_path / "guard.onnx").apart <= 1e-4
    with pytest.raises(of.InputError, match="takes an input of shape"):
        of.Backbone.open(str(tmp_path / "guard.pt2"), device="cpu", trust=True, mean=(0.5,) * 3, std=(0.5,) * 3)


def test_a_guard_that_holds_a_program_of_an_earlier_version():
    with pytest.raises(of.FileFormatError, match=r"program of torch\.export.*build the guard anew"):
        Origin.of_json({"kind": "pt2", "settings": {}})
