"""Backbone: what it gives is what the network computes, the network runs once for each image and is left as it was."""

from __future__ import annotations

import copy
import os
import signal
import warnings

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

import outfield as of
from outfield import batches
from outfield.backbone import Backbone, Odin, accuracy
from outfield.classifiers import Classifier, save_classifier
from outfield.images import ImageArray, ImageSource
from pictures import make_pictures

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
NORMALISED = {"mean": MEAN, "std": STD}
CLASSES = 4


class Plain(nn.Module):
    """Activations and pooling are functions, not modules."""

    def __init__(self, inplace=False):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, CLASSES)
        self.inplace, self.rows = inplace, 0
        with torch.no_grad():
            self.norm.running_mean.normal_()

    def map(self, images):
        return functional.relu(self.norm(self.conv(images)), inplace=self.inplace)

    def forward(self, images):
        self.rows += len(images)
        return self.fc(self.map(images).mean((2, 3)))


class ChannelsLast(nn.Module):
    """Like a Swin transformer: (N, H, W, D) behind the first layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 6, 4, stride=4), nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def map(self, images):
        return self.norm(self.conv(images).permute(0, 2, 3, 1))

    def forward(self, images):
        return self.fc(self.map(images).mean((1, 2)))


class Returning(nn.Module):
    """A network whose logits come in some wrapping."""

    def __init__(self, wrap):
        super().__init__()
        self.inner, self.wrap = Plain(), wrap

    def forward(self, images):
        return self.wrap(self.inner(images))


class Lookup(ImageSource):
    """Images of several sizes that are decoded one by one."""

    def __init__(self, images, broken=None):
        self.images, self.broken, self.name = images, broken, "lookup"
        self.labels, self.classes = None, None

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        if index == self.broken:
            raise of.FileFormatError(f"picture {index} is broken")
        return self.images[index]

    @property
    def size(self):
        return None

    def fingerprint(self):
        return "lookup"


def seeded(make, *args, **kwargs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*args, **kwargs).eval()


def backbone(network, size=16, **more):
    return Backbone(network, size=size, **NORMALISED, **more)


def normalised(images, dtype=torch.float32):
    pixels = torch.from_numpy(images.images).permute(0, 3, 1, 2).to(dtype) / 255
    return (pixels - torch.tensor(MEAN, dtype=dtype)[:, None, None]) / torch.tensor(STD, dtype=dtype)[:, None, None]


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


CASES = {
    # name: how it is made, size of images, its map (N, D, positions)
    "timm ResNet": (
        lambda: timm.create_model("test_resnet", num_classes=CLASSES),
        96,
        lambda n, x: n.forward_features(x).flatten(2),
    ),
    "timm ViT": (vit, 32, lambda n, x: n.forward_features(x)[:, 1:].transpose(1, 2)),
    "timm ConvNeXt": (
        lambda: timm.create_model("test_convnext", num_classes=CLASSES),
        64,
        lambda n, x: n.forward_features(x).flatten(2),
    ),
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


def close(a, b, tolerance=1e-5):
    a, b = a.detach().double(), b.detach().double()
    return a.shape == b.shape and float((a - b).abs().max()) <= tolerance * float(b.abs().max())


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

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda logits: (logits, "more"),
            lambda logits: {"logits": logits},
            lambda logits: type("Output", (), {"logits": logits})(),
        ],
        ids=["tuple", "mapping", "attribute"],
    )
    def test_logits_in_a_wrapping(self, wrap):
        network, images = seeded(Returning, wrap), make_pictures(n=5)
        assert close(backbone(network).extract(images).logits, network.inner(normalised(images)))

    @pytest.mark.parametrize(
        ("wrap", "said"),
        [
            (lambda logits: {"scores": logits}, "gave dict"),
            (lambda logits: logits.mean(0), r"shape \(4,\)"),
            (lambda logits: logits[:2], r"shape \(2, 4\)"),
        ],
    )
    def test_outputs_that_are_no_logits_are_refused(self, wrap, said):
        with pytest.raises(of.InputError, match=said):
            backbone(seeded(Returning, wrap)).extract(make_pictures(n=5))

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
            (
                [nn.Flatten(), nn.Linear(768, CLASSES), nn.Sigmoid()],
                None,
                r"head='fc' \(its linear layers end with 1\)",
            ),
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


def state_of(network):
    """Everything that must not change."""
    hooks = [
        [
            len(getattr(module, name))
            for name in vars(nn.Module())
            if "hooks" in name and getattr(module, name) is not None
        ]
        for module in network.modules()
    ]
    return {
        "modes": [module.training for module in network.modules()],
        "hooks": hooks,
        "wanted": [p.requires_grad for p in network.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in network.parameters()],
        "weights": {name: value.clone() for name, value in network.state_dict().items()},
        "layout": [p.stride() for p in network.parameters()],
        "random": torch.get_rng_state(),
        "modes of gradients": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")),
    }


def same_state(a, b):
    def same(x, y):
        if isinstance(x, torch.Tensor):
            return torch.equal(x, y)
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(same(x[k], y[k]) for k in x)
        return all(map(same, x, y)) if isinstance(x, list | tuple) else x == y

    return same(a, b)


class TestTheNetworkIsLeftAsItWas:
    @pytest.fixture
    def network(self):
        network = seeded(Plain).train()
        network.norm.eval()
        network.conv.weight.requires_grad_(False)
        network.fc(torch.ones(1, 8)).sum().backward()
        network.fc.register_forward_hook(lambda *_: None)
        return network

    @pytest.mark.parametrize("odin", [None, Odin()])
    def test_after_a_pass(self, network, odin):
        before = state_of(network)
        backbone(network).extract(make_pictures(n=9), odin=odin, batch_size=4)
        assert same_state(before, state_of(network))

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    @pytest.mark.parametrize("at", [0, 4])
    def test_after_an_error(self, network, error, at):
        def fail(module, args):
            if network.rows > at:
                raise error

        network.norm.register_forward_pre_hook(fail)
        before = state_of(network)
        with pytest.raises(error):
            backbone(network).extract(make_pictures(n=9), odin=Odin(), batch_size=4)
        assert same_state(before, state_of(network))

    def test_a_random_network_draws_nothing_from_the_global_generator(self):
        class Noisy(Plain):
            def map(self, images):
                return super().map(images + torch.randn_like(images))

        before = torch.get_rng_state()
        backbone(seeded(Noisy)).extract(Lookup(list(make_pictures(n=5).images)), workers=0)
        assert torch.equal(before, torch.get_rng_state())

    def test_evaluation_mode_is_used_whatever_the_mode(self, network):
        images = make_pictures(n=9)
        found = backbone(network.train()).extract(images)
        assert close(found.logits, copy.deepcopy(network).eval()(normalised(images)))

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_odin_needs_no_gradients_of_the_caller(self, mode):
        network, images = seeded(Plain), make_pictures(n=5)
        expected = backbone(network).extract(images, odin=Odin())
        with mode():
            assert close(backbone(network).extract(images, odin=Odin()).odin_logits, expected.odin_logits)

    def test_odin_without_a_gradient_is_refused(self):
        network = nn.Sequential(nn.Flatten(), nn.Linear(768, CLASSES))
        network.register_forward_pre_hook(lambda module, args: (args[0].detach(),))
        with pytest.raises(of.InputError, match="ODIN needs the gradient"):
            backbone(network).extract(make_pictures(n=3), odin=Odin())


class TestCost:
    @pytest.mark.parametrize(("odin", "times"), [(None, 1), (Odin(), 2)])
    def test_the_network_runs_once_for_each_image(self, odin, times):
        network = seeded(Plain)
        backbone(network).extract(make_pictures(n=23), odin=odin, batch_size=5)
        assert network.rows == 23 * times

    def limited(self, most, error):
        sizes = []

        class Limited(Plain):
            def forward(self, images):
                if len(images) > most:
                    raise error
                sizes.append(len(images))
                return super().forward(images)

            def sizes_seen(self):
                return sizes

        return seeded(Limited)

    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        ],
        ids=["GPU", "CPU"],
    )
    def test_batches_are_halved_where_memory_ends(self, error):
        network, images = self.limited(3, error), make_pictures(n=23)
        with pytest.warns(of.OutfieldWarning, match="too small for 16 images") as caught:
            found = backbone(network).extract(images, batch_size=16)
        assert len(caught) == 1
        assert network.sizes_seen() == [2] * 8 + [2, 2, 2, 1]
        assert close(found.logits, self.limited(99, error)(normalised(images)))

    def test_one_image_that_does_not_fit_is_an_error(self):
        network = self.limited(0, torch.OutOfMemoryError("no"))
        with pytest.warns(of.OutfieldWarning), pytest.raises(of.InputError, match="one image of 16 × 16"):
            backbone(network).extract(make_pictures(n=4))

    def test_other_errors_of_the_network_pass(self):
        with pytest.raises(RuntimeError, match="something else"):
            backbone(self.limited(0, RuntimeError("something else"))).extract(make_pictures(n=4))


class Overflowing(Plain):
    """Fails like a network whose numbers are too large for half precision, on bright images."""

    def map(self, images):
        inside = super().map(images)
        if torch.is_autocast_enabled(images.device.type):
            inside = torch.where(images.amax((1, 2, 3), keepdim=True) > 2, torch.inf, inside)
        return inside


class TestPrecision:
    @pytest.mark.parametrize("bright", [0, 5])
    def test_batches_that_overflow_are_done_again(self, bright):
        network, images = seeded(Overflowing), make_pictures(n=12)
        images.images[:] //= 4
        images.images[bright] = 255
        with pytest.warns(of.OutfieldWarning, match="not finite in float16") as caught:
            found = backbone(network).extract(images, precision="float16", batch_size=2)
        assert len(caught) == 1
        exact = backbone(network).extract(images, precision="float32")
        batch = slice(bright // 2 * 2, bright // 2 * 2 + 2)
        for name in ("logits", "features", "spread"):
            a, b = getattr(found, name), getattr(exact, name)
            assert torch.equal(a[batch], b[batch])
            assert 0 < float((a - b).abs().max()) < 1e-2
        assert network.rows == 12 + 2 + 12

    def test_outputs_that_stay_infinite_are_refused_by_image(self):
        network = seeded(Plain)
        network.register_forward_hook(lambda m, i, output: output / (network.rows != 4))
        with pytest.raises(of.InputError, match="logits that are not finite for image 2"):
            backbone(network).extract(make_pictures(n=6), batch_size=2)

    def test_an_unknown_precision(self):
        with pytest.raises(of.InputError, match="precision is 'half'; it must be one of auto"):
            backbone(seeded(Plain)).extract(make_pictures(n=4), precision="half")


def resized(image, size):
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))


class TestImages:
    def test_arrays_of_another_size_are_resized_as_pillow_does(self):
        images = make_pictures(n=6, size=40)
        found = batches.resize(torch.from_numpy(images.images), (16, 24)).numpy()
        expected = np.stack([resized(image, (16, 24)) for image in images.images])
        assert np.abs(found.astype(int) - expected).max() <= 1
        small = backbone(seeded(Plain)).extract(images)
        assert small.features.shape == (6, 8)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_files_of_several_sizes_give_what_arrays_give(self, workers):
        sizes = [16, 23, 40] * 15
        pictures = [make_pictures(n=1, size=size, seed=i).images[0] for i, size in enumerate(sizes)]
        network = backbone(seeded(Plain))
        found = network.extract(Lookup(pictures), workers=workers, batch_size=7)
        for index in (0, 1, 2, 43, 44):
            alone = network.extract(ImageArray(pictures[index][None]))
            assert close(found.features[index : index + 1], alone.features)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_errors_of_a_worker_read_like_errors(self, workers):
        pictures = list(make_pictures(n=40).images)
        with pytest.raises(of.FileFormatError, match=r"^picture 36 is broken$"):
            backbone(seeded(Plain)).extract(Lookup(pictures, broken=36), workers=workers)

    def test_a_worker_that_dies_is_an_error(self):
        class Deadly(Lookup):
            def __getitem__(self, index):
                return os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(of.StorageError, match=r"died.* use fewer than workers=1"):
            backbone(seeded(Plain)).extract(Deadly([0] * 4), workers=1)

    def test_large_images_are_read_in_smaller_batches(self, monkeypatch):
        monkeypatch.setattr(batches, "BYTES_AT_ONCE", 3 * 16 * 16 * 2)
        monkeypatch.setattr(batches, "BYTES_OF_A_WORKER", 1)
        images = make_pictures(n=5)
        assert [len(b) for b in batches.read(images, (16, 16), 512, None, pinned=False)] == [2, 2, 1]
        decoded = batches.read(Lookup(list(images.images)), (16, 16), 512, 1, pinned=False)
        assert [len(b) for b in decoded] == [1] * 5

    def test_few_files_need_no_workers(self, monkeypatch):
        monkeypatch.setattr(batches, "_cores", lambda: 1 / 0)
        backbone(seeded(Plain)).extract(Lookup(list(make_pictures(n=5).images)))

    def test_images_that_are_none(self):
        network = backbone(seeded(Plain))
        with pytest.raises(of.InputError, match=r"a ndarray; wrap an array, outfield.ImageArray"):
            network.extract(make_pictures().images)
        with pytest.raises(of.InputError, match="no image in lookup"):
            network.extract(Lookup([]))
        with pytest.raises(of.InputError, match=r"image 1 of lookup is float64 of shape \(4, 4\)"):
            network.extract(Lookup([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4))]))
        with pytest.raises(of.InputError, match="batch_size is 0"):
            network.extract(make_pictures(), batch_size=0)
        with pytest.raises(of.InputError, match="workers is -1"):
            network.extract(make_pictures(), workers=-1)

    def test_a_read_only_array_is_read_in_silence(self, tmp_path):
        np.save(tmp_path / "images.npy", make_pictures(n=5).images)
        mapped = ImageArray(np.load(tmp_path / "images.npy", mmap_mode="r"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            backbone(seeded(Plain)).extract(mapped)


class TestSettings:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"size": (0, 3)}, "size is 0"),
            ({"size": (3,)}, r"size is \(3,\)"),
            ({"mean": (1, 2)}, "mean is"),
            ({"std": (1, 0, 1)}, "std is 0; it must be a number above 0"),
            ({"classes": 0}, "classes is 0"),
            ({"classes": 3, "names": "ab"}, "2 names for 3 classes"),
            ({"network": "resnet"}, "network is a str"),
        ],
    )
    def test_wrong_settings_are_refused(self, change, said):
        with pytest.raises(of.InputError, match=said):
            Backbone(**{"network": Plain(), "size": 8, **NORMALISED, **change})

    def test_classes_are_learned_or_checked(self):
        network = backbone(seeded(Plain))
        assert network.classes is None
        network.extract(make_pictures(n=4))
        assert network.classes == CLASSES
        assert repr(network) == "Backbone(backbone: Plain, images of 16 × 16, 4 classes)"
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

    def test_devices(self):
        assert backbone(Plain()).device == torch.device("cpu")
        network = Plain()
        network.fc.to("meta")
        with pytest.raises(of.InputError, match="is on cpu, meta"):
            backbone(network).extract(make_pictures(n=3))

    def test_odin_refuses_what_cannot_be(self):
        with pytest.raises(of.InputError, match="temperature is 0"):
            Odin(temperature=0)
        with pytest.raises(of.InputError, match="epsilon is -1"):
            Odin(epsilon=-1)


@pytest.fixture
def trained(tmp_path):
    """A file of ours, and its network."""
    made = Classifier("test_resnet", 3, small_images=False, size=(32, 32), mean=MEAN, std=STD, names=("a", "b", "c"))
    network = made.build(seed=3).eval()
    save_classifier(tmp_path / "ours.safetensors", made, network.state_dict())
    return tmp_path / "ours.safetensors", network


def logits(network, size=32):
    return network.extract(make_pictures(n=4, classes=3, size=size)).logits


class TestSources:
    def test_a_file_of_ours(self, trained):
        path, network = trained
        expected = logits(backbone(network, 32))
        for found in (
            Backbone.load(path, "cpu"),
            Backbone.open(str(path), "cpu"),
            Backbone.open(f"timm:test_resnet@{path}", "cpu"),
        ):
            assert (found.name, found.classes, found.names) == ("ours", 3, ("a", "b", "c"))
            assert (found.input.size, found.input.mean, found.input.std) == ((32, 32), MEAN, STD)
            assert close(logits(found), expected)
        with pytest.raises(of.FileFormatError, match="architecture = 'test_resnet', not 'timm:test_vit'"):
            Backbone.open(f"timm:test_vit@{path}")

    @pytest.mark.parametrize("prefix", ["", "module."])
    def test_a_plain_state_dict_says_how_many_classes(self, tmp_path, trained, prefix):
        path, state = tmp_path / "plain.safetensors", {prefix + k: v for k, v in trained[1].state_dict().items()}
        safetensors.torch.save_file(state, path)
        before = torch.get_rng_state()
        found = Backbone.open(f"timm:test_resnet@{path}", device="cpu", size=32)
        assert torch.equal(before, torch.get_rng_state())
        expected = Backbone(trained[1], size=32, mean=(0.5,) * 3, std=(0.5,) * 3)  # as timm says
        assert found.name == "plain"
        assert close(logits(found), logits(expected))
        for weights in (state, path):
            again = Backbone.named("test_resnet", weights=weights, size=32, mean=MEAN, std=STD, device="cpu")
            assert close(logits(again), logits(backbone(trained[1], 32)))

    def test_torchvision_and_a_stem_for_small_images(self, tmp_path):
        made = Classifier("torchvision:resnet18", 3)
        state = made.build().state_dict()
        found = Backbone.named("torchvision:resnet18", weights=state, device="cpu")
        assert found.input.size == (32, 32)
        assert found.input.mean == (0.485, 0.456, 0.406)
        assert found.name == "torchvision:resnet18"
        assert tuple(found.network.conv1.weight.shape) == (64, 3, 3, 3)
        assert logits(found).shape == (4, 3)
        with pytest.raises(of.FileFormatError, match="does not fit"):
            Backbone.named("torchvision:resnet18", weights=state, small_images=False)

    def test_pretrained_networks_come_with_the_librarys_settings(self, monkeypatch):
        asked = []

        def create(architecture, pretrained):
            asked.append((architecture, pretrained))
            return timm.create_model("test_resnet")

        monkeypatch.setattr("outfield.weights.create", create)
        found = Backbone.open("timm:test_resnet", device="cpu")
        assert asked == [("timm:test_resnet", True)]
        assert (found.input.size, found.input.mean, found.name) == ((160, 160), (0.5, 0.5, 0.5), "test_resnet")

        def offline(architecture, pretrained):
            raise OSError("no way to the server")

        monkeypatch.setattr("outfield.weights.create", offline)
        with pytest.raises(of.StorageError, match="timm:test_resnet could not be had: no way to the server"):
            Backbone.open("timm:test_resnet")

    @pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt"])
    def test_pickles_are_refused_with_the_way_out(self, tmp_path, trained, ending, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = tmp_path / f"weights{ending}"
        torch.save(trained[1].state_dict(), path)
        said = []
        for spec in (str(path), f"timm:test_resnet@{path}"):
            with pytest.raises(of.FileFormatError, match="unpickled") as caught:
                Backbone.open(spec)
            said.append(str(caught.value))
        assert said[0] == said[1]
        exec(said[0].partition("it: ")[2], {"safetensors": safetensors, "torch": torch})
        found = Backbone.open(f"timm:test_resnet@{path.with_suffix('.safetensors')}", "cpu", size=32, **NORMALISED)
        assert close(logits(found), logits(backbone(trained[1], 32)))

    def test_what_is_no_backbone(self, tmp_path, trained):
        safetensors.torch.save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "plain.safetensors")
        (tmp_path / "text.safetensors").write_text("text")
        of.FeatureSet(np.ones((2, 2))).save(tmp_path / "features.safetensors")
        for spec, error, said in (
            ("resnet34", of.UnknownNameError, "is no backbone; write FILE.safetensors"),
            ("timm:resnet3", of.UnknownNameError, "timm has no model 'resnet3'"),
            ("timm:test_resnet@", of.InputError, "names no file"),
            (tmp_path / "none.safetensors", of.StorageError, "no such file"),
            (f"timm:test_resnet@{tmp_path}/none.safetensors", of.StorageError, "no such file"),
            (tmp_path / "plain.safetensors", of.FileFormatError, "timm:resnet34@"),
            (tmp_path / "text.safetensors", of.FileFormatError, "not a safetensors file"),
            (tmp_path / "features.safetensors", of.FileFormatError, "holds a FeatureSet, not a classifier"),
            (f"timm:test_resnet@{tmp_path}/plain.safetensors", of.FileFormatError, "does not fit ResNet"),
        ):
            with pytest.raises(error, match=said):
                Backbone.open(str(spec))
        with pytest.raises(of.InputError, match="carries its settings"):
            Backbone.open(str(trained[0]), size=3)

    def test_arguments_that_contradict_each_other(self):
        state = {"fc.weight": torch.ones(2, 2)}
        for settings, said in (
            ({}, "either weights or pretrained"),
            ({"weights": state, "pretrained": True}, "either weights or pretrained"),
            ({"pretrained": True, "classes": 3}, "their own classes"),
            ({"weights": {"state_dict": state}}, "no tensor under 'state_dict'"),
            ({"weights": {}}, "weights is dict"),
            ({"weights": 3}, "weights is int"),
            ({"weights": state, "device": "nowhere"}, "device nowhere cannot be used"),
        ):
            with pytest.raises(of.InputError, match=said):
                Backbone.named("test_resnet", **settings)


@needs_gpu
class TestGPU:
    def small_resnet(self, device):
        made = Classifier("torchvision:resnet34", 10)
        return Backbone.named(made.architecture, weights=seeded(made.build).state_dict(), **NORMALISED, device=device)

    def test_it_gives_what_the_cpu_gives(self):
        images = make_pictures(n=70, size=32, classes=10)
        settings = {"odin": Odin(epsilon=0.01), "precision": "float32", "batch_size": 32}
        expected = self.small_resnet("cpu").extract(images, **settings)
        convolutions = torch.backends.cudnn.allow_tf32
        found = self.small_resnet("cuda").extract(images, **settings)
        assert torch.backends.cudnn.allow_tf32 == convolutions
        for name in ("features", "logits", "spread"):
            assert close(getattr(found, name), getattr(expected, name), 1e-4), name
        moved = expected.odin_logits - expected.logits
        assert close(found.odin_logits - found.logits, moved, 0.05)

    @pytest.mark.parametrize("precision", ["auto", "float16", "bfloat16"])
    def test_half_precision_is_close(self, precision):
        images, network = make_pictures(n=700, size=32, classes=10), self.small_resnet("cuda")
        exact = network.extract(images, odin=Odin(), precision="float32")
        found = network.extract(images, odin=Odin(), precision=precision, batch_size=256)
        tolerance = 0.05 if precision == "bfloat16" else 0.01
        for name in ("features", "logits", "spread"):
            assert float((getattr(found, name) - getattr(exact, name)).abs().max()) > 0
            assert close(getattr(found, name), getattr(exact, name), tolerance), name
        if precision != "bfloat16":
            moved, expected = found.odin_logits - found.logits, exact.odin_logits - exact.logits
            # Half-precision logits are coarse beside so small a step; gradients that vanish would shorten it as a whole.
            assert float((moved * expected).sum() / expected.square().sum()) == pytest.approx(1, abs=0.1)

    def test_resizing_on_the_gpu_and_in_workers_is_the_same(self):
        pictures, network = make_pictures(n=300, size=50), self.small_resnet("cuda")
        array = network.extract(pictures, precision="float32")
        files = network.extract(Lookup(list(pictures.images)), workers=2, precision="float32")
        assert close(array.features, files.features, 1e-2)  # a byte may be rounded the other way

    def test_overflow_is_done_again_in_order(self):
        network, images = seeded(Overflowing).cuda(), make_pictures(n=12)
        images.images[:] //= 4
        images.images[5] = 255
        with pytest.warns(of.OutfieldWarning, match="not finite in float16"):
            found = backbone(network).extract(images, batch_size=2)
        assert close(found.logits, backbone(network).extract(images, precision="float32").logits, 1e-2)

    def test_real_memory_that_ends(self):
        torch.cuda.empty_cache()
        _, total = torch.cuda.mem_get_info()
        network, images = self.small_resnet("cuda"), make_pictures(n=2000, size=32, classes=10)
        expected = network.extract(images, precision="float32", batch_size=64)
        try:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 500 * 2**20) / total))
            with pytest.warns(of.OutfieldWarning, match="too small for 2000 images"):
                found = network.extract(images, precision="float32", batch_size=2000)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert close(found.logits, expected.logits, 1e-4)

    def test_a_users_network_keeps_its_layout(self):
        class Viewing(Plain):
            def forward(self, images):
                return self.fc(self.map(images).view(len(images), 8, -1).mean(2))

        network = seeded(Viewing).cuda()
        before = [p.stride() for p in network.parameters()]
        backbone(network).extract(make_pictures(n=9))
        assert [p.stride() for p in network.parameters()] == before
