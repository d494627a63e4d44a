"""Small networks, and what a test of a backbone expects of them."""

import torch
from torch import nn
from torch.nn import functional

import outfield as of
from outfield.backbone import Backbone
from outfield.images import ImageSource

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


def close(a, b, tolerance=1e-5):
    a, b = a.detach().double(), b.detach().double()
    return a.shape == b.shape and float((a - b).abs().max()) <= tolerance * float(b.abs().max())
