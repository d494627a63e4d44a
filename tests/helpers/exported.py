"""Files of torch.export of small networks."""

import torch
from tests.helpers.networks import NORMALISED
from torch import nn

from outfield.backbone import Backbone


class Net(nn.Module):
    """A classifier that can be traced for any number of images; ``ends`` is what it gives."""

    def __init__(self, ends=lambda net, z: net.fc(z)):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.relu, self.shift, self.ends = nn.ReLU(inplace=True), torch.linspace(0, 1, 8)[:, None, None], ends

    def forward(self, images):
        return self.ends(self, self.relu(self.norm(self.conv(images)) + self.shift).mean((2, 3)))


def exported(network, path, rows=None, size=16, examples=None):
    examples = examples or (torch.rand(rows or 2, 3, size, size),)
    free = None if rows else tuple({0: torch.export.Dim("N", min=1, max=2**30)} for _ in examples)
    torch.export.save(torch.export.export(network, examples, dynamic_shapes=free), path)
    return path


def opened(path, **more):
    return Backbone.open(str(path), device="cpu", trust=True, **{**NORMALISED, **more})
