"""Crops and flips: torchvision's pixels for a given crop, torchvision's distribution of crops."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as vision

from outfield.classifier.recipe import Augmentation, PadAndShift, Recoloured, resize_weights


@pytest.mark.parametrize("size", [(12, 12), (32, 32), (64, 20)])
def test_a_crop_has_the_pixels_of_torchvision(size):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 3, 30, 44, generator=generator)
    crops = Augmentation().crops(40, 30, 44, generator)
    top, left, rows, columns = crops
    ours = (
        resize_weights(top, rows, 30, size[0])[:, None]
        @ images
        @ resize_weights(left, columns, 44, size[1])[:, None].transpose(2, 3)
    )
    for index in range(40):
        box = [int(value[index]) for value in crops]
        theirs = vision.resized_crop(images[index], *box, list(size), antialias=True)
        torch.testing.assert_close(ours[index], theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 60), (60, 20)])
def test_crops_are_distributed_as_in_torchvision(height, width):
    generator = torch.Generator().manual_seed(1)
    ours = torch.stack(Augmentation().crops(4000, height, width, generator)).numpy()
    with torch.random.fork_rng():
        torch.manual_seed(2)
        image = torch.zeros(3, height, width)
        drawn = [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    theirs = np.array(drawn, float).T
    for mine, reference in zip(ours, theirs, strict=True):
        assert stats.ks_2samp(mine, reference).pvalue > 1e-3
    assert (ours[0] + ours[2] <= height).all()
    assert (ours[1] + ours[3] <= width).all()


def test_flips_happen_as_often_as_asked():
    images = torch.arange(8.0).expand(2000, 1, 8, 8).contiguous()
    whole = Augmentation(scale=(1, 1), ratio=(1, 1), flip=0.3)
    result = whole(images, (8, 8), torch.Generator().manual_seed(0))
    flipped = (result[:, 0, 0, 0] > 3.5).float().mean()
    assert abs(float(flipped) - 0.3) < 0.04
    torch.testing.assert_close(result[0].flip(2) if result[0, 0, 0, 0] > 3.5 else result[0], images[0])


def test_a_crop_that_never_fits_is_the_largest_in_the_middle():
    """Of an image eight times as wide as high, whole areas in nearly square shape: none fits, as in torchvision."""
    top, left, rows, columns = Augmentation(scale=(1, 1)).crops(5, 8, 64, torch.Generator().manual_seed(0))
    assert rows.tolist() == [8] * 5
    assert columns.tolist() == [11] * 5  # 8 × 4/3, rounded
    assert top.tolist() == [0] * 5
    assert left.tolist() == [26] * 5  # (64 − 11) / 2, rounded to even


@pytest.mark.parametrize("augment", [Augmentation(), PadAndShift(), Recoloured()])
def test_the_generator_decides_and_the_images_stay(augment):
    images = 255 * torch.rand(6, 3, 9, 9)
    before = images.clone()
    results = [augment(images, (9, 9), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(images, before)
