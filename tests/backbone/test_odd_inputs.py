"""What is no backbone, no setting, no image and no network: an error of ours that names it."""

import numpy as np
import pytest
import torch
from tests.helpers.networks import CLASSES, Lookup, Plain, Returning, backbone, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of
from outfield.backbone import Backbone, Classifier, Odin

NAN, INF = float("nan"), float("inf")
RIGHT = {"size": 16, "mean": (0.5,) * 3, "std": (0.5,) * 3}


def made(**change):
    return Backbone(seeded(Plain), **{**RIGHT, **change})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("size", [None, "16", True, 1.5, NAN, (16,), (16, 16, 16), (16, "a"), 0, -1, 10**9, (10**10, 8), b"ab"]),
        ("mean", [None, 3, "abc", (0.5, 0.5), (0.5,) * 4, (NAN, 0, 0), ("a", "b", "c"), (True, 0, 0)]),
        ("std", [None, (0, 1, 1), (-1, 1, 1), (INF, 1, 1), (NAN, 1, 1), torch.tensor(1.0)]),
        ("head", [3, "", nn.Linear(2, 2)]),
        ("name", [None, 3]),
        ("classes", ["3", 0, -1, 3.0, True]),
        ("names", ["abcd", [1, 2, 3, 4], None, 5]),
    ],
)
def test_settings_that_cannot_be_are_refused_when_they_are_given(name, values):
    for value in values:
        with pytest.raises(of.InputError, match=name):
            made(**{name: value})


def test_numbers_of_any_kind_are_settings():
    images = make_pictures(n=3)
    expected = made().extract(images)
    for change in (
        {"size": np.int64(16)},
        {"size": (np.int32(16), 16)},
        {"size": torch.tensor([16, 16])},
        {"mean": np.array([0.5, 0.5, 0.5]), "std": torch.tensor([0.5, 0.5, 0.5])},
        {"mean": [0.5] * 3},
    ):
        found = made(**change)
        assert torch.equal(found.extract(images).features, expected.features)
        assert found.fingerprint() == made().fingerprint()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("odin", [True, "x", 1]),
        ("stages", ["layer2", 1, None]),
        ("labels", ["auto", "x", 3]),
        ("batch_size", [0, -1, None, "3", 1.5, True]),
        ("workers", [-1, "2", 1.5, True, 10**7]),
        ("precision", [None, "x", 3, torch.float32, np.array(["a", "b"])]),
    ],
)
def test_arguments_of_a_pass(name, values):
    for value in values:
        with pytest.raises(of.InputError, match=f"{name} is"):
            made().extract(make_pictures(n=3), **{name: value})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: None,
        lambda x: ("a", x),
        lambda x: {"other": x},
        lambda x: x[:, None],
        lambda x: torch.cat([x, x]),
        lambda x: x.argmax(1, keepdim=True),
    ],
)
def test_a_network_that_gives_no_logits(wrap):
    said = r"the network gave a (NoneType|tuple|dict|tensor).* for 3 images; a classifier gives logits \(3, K\)"
    with pytest.raises(of.InputError, match=said):
        backbone(seeded(Returning, wrap)).extract(make_pictures(n=3))


@pytest.mark.parametrize(
    "wrap", [lambda x: (x, 1), lambda x: [x], lambda x: {"logits": x}, lambda x: type("Output", (), {"logits": x})()]
)
def test_logits_in_a_wrapping(wrap):
    images = make_pictures(n=3)
    found = backbone(seeded(Returning, wrap)).extract(images)
    assert torch.equal(found.logits, backbone(seeded(Returning, lambda x: x)).extract(images).logits)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3)), "Sequential fails on images of shape .* RuntimeError"),
        (lambda: Returning(lambda x: 1 / 0), "Returning fails on images .* ZeroDivisionError"),
        (lambda: Plain().to("meta"), "is on meta"),
        (lambda: nn.Identity(), "the network gave"),
    ],
)
def test_networks_that_fail(network, said):
    with pytest.raises(of.InputError, match=said):
        backbone(network().eval(), head=None).extract(make_pictures(n=3))


GOOD = np.zeros((8, 8, 3), np.uint8)


class Failing(Lookup):
    def __getitem__(self, index):
        if isinstance(self.images[index], Exception):
            raise self.images[index]
        return self.images[index]


@pytest.mark.parametrize(
    ("image", "error", "said"),
    [
        (
            GOOD / 255.0,
            of.InputError,
            r"image 1 of lookup is float64 of shape \(8, 8, 3\); images are numpy arrays, uint8",
        ),
        (GOOD.tolist(), of.InputError, "image 1 of lookup is a list; images are numpy arrays"),
        (np.zeros((0, 8, 3), np.uint8), of.InputError, "shape"),
        (OSError(5, "Input/output error"), of.StorageError, "image 1 of lookup cannot be read: .*Input/output error"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_source_that_are_none(image, error, said, workers):
    with pytest.raises(error, match=said):
        made().extract(Failing([GOOD, image]), workers=workers)


@pytest.mark.parametrize("device", ["meta", "nonsense", "cuda:99", "", None, 3])
def test_devices_that_are_none(device):
    with pytest.raises(of.InputError, match="device"):
        Backbone.named("test_resnet", weights={"a": torch.ones(1)}, device=device)


@pytest.mark.parametrize("spec", [None, 3, b"x", "", ":", "timm:", "torchvision:", "timm:../x", "@", "x" * 5000])
def test_texts_that_name_no_backbone(spec):
    with pytest.raises(of.InputError):
        Backbone.open(spec, "cpu")


@pytest.mark.parametrize("name", [None, 3, "", "x:y", "hf-hub:timm/resnet18", "timm:hf-hub:timm/resnet18"])
def test_names_that_no_library_has(name):
    with pytest.raises(of.InputError):
        Backbone.named(name, weights={"a": torch.ones(1)}, device="cpu")
    with pytest.raises(of.InputError):
        Classifier(name).build()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("architecture", [None, 3, ""]),
        ("classes", [0, 1.5, 10**12, "3", True]),
        ("small_images", ["x", None, 2]),
        ("size", [(10**9, 3), None, (16.5, 16), [16, 16], (16,), (0, 16), 16, (True, 16)]),
        ("mean", [None, 3, (NAN,) * 3, ("a", "b", "c"), (1, 2)]),
        ("std", [None, (INF, 1, 1), (NAN,) * 3, (0, 1, 1)]),
        ("names", [None, 5, "a" * 10, (1,) * 10, ("a",)]),
    ],
)
def test_a_classifier_checks_its_settings_when_it_is_made(name, values):
    for value in values:
        with pytest.raises(of.InputError, match=name):
            Classifier(**{"architecture": "test_resnet", "classes": 10, name: value})


def test_a_network_that_cannot_be_built(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("can't allocate memory: you tried to allocate 163840000000 bytes\nand a long story")

    monkeypatch.setattr("torchvision.models.get_model", refuse)
    with pytest.raises(of.InputError, match=r"vgg16 cannot be built with 10000000 classes: can't allocate .* bytes$"):
        Classifier("torchvision:vgg16", 10**7, small_images=False).build()


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30, 1.5, None, "a", True])
def test_seeds_that_are_none(seed):
    with pytest.raises(of.InputError, match="seed is"):
        Classifier("test_resnet", small_images=False).build(seed)


def test_odins_settings():
    for change in ({"temperature": 0}, {"epsilon": -1}):
        with pytest.raises(of.InputError, match=next(iter(change))):
            Odin(**change)
    assert made().extract(make_pictures(n=2), odin=Odin(epsilon=0)).odin_logits.shape == (2, CLASSES)
