"""Real photographs take the way into a network that its own library gives them, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import outfield as of

PHOTOGRAPHS = load_sample_images().images
"""Two photographs that scikit-learn brings with it, 427 × 640 pixels."""
CUTS = (
    (slice(None), slice(None)),
    (slice(0, 427), slice(100, 301)),
    (slice(37, 138), slice(5, 636)),
    (slice(9, 70), slice(8, 71)),
)


@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_lite0", "mobilenetv3_small_050"]
)
def test_pixels_are_those_of_timm(name):
    network = timm.create_model(name)
    config = timm.data.resolve_model_data_config(network)
    theirs, ours = timm.data.create_transform(**config, is_training=False), of.Preprocessing.of_timm(network)
    for photograph in PHOTOGRAPHS:
        for cut in CUTS:
            pixels = np.ascontiguousarray(photograph[cut])
            assert torch.equal(ours.tensor(pixels), theirs(Image.fromarray(pixels))), (name, pixels.shape)
