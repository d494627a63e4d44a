"""One pass over images: the network runs once for each and is left as it was; memory, precision and files are taken care of."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers.networks import CLASSES, NORMALISED, Lookup, Plain, backbone, close, normalised, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of
from outfield.backbone import Backbone, Classifier, Odin, Preprocessing, read_all
from outfield.images import ImageArray
from outfield.modes import WITHOUT_TF32


def state_of(network):
    """Everything that must not change."""
    kinds = [name for name, value in vars(nn.Module()).items() if "hooks" in name and value is not None]
    hooks = [[len(getattr(module, name)) for name in kinds] for module in network.modules()]
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

    @pytest.mark.parametrize("settings", [{}, {"odin": Odin()}, {"stages": True}])
    def test_after_a_pass(self, network, settings):
        before = state_of(network)
        backbone(network).extract(make_pictures(n=9), batch_size=4, **settings)
        assert same_state(before, state_of(network))
        assert network.rows == 9 * (2 if "odin" in settings else 1)

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

    def test_other_errors_of_the_network_say_where_and_keep_their_cause(self):
        failing = self.limited(0, RuntimeError("something else\nand more"))
        said = r"Limited fails on images of shape \(4, 3, 16, 16\): RuntimeError: something else$"
        with pytest.raises(of.InputError, match=said) as caught:
            backbone(failing).extract(make_pictures(n=4))
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_a_cpu_is_given_few_large_images_at_once(self, monkeypatch):
        """So that progress shows, and memory is spared; a batch of small images stays whole, and one thread needs 17."""
        for threads, size, most in ((2, 224, 10), (1, 224, 17), (1, 32, 512)):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            network = seeded(Plain)
            rows = []
            network.register_forward_pre_hook(lambda module, args, rows=rows: rows.append(len(args[0])))
            pictures = ImageArray(np.zeros((23, size, size, 3), np.uint8))
            backbone(network, size=size).extract(pictures)
            assert max(rows) == min(most, 23)
            assert sum(rows) == 23


class TestProgress:
    def test_it_shows_before_the_first_image_is_decoded_and_moves_between_them(self, monkeypatch):
        """Of 25 images at 224 pixels never more than two pieces are decoded ahead of what is shown."""
        seen = []

        @contextlib.contextmanager
        def bar(title, total=None, unit=""):
            seen.append((title, total, unit, images.decoded))
            yield lambda done, note="": seen.append((done, images.decoded))

        class Counting(Lookup):
            decoded = 0

            def __getitem__(self, index):
                self.decoded += 1
                return super().__getitem__(index)

        images = Counting(list(make_pictures(n=25, size=8).images))
        monkeypatch.setattr("outfield.backbone.backbone.bar", bar)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        backbone(seeded(Plain), size=224).extract(images)
        assert seen[0] == ("features of lookup", 25, "images", 0)
        assert [done for done, _ in seen[1:]] == [10, 20, 25]
        assert all(decoded <= done + 10 for done, decoded in seen[1:])


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

    @pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has the older settings only")
    def test_tf32_is_off_inside_and_as_it_was_afterwards(self):
        """In processes of their own: once the newer settings were touched, torch forbids the older ones."""
        code = """
import os
import torch
from outfield.backbone.extraction import arithmetic

backends = torch.backends
places = (backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)

def settings():
    return [place.fp32_precision for place in places]

def check(chosen):
    untouched = settings()
    assert "tf32" in untouched  # torch's own choice for convolutions
    for index in chosen:
        places[int(index)].fp32_precision = "tf32"
    before = settings()
    try:
        with arithmetic(torch.device("cuda"), None):
            assert settings() == ["ieee"] * 5
            1 / 0
    except ZeroDivisionError:
        pass
    assert settings() == before
    for index in chosen:
        places[int(index)].fp32_precision = "none"
    assert settings() == untouched  # nothing has been pinned that was inherited

for chosen in ("", "0", "1", "40"):
    child = os.fork()
    if not child:
        check(chosen)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, chosen
"""
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_tf32_before_there_was_a_setting_for_each_operation(self, monkeypatch):
        chosen = {"products": "medium"}
        old = SimpleNamespace(
            backends=SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=True)),
            get_float32_matmul_precision=lambda: chosen["products"],
            set_float32_matmul_precision=lambda value: chosen.update(products=value),
        )
        monkeypatch.setattr("outfield.modes.torch", old)
        with WITHOUT_TF32.held():
            assert (old.backends.cudnn.allow_tf32, chosen["products"]) == (False, "highest")
        assert (old.backends.cudnn.allow_tf32, chosen["products"]) == (True, "medium")


def resized(image, size):
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))


def pixels_of(images, size):
    way = Preprocessing(size, interpolation="tensor")
    return np.stack([way.pixels(image) for image in images.images])


class TestImages:
    def test_arrays_of_another_size_are_resized_as_pillow_does(self):
        images = make_pictures(n=6, size=40)
        found = pixels_of(images, (16, 24))
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

        with pytest.raises(of.StorageError, match=r"died.* use fewer workers than 1, or none"):
            backbone(seeded(Plain)).extract(Deadly([0] * 4), workers=1)

    @pytest.mark.parametrize(("count", "elsewhere"), [(5, False), (256, True)])
    def test_few_files_need_no_workers(self, count, elsewhere):
        """Images are white where another process decodes them, and black where this one does."""
        here = os.getpid()

        class Telling(Lookup):
            def __getitem__(self, index):
                return np.full((4, 4, 3), 255 * (os.getpid() != here), np.uint8)

        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
        found = Backbone(network, size=4, mean=(0, 0, 0), std=(1, 1, 1)).extract(Telling([0] * count))
        assert torch.equal(found.features, torch.full((count, 3), float(elsewhere)))

    def test_images_that_are_none(self):
        network = backbone(seeded(Plain))
        with pytest.raises(of.InputError, match=r"images is a ndarray; wrap an array, .* in outfield.ImageArray"):
            network.extract(make_pictures().images)
        with pytest.raises(of.InputError, match="no image in lookup"):
            network.extract(Lookup([]))

    def test_a_read_only_array_is_read_in_silence(self, tmp_path):
        images = make_pictures(n=5)
        np.save(tmp_path / "images.npy", images.images)
        mapped = ImageArray(np.load(tmp_path / "images.npy", mmap_mode="r"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = backbone(seeded(Plain)).extract(mapped)
            whole = read_all(mapped, (16, 16))
        assert torch.equal(found.features, backbone(seeded(Plain)).extract(images).features)
        assert np.array_equal(whole.permute(0, 2, 3, 1), images.images)


class TestReadingAll:
    def test_an_array_of_the_right_size_is_not_copied(self):
        images = make_pictures(n=5)
        found = read_all(images, (16, 16))
        assert found.shape == (5, 3, 16, 16)
        assert found.data_ptr() == images.images.ctypes.data

    @pytest.mark.parametrize("kind", [lambda images: images, lambda images: Lookup(list(images.images))])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_what_is_read_is_what_a_network_is_given(self, kind, workers, monkeypatch):
        monkeypatch.setattr("outfield.backbone.extraction.ROWS", 3)
        images = make_pictures(n=70, size=24)
        found = read_all(kind(images), (16, 12), workers)
        assert found.dtype == torch.uint8
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert np.array_equal(found.permute(0, 2, 3, 1), pixels_of(images, (16, 12)))


@pytest.mark.gpu
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
