"""Views: the mean over changed copies of an image is the mean of what those copies give when they are extracted themselves."""

import numpy as np
import pytest
import torch
from tests.helpers.networks import Plain, backbone, close, seeded
from tests.helpers.pictures import make_pictures
from torch import nn

import outfield as of
from outfield.backbone import Views
from outfield.backbone.views import zoomed
from outfield.config import from_plain, to_plain


class Two(Plain):
    """With a block of its own, so that there is a stage; sees where in the image something is."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1))
        self.second = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1))

    def map(self, images):
        return super().map(self.second(self.first(images).relu()).relu())


def moved(images, down, right):
    """Shifted by pixels with numpy's reflection."""
    wide = np.pad(images, ((0, 0), (abs(down), abs(down)), (abs(right), abs(right)), (0, 0)), mode="reflect")
    top, left = abs(down) - down, abs(right) - right
    return wide[:, top : top + images.shape[1], left : left + images.shape[2]]


def mean_of(sets, name):
    return torch.stack([getattr(one, name) for one in sets]).mean(0)


FIELDS = ("features", "logits", "spread", "stage1", "stage2", "odin_logits")


class TestExtraction:
    @pytest.mark.parametrize(
        ("side", "pixels"),
        [
            ((32, 32), [(3, 1), (1, -3), (-3, -1), (-1, 3)]),
            ((17, 23), [(2, 1), (1, -2), (-2, -1), (-1, 2)]),
            ((11, 64), [(1, 2), (0, -6), (-1, -2), (0, 6)]),
        ],
    )
    def test_six_are_the_mean_of_copies_that_are_extracted_one_by_one(self, side, pixels):
        images = np.random.default_rng(0).integers(0, 256, (5, *side, 3), np.uint8)
        network = backbone(seeded(Two), side)
        copies = [images, images[:, :, ::-1], *(moved(images, *pixel) for pixel in pixels)]
        asked = {"stages": True, "odin": of.Odin(epsilon=0.01)}
        found = network.extract(of.ImageArray(images), views="six", batch_size=2, **asked)
        each = [network.extract(of.ImageArray(np.ascontiguousarray(copy)), **asked) for copy in copies]
        for name in FIELDS:
            expected = mean_of(each, name)
            assert close(getattr(found, name), expected, 1e-3 if name == "odin_logits" else 1e-5), name
            assert not close(getattr(found, name), getattr(each[0], name), 1e-3), name
        assert found.about["views"] == "six"
        assert torch.equal(found.head_weight, each[0].head_weight)

    @pytest.mark.parametrize("views", [None, 1, "1", "one", Views(flip=False)])
    def test_one_view_is_no_views(self, views):
        images, network = make_pictures(n=6), backbone(seeded(Two))
        plain = network.extract(images, stages=True)
        found = network.extract(images, stages=True, views=views)
        assert found.about == plain.about
        for name, value in plain.tensors().items():
            assert torch.equal(value, getattr(found, name)), name

    def test_the_network_runs_once_for_each_view(self):
        network = seeded(Two)
        backbone(network).extract(make_pictures(n=7), views="six", batch_size=3)
        assert network.rows == 42

    def test_a_network_that_writes_to_its_input(self):
        class Writing(Two):
            def forward(self, images):
                return super().forward(images.mul_(2))

        images = make_pictures(n=4)
        network = backbone(seeded(Writing))
        mirrored = of.ImageArray(np.ascontiguousarray(images.images[:, :, ::-1]))
        expected = mean_of([network.extract(images), network.extract(mirrored)], "features")
        assert close(network.extract(images, views=2).features, expected)

    def test_channels_last_stays_so(self):
        seen = []

        class Watching(Two):
            def forward(self, images):
                seen.append(images.is_contiguous(memory_format=torch.channels_last))
                return super().forward(images)

        network = seeded(Watching).to(memory_format=torch.channels_last)
        backbone(network).extract(make_pictures(n=4), views=8)
        assert seen == [True] * 8

    @pytest.mark.parametrize("views", [None, "six"])
    def test_a_batch_that_overflows_in_half_precision_is_done_again(self, views):
        """And the blocks are looked for in a better one."""

        class Overflowing(Two):
            def forward(self, images):
                return super().forward(images * (1e30 if torch.is_autocast_enabled("cpu") else 1.0))

        images, network = make_pictures(n=6), backbone(seeded(Overflowing))
        with pytest.warns(of.OutfieldWarning, match="not finite in float16"):
            found = network.extract(images, views=views, stages=True, precision="float16", batch_size=4)
        expected = network.extract(images, views=views, stages=True)
        assert close(found.stage1, expected.stage1)
        assert close(found.stage2, expected.stage2)

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        images, network = make_pictures(n=9), seeded(Two)
        here = backbone(network).extract(images, views=8, stages=True)
        there = backbone(network.cuda()).extract(images, views=8, stages=True, precision="float32")
        for name in ("features", "stage1", "logits"):
            assert close(getattr(there, name), getattr(here, name), 1e-4), name


class TestTransformations:
    @pytest.mark.parametrize("size", [(16, 16), (9, 14)])
    @pytest.mark.parametrize("factor", [32 / 30, 1.5, 2.0])
    def test_zoom_stretches_a_ramp_about_the_middle(self, size, factor):
        rows, columns = torch.meshgrid(*(torch.arange(float(side)) for side in size), indexing="ij")
        found = zoomed(torch.stack([rows, columns])[None], factor)[0]
        for channel, (side, ramp) in enumerate(zip(size, (rows, columns), strict=True)):
            middle = (side - 1) / 2
            assert torch.allclose(found[channel], middle + (ramp - middle) / factor, atol=1e-4)

    def test_a_smaller_copy_has_its_reflection_around_it(self):
        image = torch.arange(8.0).expand(1, 1, 8, 8)
        found = zoomed(image, 0.5)[0, 0, 0]
        assert torch.allclose(found[2:6], torch.tensor([0.5, 2.5, 4.5, 6.5]))
        assert torch.allclose(found[:2].flip(0), found[2:4])
        assert torch.allclose(found[6:].flip(0), found[4:6])


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "count", "name"),
        [
            ("one", 1, "one"),
            ("flip", 2, "flip"),
            ("3", 3, "3 views"),
            (np.int64(6), 6, "six"),
            (8, 8, "8 views"),
        ],
    )
    def test_by_name_and_number(self, given, count, name):
        views = Views.of(given)
        assert (len(views), str(views)) == (count, name)
        assert len(list(views.each(torch.zeros(1, 3, 4, 4)))) == count
        assert Views.of(views) is views

    def test_what_they_are(self):
        assert Views() == Views.of("flip") == Views(True, (), ())
        six = Views.of("six")
        assert six.flip
        assert six.zoom == ()
        assert len(six.shifts) == 4
        assert {abs(share) for shift in six.shifts for share in shift} == {1 / 32, 3 / 32}
        assert [sum(shares) for shares in zip(*six.shifts, strict=True)] == [0, 0]
        assert Views.of(4).shifts == six.shifts[:2]
        assert Views.of(7) == Views(shifts=six.shifts, zoom=(32 / 30,))
        assert Views.of(8) == Views(shifts=six.shifts, zoom=(32 / 30, 32 / 28))
        assert str(Views(False, ((0.1, -0.25),), (1.25,))) == "no flip; shifts 0.1,-0.25; zoom 1.25"
        assert str(Views(True, (), (1.25, 0.5))) == "flip; shifts none; zoom 1.25 0.5"
        assert str(Views(False, ((0.1, 0.0),), ())) == "no flip; shifts 0.1,0; zoom none"
        assert str(Views(shifts=six.shifts[::-1])) != "six"
        views = Views(False, ((0.5, -0.5), (0.1, 0.2)), (0.5, 2.0))
        assert from_plain(to_plain(views)) == views

    @pytest.mark.parametrize("given", [0, 9, -1, 10**9, "", "ten", "06 ", "1.5", 2.0, True, False, [2], "²"])
    def test_others_are_refused(self, given):
        with pytest.raises(of.InputError, match="it must be flip, six, a number from 1 to 8"):
            Views.of(given)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"flip": 1}, "flip is 1; it must be True or False"),
            ({"shifts": (0.1, 0.2)}, "it must be pairs of shares"),
            ({"shifts": ((0.1, 0.51),)}, "shifts is 0.51"),
            ({"shifts": ((-0.51, 0.1),)}, "shifts is -0.51"),
            ({"zoom": 1.1}, "zoom is 1.1; it must be factors"),
            ({"zoom": (0.49,)}, "zoom is 0.49"),
            ({"zoom": (2.01,)}, "zoom is 2.01"),
        ],
    )
    def test_settings_that_cannot_be(self, settings, message):
        with pytest.raises(of.InputError, match=message):
            Views(**settings)
