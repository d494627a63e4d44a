"""A network is built again from its origin and tensors: equal to the bit, or an error that says why not."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.networks import NORMALISED, Plain, seeded

import outfield as of
from outfield.backbone import Origin


def rebuilt(backbone):
    origin = Origin.of_json(json.loads(json.dumps(backbone.origin.to_json())))
    return origin.build(origin.state(backbone.network), "a file")


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:resnet18"])
def test_a_network_of_a_library_is_built_again(name, tmp_path):
    network = of.Classifier(name, classes=5, small_images=False).build(seed=3)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    backbone = of.Backbone.open(f"{name}@{tmp_path / 'w.safetensors'}", device="cpu")
    images = torch.rand(2, 3, 32, 32)
    again = rebuilt(backbone)
    assert not again.training
    assert torch.equal(again(images), network.eval()(images))
    assert backbone.origin.settings == {"architecture": name, "classes": 5, "small_images": False}


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext"])
def test_a_file_of_ours_says_its_stem_and_classes(name, tmp_path):
    classifier = of.Classifier(name, classes=3, small_images=True, size=(16, 16))
    of.save_classifier(tmp_path / "n.safetensors", classifier, classifier.build().state_dict())
    backbone = of.Backbone.load(tmp_path / "n.safetensors", device="cpu")
    assert backbone.origin == Origin.of_library(name, 3, True)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(rebuilt(backbone)(images), backbone.network(images))


def test_a_convnext_for_small_images_has_a_patch_for_every_pixel():
    network = of.Classifier("test_convnext", classes=3, size=(32, 32)).build()
    assert network.stages(network.stem(torch.rand(1, 3, 32, 32))).shape[2:] == (4, 4)
    with pytest.raises(of.InputError, match="convnext_atto_ols has another stem"):
        of.Classifier("convnext_atto_ols", classes=3).build()


def test_a_module_given_in_python_has_no_origin():
    assert of.Backbone(seeded(Plain), size=16, **NORMALISED).origin is None


@pytest.mark.parametrize("plain", [None, {}, {"kind": "pickle", "settings": {}}, {"kind": "library", "settings": 3}])
def test_what_is_no_origin_is_refused(plain):
    with pytest.raises(of.FileFormatError, match="no kind of network"):
        Origin.of_json(plain)


def test_tensors_that_do_not_fit_are_refused():
    origin = Origin.of_library("test_resnet", 3, False)
    with pytest.raises(of.FileFormatError, match=r"my\.guard does not fit"):
        origin.build({"fc.weight": torch.zeros(3, 3)}, "my.guard")
    with pytest.raises(of.InputError, match="architecture is None"):
        Origin("library", {}).build({}, "my.guard")
