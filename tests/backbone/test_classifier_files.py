"""Files of classifiers that are crafted: a valid checksum, and something inside that cannot be."""

import pytest
import torch

import outfield as of
from outfield.backbone import Backbone, Classifier, load_classifier
from outfield.config import to_plain
from outfield.files import Record, write_record

MADE = Classifier("test_resnet", 3, small_images=False, size=(32, 32), names=("a", "b", "c"))


@pytest.fixture(scope="module")
def state():
    return MADE.build(1).state_dict()


def write(path, header, tensors):
    write_record(path, "classifier", Record(header, tensors))
    return path


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"classifier": "test_resnet", "notes": {}},
        {"classifier": {"type": "Odin"}, "notes": {}},
        {"classifier": to_plain(MADE)},
        {"classifier": to_plain(MADE), "notes": [1]},
        {"architecture": "no_such_network"},
        {"architecture": "torchvision:fcn_resnet50"},
        {"architecture": "test_vit"},
        {"classes": 4},
        {"small_images": True},
        {"size": [0, 32]},
        {"mean": [0.1]},
        {"names": ["a"]},
        {"unknown": 1},
    ],
)
def test_a_header_that_cannot_be(tmp_path, state, header):
    if header and "classifier" not in header:
        header = {"classifier": {**to_plain(MADE), **header}, "notes": {}}
    path = write(tmp_path / "c.safetensors", header, state)
    with pytest.raises(of.FileFormatError, match=r"c\.safetensors"):
        load_classifier(path)
    with pytest.raises(of.FileFormatError):
        Backbone.open(str(path), "cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value * float("nan"),
        lambda value: value + float("inf"),
        lambda value: value[:1],
        lambda value: value.flatten(),
        lambda value: torch.zeros(()),
    ],
)
def test_weights_that_cannot_be(tmp_path, state, change):
    header = {"classifier": to_plain(MADE), "notes": {}}
    changed = {**state, "fc.weight": change(state["fc.weight"])}
    path = write(tmp_path / "c.safetensors", header, changed)
    with pytest.raises(of.FileFormatError, match=r"c\.safetensors .*fc\.weight"):
        load_classifier(path)
    with pytest.raises(of.FileFormatError, match=r"^weights .*fc\.weight"):
        Backbone.named("test_resnet", weights=changed, classes=3, device="cpu")


def test_other_types_of_the_same_numbers_are_taken(tmp_path, state):
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    path = write(tmp_path / "c.safetensors", {"classifier": to_plain(MADE), "notes": {}}, half)
    network, _, _ = load_classifier(path)
    assert network.fc.weight.dtype == torch.float32
    torch.testing.assert_close(network.fc.weight.detach(), state["fc.weight"], atol=1e-3, rtol=1e-2)
