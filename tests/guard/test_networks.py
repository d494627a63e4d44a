"""Guards of networks that are no modules of ours: a folder of transformers, an ONNX file; saved, loaded, the same verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from tests.helpers.guards import labelled
from tests.helpers.networks import Plain, seeded

import outfield as of


def in_a_folder(place):
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
        num_labels=4,
    )
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


@pytest.mark.parametrize("make", [in_a_folder, in_a_file])
def test_saved_and_loaded(make, tmp_path):
    torch.manual_seed(0)
    backbone = make(tmp_path / "net")
    guard = of.Guard.build(backbone, labelled(160, 0), labelled(120, 1), detector=of.KNN(k=5), device="cpu")
    guard.save(tmp_path / "my.guard")
    again = of.Guard.load(tmp_path / "my.guard", device="cpu")
    test = labelled(20, 3)
    one, other = guard(test), again(test)
    assert np.array_equal(one.is_ood, other.is_ood)
    assert np.allclose([v.score for v in one], [v.score for v in other])
    assert again.backbone.preprocessing == backbone.preprocessing
