"""Pixels are the network's own: those of timm to the bit, and of torchvision and transformers as their own code makes them."""

import importlib
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_images
from tests.helpers.networks import NORMALISED, Lookup, Plain
from timm.data import create_transform, resolve_model_data_config
from torchvision import transforms
from torchvision.transforms import v2

import outfield as of
from outfield.images import part_of

SIZES = ((1, 1), (3, 500), (517, 4), (31, 33), (224, 224), (225, 224), (256, 341), (480, 333), (375, 500), (1203, 801),
         (97, 1001))  # fmt: skip
HALF = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}


def photograph(height, width, seed=0):
    """Smooth noise of several scales, with edges: what resizing acts on."""
    rng = np.random.default_rng([seed, height, width])
    image = np.zeros((height, width, 3))
    for scale in (2, 7, 40):
        small = rng.normal(size=(max(1, height // scale), max(1, width // scale), 3))
        rows = np.linspace(0, len(small) - 1, height).round().astype(int)
        columns = np.linspace(0, small.shape[1] - 1, width).round().astype(int)
        image += small[rows][:, columns]
    image[: height // 3, : width // 2] += 2
    return (128 + 50 * image).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def photographs():
    return [photograph(*size) for size in SIZES]


@pytest.fixture(scope="module")
def real_photographs():
    """Of 427 × 640 pixels, and parts of them."""
    cuts = np.s_[:, :], np.s_[0:427, 100:301], np.s_[37:138, 5:636], np.s_[9:70, 8:71]
    return [np.ascontiguousarray(image[cut]) for image in load_sample_images().images for cut in cuts]


def timm_tensor(config, image):
    return create_transform(**config, is_training=False)(Image.fromarray(image))


class TestTimm:
    # by turns: bicubic and a crop of 0.875; 0.95; bilinear; a config of 160 × 160; squash
    @pytest.mark.parametrize(
        "name", ["resnet18", "resnet50", "test_vit", "convnext_atto", "mobilenetv3_small_050", "efficientnet_lite0"]
    )
    def test_tensors_of_its_networks_are_equal_to_the_bit(self, name, photographs, real_photographs):
        network = timm.create_model(name, pretrained=False)
        config = resolve_model_data_config(network)
        way = of.Preprocessing.of_timm(network)
        for image in photographs + real_photographs:
            assert torch.equal(way.tensor(image), timm_tensor(config, image)), image.shape
        assert way == of.Preprocessing.of_timm(config) == of.Preprocessing.of(network) == of.Preprocessing.of(config)

    @pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
    @pytest.mark.parametrize("mode", ["center", "squash", "border"])
    def test_every_mode_and_interpolation(self, mode, interpolation, photographs):
        config = {"input_size": (3, 96, 96), "interpolation": interpolation, "crop_pct": 0.9, "crop_mode": mode, **HALF}
        for image in photographs[1:8]:
            assert torch.equal(of.Preprocessing.of_timm(config).tensor(image), timm_tensor(config, image)), image.shape

    @pytest.mark.parametrize("mode", ["center", "squash", "border"])
    @pytest.mark.parametrize("share", [1.0, 0.875, 0.5])
    def test_networks_that_are_not_square(self, mode, share, photographs):
        config = {"input_size": (3, 64, 129), "interpolation": "bicubic", "crop_pct": share, "crop_mode": mode, **HALF}
        for image in photographs[3:]:
            assert torch.equal(of.Preprocessing.of_timm(config).tensor(image), timm_tensor(config, image)), image.shape

    def test_every_config_is_understood(self):
        for name in timm.list_models():
            known = timm.get_pretrained_cfg(name)
            if known is not None:
                config = timm.data.resolve_data_config(pretrained_cfg=known.to_dict())
                assert of.Preprocessing.of_timm(config).size == tuple(config["input_size"][1:]), name

    def test_networks_of_grey_images(self, photographs):
        network = timm.create_model("resnet18", in_chans=1)
        way = of.Preprocessing.of_timm(network)
        assert (way.channels, way.mean) == (1, ((0.485 + 0.456 + 0.406) / 3,))
        settings = {"interpolation": "bilinear", "crop_pct": way.size[0] / way.resize, "mean": way.mean, "std": way.std}
        steps, way = create_transform((1, 224, 224), **settings), replace(way, interpolation="bilinear")
        for image in photographs:
            assert torch.equal(way.tensor(image), steps(Image.fromarray(image).convert("L")))

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"mean": (0, 0, 0)}, "input_size"),
            (7, "of_timm takes"),
            ({"input_size": (3, 9, 9), "crop_mode": "corner"}, "crop_mode is 'corner'"),
            ({"input_size": (3, 9, 9), "interpolation": "random"}, "interpolation is 'random'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given, words):
        with pytest.raises(of.InputError, match=words):
            of.Preprocessing.of_timm(given)


CROPPED, TENSOR = [transforms.Resize(40), transforms.CenterCrop(33)], transforms.ToTensor()
NORMALISE = transforms.Normalize(**HALF)


class TestTorchvision:
    @pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "convnext_tiny", "efficientnet_b0", "swin_v2_t"])
    def test_presets_of_weights_are_equal_to_the_bit(self, name, photographs):
        preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        way = of.Preprocessing.of(preset)
        for image in photographs:
            assert torch.equal(way.tensor(image), preset(Image.fromarray(image))), image.shape

    @pytest.mark.parametrize(
        "steps",
        [
            [*CROPPED, TENSOR],
            [transforms.Resize((40, 50), transforms.InterpolationMode.BICUBIC), TENSOR, NORMALISE],
            [transforms.CenterCrop((50, 20)), TENSOR, NORMALISE],
            [transforms.Grayscale(), *CROPPED, TENSOR, transforms.Normalize((0.4,), (0.3,))],
            [transforms.Compose([transforms.Resize([40])]), transforms.CenterCrop([30]), transforms.PILToTensor(),
             transforms.ConvertImageDtype(torch.float32)],
            [v2.Resize(40), v2.CenterCrop(33), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(**HALF)],
            create_transform((3, 40, 60), crop_pct=0.9).transforms,
            create_transform((3, 40, 40), crop_pct=1.0, crop_mode="border").transforms,
        ],
    )  # fmt: skip
    def test_transforms_of_ones_own(self, steps, photographs):
        transform = transforms.Compose(steps)
        way = of.Preprocessing.of_torchvision(transform)
        for image in photographs[3:9]:
            # Of its second version torchvision scales bytes to floats in another order of operations.
            assert torch.allclose(way.tensor(image), transform(Image.fromarray(image)), rtol=0, atol=1e-6), image.shape

    @pytest.mark.parametrize(
        "steps",
        [
            [transforms.RandomHorizontalFlip(), transforms.ToTensor()],
            [transforms.Resize(40), transforms.Resize(30), transforms.CenterCrop(20)],
            [transforms.CenterCrop(20), transforms.Resize(40)],
            [transforms.Resize(40, max_size=60), transforms.CenterCrop(20)],
            [*CROPPED, transforms.Grayscale()],
            [*CROPPED, v2.ToDtype(torch.float32, scale=False)],
            [transforms.Lambda(lambda image: image)],
        ],
    )
    def test_other_steps_are_refused(self, steps):
        with pytest.raises(of.InputError, match="cannot say the step"):
            of.Preprocessing.of_torchvision(transforms.Compose(steps))

    def test_what_gives_images_of_different_sizes_or_is_no_transform_is_refused(self):
        with pytest.raises(of.InputError, match="different sizes"):
            of.Preprocessing.of_torchvision(transforms.Resize(40))
        with pytest.raises(of.InputError, match="cannot say the step int"):
            of.Preprocessing.of(7)


def processor(kind, **settings):
    module = kind.lower().replace("netv", "net_v")
    home = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    return getattr(home, f"{kind}ImageProcessorPil")(**settings)


def processors():
    kinds = ("ViT", "DeiT", "Beit", "ConvNext", "CLIP", "Levit", "MobileNetV1", "MobileNetV2", "Pvt", "Siglip")
    return [
        *map(processor, kinds),
        processor("ViT", size={"height": 40, "width": 60}, resample=3, image_mean=HALF["mean"], image_std=HALF["std"]),
        processor("ViT", rescale_factor=1 / 127.5, do_normalize=False),
        processor("ViT", do_rescale=False, image_mean=(100, 110, 120), image_std=(50, 60, 70)),
        processor("ConvNext", size={"shortest_edge": 224}),
        processor("ConvNext", size={"shortest_edge": 100}, crop_pct=0.95, resample=0),
        processor("CLIP", size={"shortest_edge": 50}, crop_size={"height": 47, "width": 48}, resample=1),
        processor("Bit", do_resize=False, crop_size={"height": 20, "width": 21}),
    ]


VIT = {"image_processor_type": "ViTImageProcessor"}


class TestProcessors:
    def test_tensors_are_those_of_transformers(self, photographs):
        for one in processors():
            given = json.loads(json.dumps(one.to_dict()))
            assert given["image_processor_type"].endswith("ImageProcessor")
            way = of.Preprocessing.of(given)
            for image in photographs[3:]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = one(images=Image.fromarray(image), return_tensors="pt")["pixel_values"][0]
                atol = 2e-6 * max(1.0, float(wanted.abs().max()))
                torch.testing.assert_close(way.tensor(image), wanted.float(), rtol=0, atol=atol)

    def test_the_type_alone_tells_what_transformers_does_by_default(self):
        for one in processors():
            alone = {"image_processor_type": one.to_dict()["image_processor_type"]}
            fresh = json.loads(json.dumps(type(one)().to_dict()))
            assert of.Preprocessing.of_processor(alone) == of.Preprocessing.of_processor(fresh), alone

    def test_files_of_early_versions(self):
        vit = {"feature_extractor_type": "ViTFeatureExtractor", "size": 96}
        assert of.Preprocessing.of_processor(vit).resize == (96, 96)
        clip = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 96, "crop_size": 90}
        clip = of.Preprocessing.of_processor(clip)
        assert (clip.resize, clip.crop, clip.interpolation) == (96, (90, 90), "bicubic")

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ([], "preprocessor_config.json"),
            ({}, "has no size"),
            ({"size": 9}, "has no image_mean"),
            ({"image_processor_type": "DonutImageProcessor"}, "Donut is unknown"),
            ({**VIT, "do_pad": True}, "do_pad = True"),
            ({**VIT, "resample": 6}, "resample is 6"),
            ({**VIT, "size": {"longest_edge": 5}}, "longest_edge"),
            ({**VIT, "size": {"shortest_edge": 5, "longest_edge": 9}}, "shortest_edge"),
            ({**VIT, "size": {"shortest_edge": 5}}, "different sizes"),
            ({**VIT, "image_mean": "grey"}, "mean is 'grey'"),
            ({**VIT, "image_std": [0, 0, 0]}, "std is 0"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given, words):
        with pytest.raises(of.InputError, match=words):
            of.Preprocessing.of_processor(given)


class TestPlainData:
    @pytest.mark.parametrize(
        "way",
        [
            of.Preprocessing(256, (224, 224), "bicubic"),
            of.Preprocessing((9, 8), interpolation="tensor", mean=(0.1,), std=(1 / 3,), channels=1),
            of.Preprocessing((9, 8), (7, 7), "box", fit="contain", fill=(1, 2, 3), place="down", **HALF),
            of.Preprocessing(None, (7, 7)),
        ],
    )
    def test_json_there_and_back(self, way):
        text = json.dumps(way.to_json())
        assert of.Preprocessing.of_json(json.loads(text)) == way == of.Preprocessing.of(json.loads(text))

    def test_one_line_for_people(self):
        way = of.Preprocessing(256, (224, 224), "bicubic")
        assert str(of.Preprocessing((8, 8), interpolation="tensor")).startswith("resize 8 × 8 bilinear by PyTorch, m")
        assert str(way) == "resize 256 bicubic, crop 224 × 224, mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)"
        grey = of.Preprocessing((9, 8), fit="cover", crop=(8, 8), mean=(0.5,), std=(0.25,), channels=1)
        assert str(grey) == "grey, resize 9 × 8 (cover) bilinear, crop 8 × 8, mean (0.5), std (0.25)"

    @pytest.mark.parametrize("given", [{"resize": None, "mode": 1}, {}, 7])
    def test_other_keys_are_refused(self, given):
        with pytest.raises(of.InputError, match="a preprocessing has resize, crop"):
            of.Preprocessing.of_json(given)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"resize": 0}, "resize is 0"),
            ({"resize": 2**14 + 1}, "resize is 16385"),
            ({"resize": (1, 2, 3)}, "resize is"),
            ({"crop": 8}, "crop is 8"),
            ({"crop": None}, "different sizes"),
            ({"resize": (9, 9), "crop": None, "fit": "cover"}, "different sizes"),
            ({"interpolation": "cubic"}, "interpolation is 'cubic'"),
            ({"interpolation": "tensor"}, "takes a height and a width"),
            ({"interpolation": "tensor", "resize": (9, 9), "crop": None, "fit": "cover"}, "takes a height"),
            ({"channels": 2}, "channels is 2"),
            ({"channels": 1}, "mean is"),
            ({"std": (0.5, 0.5, 0)}, "std is 0"),
            ({"fit": "stretch"}, "fit is 'stretch'"),
            ({"fit": "cover"}, "fit is 'cover', which needs"),
            ({"place": "up"}, "place is 'up'"),
            ({"fill": (0, 0, 256)}, "fill is"),
        ],
    )
    def test_settings_that_cannot_be(self, settings, words):
        with pytest.raises(of.InputError, match=words):
            of.Preprocessing(**{"resize": 9, "crop": (8, 8), **settings})


class TestPixels:
    def test_grey_images_in_any_shape(self):
        grey = photograph(40, 30)[:, :, 0]
        for channels in (1, 3):
            half = (0.5,) * channels
            way = of.Preprocessing((20, 20), mean=half, std=half, channels=channels)
            first = way.pixels(grey)
            assert first.shape == (20, 20, channels)
            assert np.array_equal(first, way.pixels(grey[:, :, None]))
            assert np.array_equal(first, way.pixels(np.repeat(grey[:, :, None], 3, axis=2)))

    def test_colour_becomes_grey_as_pillow_does_it(self):
        colours = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
        found = of.Preprocessing((300, 300), mean=(0.5,), std=(0.5,), channels=1).pixels(colours)[:, :, 0]
        assert np.array_equal(found, np.asarray(Image.fromarray(colours).convert("L")))

    def test_strides_and_locked_arrays_do_not_matter_and_the_image_is_left_as_it_was(self):
        image = photograph(50, 60)
        before = image.copy()
        of.Preprocessing(None, (50, 60)).tensor(image)
        assert np.array_equal(image, before)
        way = of.Preprocessing(30, (30, 30))
        turned, locked = image[::-1, ::-1], image.copy()
        locked.flags.writeable = False
        assert np.array_equal(way.pixels(turned), way.pixels(turned.copy()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.array_equal(way.pixels(locked), way.pixels(image))

    def test_what_is_no_image_is_refused(self):
        for image in (np.zeros((4, 4, 4), np.uint8), np.zeros((4, 0, 3), np.uint8), np.zeros((4, 4, 3)), [[1, 2]]):
            with pytest.raises(of.InputError, match="the image is"):
                of.Preprocessing(8, (8, 8)).pixels(image)

    def test_a_thin_strip_does_not_become_a_hundred_million_pixels_or_none(self):
        with pytest.raises(of.InputError, match="resized to 0 × 8"):
            of.Preprocessing((8, 8), (8, 8), fit="contain").pixels(np.zeros((1, 1000, 3), np.uint8))
        way = of.Preprocessing(224, (224, 224))
        assert way.pixels(np.zeros((1, 334, 3), np.uint8)).shape == (224, 224, 3)  # 224 × 74,816 on its way
        with pytest.raises(of.InputError, match="resized to 224 × 75040; from 1 to 16,777,216"):
            way.pixels(np.zeros((1, 335, 3), np.uint8))
        cut = of.Preprocessing(None, (2, 2))
        assert cut.pixels(np.zeros((4100, 4100, 3), np.uint8)).shape == (2, 2, 3)  # as large as it is given

    def test_which_images_stay_as_they_are(self):
        grey = {"mean": (0.5,), "std": (0.5,), "channels": 1}
        for way, size, kept in (
            (of.Preprocessing((9, 8)), (9, 8), True),
            (of.Preprocessing(8, (8, 8)), (8, 8), True),
            (of.Preprocessing(8, (8, 8)), (9, 8), False),
            (of.Preprocessing((9, 8), **grey), (9, 8), False),
        ):
            assert way.keeps(size) is kept
            assert not kept or np.array_equal(way.pixels(photograph(*size)), photograph(*size))


class TestBackbone:
    def test_features_are_those_of_timm_on_its_own_transform(self, photographs, tmp_path):
        from safetensors.torch import save_file

        network = timm.create_model("test_vit", num_classes=4).eval()
        save_file(network.state_dict(), tmp_path / "w.safetensors")
        backbone = of.Backbone.open(f"timm:test_vit@{tmp_path / 'w.safetensors'}", device="cpu")
        steps = create_transform(**resolve_model_data_config(network), is_training=False)
        with torch.no_grad():
            wanted = network(torch.stack([steps(Image.fromarray(image)) for image in photographs]))
        for workers in (0, 2):
            found = backbone.extract(Lookup(photographs), workers=workers)
            assert torch.allclose(found.logits, wanted, atol=1e-5)
        assert backbone.preprocessing == of.Preprocessing.of_timm(network)
        assert np.array_equal(backbone.pixels(photographs[7]), backbone.preprocessing.pixels(photographs[7]))

    @pytest.mark.parametrize(
        "way",
        [
            {"size": 16, "mean": [0.4], "std": [0.3]},
            {"preprocessing": transforms.Compose([
                transforms.Grayscale(), transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor(),
                transforms.Normalize((0.4,), (0.3,)),
            ])},
        ],
    )  # fmt: skip
    def test_networks_of_one_channel(self, way):
        layers = torch.nn.Conv2d(1, 5, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(245, 3)
        network = torch.nn.Sequential(*layers).eval()
        backbone = of.Backbone(network, **way)
        assert backbone.preprocessing.channels == 1
        images = [photograph(30, 40, seed) for seed in range(4)]
        with torch.no_grad():
            wanted = network(torch.stack([backbone.preprocessing.tensor(image) for image in images]))
        for source in (Lookup(images), of.ImageArray(np.stack(images))):
            assert torch.allclose(backbone.extract(source).logits, wanted, atol=1e-5)

    def test_the_fingerprint_has_it(self):
        network = Plain()
        ways = [
            {"size": 16, **NORMALISED},
            {"preprocessing": of.Preprocessing((16, 16), **NORMALISED)},
            {"preprocessing": of.Preprocessing((16, 16), interpolation="bicubic", **NORMALISED)},
            {"preprocessing": of.Preprocessing(16, (16, 16), **NORMALISED)},
        ]
        assert len({of.Backbone(network, **way).fingerprint() for way in ways}) == 4
        tensor = of.Preprocessing((16, 16), interpolation="tensor", **NORMALISED)
        assert of.Backbone(network, preprocessing=tensor).fingerprint() == of.Backbone(network, **ways[0]).fingerprint()

    def test_a_named_network_with_another_size_or_normalisation(self):
        state = timm.create_model("test_vit", num_classes=4).state_dict()
        own = of.Backbone.named("test_vit", weights=state, device="cpu").preprocessing
        assert (own.resize, own.crop, own.interpolation) == (168, (160, 160), "bicubic")
        sized = of.Backbone.named("test_vit", weights=state, size=160, device="cpu").preprocessing
        assert sized == of.Preprocessing((160, 160), interpolation="tensor", mean=own.mean, std=own.std)
        other = of.Backbone.named("test_vit", weights=state, mean=(0.1, 0.2, 0.3), device="cpu").preprocessing
        assert other == replace(own, mean=(0.1, 0.2, 0.3))
        sides = (240, 100)
        for parts, way in (
            ({"crop": 150}, replace(own, crop=(150, 150))),
            ({"size": 240, "crop": (200, 100)}, replace(own, resize=240, crop=(200, 100))),
            ({"size": sides, "interpolation": "box"}, replace(own, resize=sides, crop=None, interpolation="box")),
            ({"interpolation": "box"}, replace(own, interpolation="box")),
        ):
            expects = of.Backbone.named("test_vit", weights=state, device="cpu", **parts).preprocessing
            assert expects == way
        given = of.Preprocessing(170, (160, 160))
        assert of.Backbone.named("test_vit", weights=state, preprocessing=given, device="cpu").preprocessing == given
        with pytest.raises(of.InputError, match="either preprocessing or size"):
            of.Backbone.named("test_vit", weights=state, preprocessing=given, size=160, device="cpu")


class TestWhatASetSays:
    def test_the_network_and_the_files_of_its_images(self, tmp_path):
        for name in ("b/2.png", "a/1.png", "a/0.png"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.fromarray(photograph(20, 30, len(name))).save(tmp_path / name)
        images = of.open_images(tmp_path)
        backbone = of.Backbone(Plain(), size=16, name="mine", **NORMALISED)
        found = backbone.extract(images, labels=False)
        assert found.names == ("a/0.png", "a/1.png", "b/2.png")
        assert found.about["network"] == f"mine {backbone.fingerprint()[:16]}"
        assert part_of(images, np.array([2, 0])).names == ("b/2.png", "a/0.png")
        assert of.stand_ins(images, ["turned180"], count=2)["turned180"].names == ("a/0.png", "a/1.png")
        assert backbone.extract(of.ImageArray(np.zeros((2, 8, 8, 3), np.uint8))).names is None
