"""Backbone: what it gives is what the network computes, wherever the network comes from."""

import copy
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torchvision
from tests.helpers.networks import CLASSES, MEAN, ChannelsLast, Plain, backbone, close, normalised, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of
from outfield.backbone import Backbone, Odin, accuracy


def vit():
    return timm.create_model("test_vit", num_classes=CLASSES, img_size=32)


def vision_transformer():
    network = torchvision.models.VisionTransformer(16, 8, 2, 2, 12, 24, num_classes=CLASSES)
    nn.init.normal_(network.heads.head.weight)
    return network


def first_layers(network, images):
    """(N, D, positions) of torchvision's ResNet and vision transformer."""
    if hasattr(network, "layer4"):
        inner = nn.Sequential(*list(network.children())[:-2])
        return inner(images).flatten(2)
    caught = []
    with network.encoder.register_forward_hook(lambda m, i, output: caught.append(output)):
        network(images)
    return caught[0][:, 1:].transpose(1, 2)


def timm_map(network, images):
    return network.forward_features(images).flatten(2)


CASES = {
    # name: how it is made, size of images, its map (N, D, positions)
    "timm ResNet": (partial(timm.create_model, "test_resnet", num_classes=CLASSES), 96, timm_map),
    "timm ViT": (vit, 32, lambda n, x: n.forward_features(x)[:, 1:].transpose(1, 2)),
    "timm ConvNeXt": (partial(timm.create_model, "test_convnext", num_classes=CLASSES), 64, timm_map),
    "torchvision ResNet": (lambda: torchvision.models.resnet18(num_classes=CLASSES), 64, first_layers),
    "torchvision ViT": (vision_transformer, 16, first_layers),
    "functional": (Plain, 16, lambda n, x: n.map(x).flatten(2)),
    "functional in place": (lambda: Plain(inplace=True), 16, lambda n, x: n.map(x).flatten(2)),
    "channels last": (ChannelsLast, 16, lambda n, x: n.map(x).flatten(1, 2).transpose(1, 2)),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    make, size, map_of = CASES[request.param]
    return seeded(make), make_pictures(n=10, size=size), map_of


def features_of(network, images):
    """The input of the last linear layer."""
    caught = []
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    with head.register_forward_pre_hook(lambda module, args: caught.append(args[0])):
        network(images)
    return caught[0]


class TestWhatItGives:
    def test_features_logits_and_spread_are_the_networks(self, case):
        network, images, map_of = case
        found = backbone(network, images.size).extract(images, batch_size=4)
        with torch.no_grad():
            x = normalised(images)
            assert close(found.logits, network(x))
            assert close(found.features, features_of(network, x))
            assert close(found.spread, map_of(network, x).std(2, correction=0))
        assert found.labels.tolist() == images.labels.tolist()
        assert found.odin_logits is None
        assert {value.dtype for name, value in found.tensors().items() if name != "labels"} == {torch.float32}

    @pytest.mark.parametrize("rows", [1, 3, 10, 512])
    def test_the_batch_size_changes_nothing(self, rows):
        network, images = seeded(Plain), make_pictures(n=10)
        whole = backbone(network).extract(images, odin=Odin(), batch_size=10)
        for name, value in backbone(network).extract(images, odin=Odin(), batch_size=rows).tensors().items():
            assert close(value, getattr(whole, name)), name

    def test_odin_is_a_step_along_the_sign_of_the_gradient(self, case):
        network, images, _ = case
        odin = Odin(temperature=10.0, epsilon=0.01)
        found = backbone(network, images.size).extract(images, odin=odin, batch_size=4)
        exact = copy.deepcopy(network).double()
        x = normalised(images, torch.float64).requires_grad_()
        likeliest = (exact(x) / odin.temperature).softmax(1).amax(1)
        (gradient,) = torch.autograd.grad(likeliest.log().sum(), x)
        expected = exact(x + odin.epsilon * gradient.sign())
        moved = expected - exact(x)
        assert close(found.odin_logits - found.logits, moved, 0.02)  # signs of tiny gradients differ in float32
        assert close(found.odin_logits, expected, 1e-3)
        more_certain = (expected / odin.temperature).softmax(1).amax(1) > likeliest
        assert more_certain.double().mean() > 0.9

    def test_odin_with_the_papers_settings_in_half_precision(self):
        network, images = seeded(Plain), make_pictures(n=10)
        full, half = (
            backbone(network).extract(images, odin=Odin(), precision=precision) for precision in ("float32", "float16")
        )
        moved = full.odin_logits - full.logits
        assert float(moved.abs().max()) > 1e-3
        assert close(half.odin_logits - half.logits, moved, 0.5)

    def test_labels_are_left_out_on_request(self):
        images = make_pictures(n=12, classes=6)
        with pytest.raises(of.InputError, match=r"label 5, but .* knows 4 classes.* labels=False"):
            backbone(seeded(Plain)).extract(images)
        assert backbone(seeded(Plain)).extract(images, labels=False).labels is None

    def test_accuracy(self):
        images, network = make_pictures(n=40), backbone(seeded(Plain))
        found = network.extract(images)
        expected = np.mean(found.logits.numpy().argmax(1) == images.labels)
        assert accuracy(found) == pytest.approx(expected)
        with pytest.raises(of.MissingFieldError, match="needs logits and labels; there are features"):
            accuracy(of.FeatureSet(np.ones((2, 2))))

    def test_a_network_in_double_precision_runs_as_it_is(self):
        network, images = seeded(Plain).double(), make_pictures(n=5)
        found = backbone(network).extract(images)
        assert close(found.logits, network(normalised(images, torch.float64)), 1e-6)
        with pytest.raises(of.InputError, match=r"weights are torch\.float64"):
            backbone(network).extract(images, precision="float16")


class TestHeadAndMap:
    def test_a_map_of_another_width_gives_no_spread(self):
        network = seeded(
            nn.Sequential, nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(980, 7), nn.Linear(7, CLASSES)
        )
        found = backbone(network).extract(make_pictures(n=5))
        assert found.spread is None
        assert found.features.shape == (5, 7)

    def test_a_convolution_as_head(self):
        layers = [nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(5, CLASSES, 1), nn.Flatten()]
        network, images = seeded(nn.Sequential, *layers), make_pictures(n=5)
        found = backbone(network).extract(images)
        inside = network[:2](normalised(images))
        assert close(found.features, inside.mean((2, 3)))
        assert close(found.spread, inside.std((2, 3), correction=0))
        assert torch.equal(found.head_weight, network[3].weight.flatten(1))
        assert torch.equal(found.head_bias, network[3].bias)

    def test_a_shared_activation_is_read_where_the_map_is(self):
        class Shared(Plain):
            def __init__(self):
                super().__init__()
                self.act, self.hidden = nn.ReLU(), nn.Linear(8, 8)

            def forward(self, images):
                map_ = self.act(self.norm(self.conv(images)))
                return self.fc(self.act(self.hidden(map_.mean((2, 3)))))

        network, images = seeded(Shared), make_pictures(n=9)
        found = backbone(network).extract(images, batch_size=3)
        assert close(found.spread, network.map(normalised(images)).std((2, 3), correction=0))

    def test_a_head_that_is_named(self):
        layers = [nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 6), nn.Linear(6, CLASSES)]
        network, images = seeded(nn.Sequential, *layers), make_pictures(n=5)
        assert backbone(network).extract(images).features.shape == (5, 6)
        found = backbone(network, head="3").extract(images, batch_size=2)
        assert close(found.features, network[:3](normalised(images)))
        assert close(found.logits, network(normalised(images)))

    @pytest.mark.parametrize(
        ("layers", "head", "said"),
        [
            ([nn.Flatten(), nn.Linear(768, 4), nn.Sigmoid()], None, r"head='fc' \(its linear layers end with 1\)"),
            ([nn.Conv2d(3, CLASSES, 16), nn.Flatten()], None, "no linear layer can be seen"),
            ([nn.Flatten(), nn.Linear(768, CLASSES)], "fc", "has no module of that name"),
            ([nn.Conv2d(3, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()], "0", "name a layer behind the pooling"),
        ],
        ids=["not-the-output", "no-linear-layer", "no-such-name", "not-pooled"],
    )
    def test_a_head_that_cannot_be_found(self, layers, head, said):
        with pytest.raises(of.InputError, match=said):
            backbone(nn.Sequential(*layers), head=head).extract(make_pictures(n=3))

    def test_probabilities_are_noticed(self):
        network = nn.Sequential(nn.Flatten(), nn.Linear(768, CLASSES), nn.LogSoftmax(1))
        with pytest.warns(of.OutfieldWarning, match="probabilities"):
            backbone(network, head="1").extract(make_pictures(n=3))

    def test_another_way_in_a_later_batch_is_refused(self):
        class Moody(Plain):
            def __init__(self):
                super().__init__()
                self.other = nn.Linear(8, CLASSES)

            def forward(self, images):
                self.rows += len(images)
                return (self.fc if self.rows <= 4 else self.other)(self.map(images).mean((2, 3)))

        with pytest.raises(of.InputError, match="another way"):
            backbone(seeded(Moody)).extract(make_pictures(n=8), batch_size=4)

    def test_compiled_and_parallel_networks_are_looked_into(self):
        network = seeded(Plain)
        for outer in (torch.compile(network), nn.DataParallel(network)):
            assert backbone(outer).network is network
        with pytest.raises(of.InputError, match="scripted"):
            backbone(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(768, 2))))


class TestSettings:
    def test_wrong_settings_are_refused(self):
        with pytest.raises(of.InputError, match="2 names for 3 classes"):
            backbone(Plain(), classes=3, names=["a", "b"])
        with pytest.raises(of.InputError, match="network is a str"):
            backbone("resnet")

    def test_classes_are_learned_or_checked(self):
        network = backbone(seeded(Plain))
        assert network.classes is None
        network.extract(make_pictures(n=4))
        assert network.classes == CLASSES
        assert repr(network) == (
            "Backbone(backbone: Plain, images of 16 × 16, mean (0.4, 0.5, 0.6), std (0.2, 0.25, 0.3), 4 classes)"
        )
        with pytest.raises(of.InputError, match="gives 4 logits, but classes is 5"):
            backbone(seeded(Plain), classes=5).extract(make_pictures(n=4))

    def test_the_fingerprint_is_of_weights_and_settings(self):
        a, b = seeded(Plain), seeded(Plain)
        assert backbone(a, name="a").fingerprint() == backbone(b.train(), name="b").fingerprint()
        found = {backbone(a, **more).fingerprint() for more in ({}, {"size": 17}, {"head": "fc"})}
        found |= {Backbone(a, size=16, mean=MEAN, std=(1, 1, 1)).fingerprint()}
        with torch.no_grad():
            b.norm.running_var[0] += 1e-6
        found |= {backbone(b).fingerprint()}
        assert len(found) == 5

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, stride=2)),
            (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, padding=1)),
            (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, dilation=2)),
            (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        ],
        ids=["stride", "padding", "dilation", "slope"],
    )
    def test_the_fingerprint_is_of_settings_that_are_not_weights(self, one, other):
        other.load_state_dict(one.state_dict())
        found = [backbone(nn.Sequential(layer)).fingerprint() for layer in (one, copy.deepcopy(one), other)]
        assert found[0] == found[1] != found[2]

    def test_the_fingerprint_is_the_same_wherever_a_function_lies_in_memory(self):
        class Lambda(nn.Module):
            def __init__(self, function):
                super().__init__()
                self.function = function

            def extra_repr(self):
                return repr(self.function)

        one, other = (backbone(Lambda(lambda x: x)) for _ in range(2))
        assert repr(one.network) != repr(other.network)
        assert one.fingerprint() == other.fingerprint()

    def test_labels_that_are_asked_for(self):
        images, network = make_pictures(n=6, classes=3), backbone(seeded(Plain), names=list("abcd"))
        for classes, kept in (("abcd", [0, 1, 2]), (None, [0, 1, 2]), ("abdc", [0, 1, 3]), ("bcd", [1, 2, 3])):
            images.classes = None if classes is None else tuple(classes)
            assert network.extract(images, labels=True).labels.tolist() == [kept[label] for label in images.labels]
        images.classes = tuple("abcde")
        with pytest.raises(of.InputError, match=r"pictures: the network has no class 'e'.* labels=False"):
            network.extract(images, labels=True)
        assert network.extract(images, labels=False).labels is None
        assert backbone(seeded(Plain)).extract(images, labels=True).labels is not None

    def test_devices(self):
        assert backbone(Plain()).device == torch.device("cpu")
        network = Plain()
        network.fc.to("meta")
        with pytest.raises(of.InputError, match="is on cpu, meta"):
            backbone(network).extract(make_pictures(n=3))
