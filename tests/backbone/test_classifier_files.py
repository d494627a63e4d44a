"""Files of classifiers with something inside that cannot be."""

import pytest
import torch

import outfield as of
from outfield.backbone import Backbone, Classifier, load_classifier
from outfield.config import to_plain
from outfield.files import Record, write_record

MADE = Classifier("test_resnet", 3, small_images=False, size=(32, 32), names=("a", "b", "c"))
PLAIN = to_plain(MADE)


@pytest.fixture(scope="module")
def state():
    return MADE.build(1).state_dict()


def write(path, header, tensors):
    write_record(path, "classifier", Record(header, tensors))
    return path


@pytest.mark.parametrize(
    "classifier",
    [
        None,
        {**PLAIN, "architecture": "torchvision:fcn_resnet50"},
        {**PLAIN, "architecture": "test_vit"},
        {**PLAIN, "classes": 4},
        {**PLAIN, "names": ["a"]},
        {**PLAIN, "unknown": 1},
    ],
)
def test_a_header_that_cannot_be(tmp_path, state, classifier):
    path = write(tmp_path / "c.safetensors", {"classifier": classifier, "notes": {}}, state)
    for read in (load_classifier, lambda path: Backbone.open(str(path), "cpu")):
        with pytest.raises(of.FileFormatError, match=r"c\.safetensors"):
            read(path)


@pytest.mark.parametrize("change", [lambda value: value * float("nan"), lambda value: value[:1]])
def test_weights_that_cannot_be(tmp_path, state, change):
    changed = {**state, "fc.weight": change(state["fc.weight"])}
    path = write(tmp_path / "c.safetensors", {"classifier": PLAIN, "notes": {}}, changed)
    with pytest.raises(of.FileFormatError, match=r"c\.safetensors .*fc\.weight"):
        load_classifier(path)
    with pytest.raises(of.FileFormatError, match=r"^weights .*fc\.weight"):
        Backbone.named("test_resnet", weights=changed, classes=3, device="cpu")


def test_other_types_of_the_same_numbers_are_taken(tmp_path, state):
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    network, _, _ = load_classifier(write(tmp_path / "c.safetensors", {"classifier": PLAIN, "notes": {}}, half))
    assert network.fc.weight.dtype == torch.float32
    torch.testing.assert_close(network.fc.weight.detach(), state["fc.weight"], atol=1e-3, rtol=1e-2)
