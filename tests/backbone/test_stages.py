"""Stages: what a network's own blocks give, pooled, in the same pass; and the last layer, which comes with the features."""

from functools import partial

import numpy as np
import pytest
import timm
import torch
import torchvision
from tests.helpers.networks import CLASSES, Plain, backbone, close, normalised, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of
from outfield.backbone import Extraction
from outfield.backbone.hooks import FeatureMap
from outfield.features import head_of


class Blocks(nn.Module):
    """A stem, then a list of blocks that is never called itself; the mean of the last one's output are the features."""

    def __init__(self, blocks=3, width=5, after=None):
        super().__init__()
        self.unused = nn.Sequential(nn.Conv2d(width, 99, 1), nn.Sequential(nn.Conv2d(99, 99, 1)))
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.ReLU())
        self.body = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(blocks)]
        )
        self.after = after or nn.Identity()
        self.fc = nn.Linear(width, CLASSES)
        self.rows = 0

    def forward(self, images):
        self.rows += len(images)
        x = self.stem(images)
        for block in self.body:
            x = block(x)
        return self.fc(self.after(x).mean((2, 3)))


class Tokens(nn.Module):
    """A transformer of two blocks; features are the class token, or the mean of all others."""

    def __init__(self, class_token=True, norm=True):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8) if norm else nn.Identity()
        self.fc = nn.Linear(8, CLASSES)
        self.class_token = class_token

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        if self.class_token:
            patches = torch.cat([self.token.expand(len(images), -1, -1), patches], 1)
        x = self.norm(self.encoder(patches))
        return self.fc(x[:, 0] if self.class_token else x.mean(1))


class LastAxis(nn.Module):
    """Maps (N, 7, H, W), then (N, H, W, D)."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 7, 4, stride=4)
        self.one, self.two = nn.Linear(7, 5), nn.Linear(5, 6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, images):
        return self.fc(self.two(self.one(self.patches(images).permute(0, 2, 3, 1)).relu()).relu().mean((1, 2)))


def vgg():
    layers = [
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 7, 3, padding=1), nn.ReLU(inplace=True)),
    ]
    head = nn.Sequential(nn.Flatten(), nn.Linear(7 * 16, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    return nn.Sequential(nn.Sequential(*layers), head)


def outputs(network, names, images):
    """What the named modules give, as they give it, by hooks of this test's own."""
    found = {}

    def hook(name):
        return lambda module, args, output: found.update({name: output.detach().clone()})

    hooks = [network.get_submodule(name).register_forward_hook(hook(name)) for name in names]
    with torch.no_grad():
        network(images)
    for one in hooks:
        one.remove()
    return [found[name] for name in names]


def positions(tensor):
    return tensor.mean((2, 3))


def mixed(tensor):
    """Of :class:`LastAxis`."""
    return tensor.mean((2, 3) if tensor.shape[1] == 7 else (1, 2))


def patches(tokens):
    """Without the class token."""
    return tokens[:, 1:].mean(1)


def all_tokens(tokens):
    return tokens.mean(1)


def of_timm(name, **settings):
    return partial(timm.create_model, name, num_classes=CLASSES, **settings)


def of_torchvision(name, *settings):
    return partial(getattr(torchvision.models, name), *settings, num_classes=CLASSES)


CASES = {
    # name: how it is made, size of images, names of its stages, how each is pooled
    "timm ResNet": (of_timm("test_resnet"), 64, ["layer1", "layer2", "layer3"], positions),
    "torchvision ResNet": (of_torchvision("resnet18"), 32, ["layer1", "layer2", "layer3"], positions),
    # a norm comes behind the last
    "timm ConvNeXt": (of_timm("test_convnext"), 64, [f"stages.{i}" for i in range(4)], positions),
    "timm ViT": (of_timm("test_vit", img_size=32), 32, [f"blocks.{i}" for i in range(6)], patches),
    "torchvision ViT": (
        of_torchvision("VisionTransformer", 16, 8, 10, 2, 12, 24),
        16,
        [f"encoder.layers.encoder_layer_{i}" for i in (1, 2, 3, 4, 6, 7, 8, 9)],
        patches,
    ),
    "torchvision Swin": (
        of_torchvision("SwinTransformer", [4, 4], 12, [1, 2], [2, 2], [2, 2]),
        32,
        ["features.1", "features.3"],
        lambda tensor: tensor.mean((1, 2)),
    ),
    "VGG": (vgg, 16, ["0.3", "0.7", "0.9"], positions),
    "own blocks": (Blocks, 16, ["stem", "body.0", "body.1"], positions),
    "own blocks, something behind": (
        lambda: Blocks(after=nn.Conv2d(5, 5, 1)),
        16,
        ["stem", "body.0", "body.1", "body.2"],
        positions,
    ),
    "many blocks": (lambda: Blocks(18), 16, [f"body.{i}" for i in (1, 3, 5, 7, 10, 12, 14, 16)], positions),
    "own tokens": (Tokens, 16, ["encoder.layers.0", "encoder.layers.1"], patches),
    "own tokens, all of them": (lambda: Tokens(False), 16, ["encoder.layers.0", "encoder.layers.1"], all_tokens),
    "the last block is the features": (lambda: Tokens(False, norm=False), 16, ["encoder.layers.0"], all_tokens),
    "functional": (Plain, 16, ["norm"], positions),
    "channels last": (LastAxis, 16, ["patches", "one", "two"], mixed),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    make, size, names, pool = CASES[request.param]
    return seeded(make), make_pictures(n=7, size=size), names, pool


def said(found):
    """What a set says of itself, but for the network."""
    return {name: text for name, text in found.about.items() if name != "network"}


class TestStages:
    def test_they_are_the_means_of_what_the_blocks_give(self, case):
        network, images, names, pool = case
        found = backbone(network, images.size).extract(images, stages=True, batch_size=4)
        assert said(found) == {"views": "one"} | {f"stage{i}": name for i, name in enumerate(names, 1)}
        for i, output in enumerate(outputs(network, names, normalised(images)), 1):
            stage = getattr(found, f"stage{i}")
            assert close(stage, pool(output), 1e-4), i
            assert stage.dtype == torch.float32

    def test_everything_else_is_as_without_them(self, case):
        network, images, *_ = case
        without = backbone(network, images.size).extract(images, batch_size=4)
        with_them = backbone(network, images.size).extract(images, batch_size=4, stages=True)
        assert not any(name.startswith("stage") for name in without.shapes)
        assert said(without) == {"views": "one"}
        for name, value in without.tensors().items():
            assert torch.equal(value, getattr(with_them, name)), name

    @pytest.mark.parametrize("size", [(24, 16), (20, 16), (8, 24)])
    def test_images_that_are_not_square(self, size):
        """(5, 4) positions of 5 channels and (2, 6) of 6 among them: the weights tell."""
        pixels = np.random.default_rng(0).integers(0, 256, (3, *size, 3), np.uint8)
        network, images = seeded(LastAxis), of.ImageArray(pixels)
        found = backbone(network, size).extract(images, stages=True)
        for i, output in enumerate(outputs(network, ["patches", "one", "two"], normalised(images)), 1):
            assert close(getattr(found, f"stage{i}"), mixed(output)), i

    def test_half_precision_finds_the_same_stages(self):
        network, images = seeded(Blocks), make_pictures(n=6)
        full, half = (
            backbone(network).extract(images, stages=True, precision=precision) for precision in ("float32", "bfloat16")
        )
        assert half.about == full.about
        assert close(half.stage1, full.stage1, 0.03)

    def test_a_network_without_any(self):
        network = seeded(nn.Sequential, nn.Flatten(), nn.Linear(768, 9), nn.ReLU(), nn.Linear(9, CLASSES))
        images = make_pictures(n=4)
        with pytest.raises(of.InputError, match=r"no stages were found in Sequential.* stages=False"):
            backbone(network).extract(images, stages=True)
        assert backbone(network).extract(images).features.shape == (4, 9)


class TestLastLayer:
    def test_it_makes_the_logits_of_the_features(self, case):
        network, images, *_ = case
        found = backbone(network, images.size).extract(images, batch_size=4)
        assert close(found.features @ found.head_weight.T + found.head_bias, found.logits, 1e-4)
        given = head_of(found)
        assert torch.equal(given.weight, found.head_weight.double())

    def test_without_a_bias(self):
        network = seeded(Plain)
        network.fc = nn.Linear(8, CLASSES, bias=False)
        found = backbone(network).extract(make_pictures(n=4))
        assert torch.equal(found.head_weight, network.fc.weight)
        assert found.head_bias is None

    def test_none_where_the_logits_are_something_else(self):
        class Scaled(Plain):
            def forward(self, images):
                return super().forward(images) * 3

        found = backbone(seeded(Scaled), head="fc").extract(make_pictures(n=4))
        assert found.head_weight is None
        assert found.head_bias is None


def test_a_pass_gives_only_what_is_wanted():
    given = backbone(seeded(Blocks))
    way = Extraction(given, stages=True)
    pixels = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8)
    way.only(["stage1"])  # before the first pass nobody knows where to look
    (_, every), (_, again) = (next(iter(way.run([pixels], 4))) for _ in range(2))
    assert {*every} == {*again} == {"features", "logits", "spread", "stage1", "stage2", "stage3"}
    for wanted in (["stage3", "stage1", "spread"], ["stage3"], ["features"]):
        way.only(wanted)
        _, found = next(iter(way.run([pixels], 4)))
        assert {*found} == {"features", "logits", *wanted}
        assert all(torch.equal(found[name], again[name]) for name in found)
    assert {*way.about()} >= {"stage1", "stage2", "stage3"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in given.network.modules())


def test_the_spread_is_the_standard_deviation_as_float64_gives_it():
    given = torch.rand(3, 5, 4, 7) + torch.tensor([0.0, 1.0, 1e3, 1e6, -1e6])[:, None, None]
    given[1, 2] = 0.1  # the same everywhere
    place = FeatureMap(nn.Identity(), True, (5, 4, 7), 1)
    found = place.spread(given)
    assert found.dtype == torch.float32
    assert float(found[1, 2]) == 0
    torch.testing.assert_close(found, given.double().std((2, 3), correction=0).float(), rtol=2e-7, atol=0)


def test_what_runs_after_the_head_is_no_stage():
    class Decoding(Blocks):
        def __init__(self):
            super().__init__()
            self.decoder = nn.Sequential(nn.Conv2d(3, 7, 3, padding=1), nn.ReLU())

        def forward(self, images):
            logits = super().forward(images)
            self.decoder(images)
            return logits

    images = make_pictures(6)
    plain, more = (backbone(seeded(make)).extract(images, stages=True, labels=False) for make in (Blocks, Decoding))
    assert more.shapes == plain.shapes


def test_a_head_may_be_called_by_its_second_name():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Blocks()
            self.fc = self.model.fc

        def forward(self, images):
            return self.model(images)

    assert backbone(seeded(Wrapped), head="fc").extract(make_pictures(6), labels=False).shapes["features"] == (6, 5)
