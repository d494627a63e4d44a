"""A small benchmark: sets, detectors that fit at once, a backbone that counts, and a run of all of them."""

from collections import Counter

import numpy as np
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.benchmark import Protocol, benchmark_features, run_benchmark
from outfield.energy.training_step import InTurn
from outfield.images import ImageArray

PROTOCOL = Protocol("shapes", near=("cousins",), mid=("aunts", "uncles"), far=("strangers",), neighbours=5)
SETS = ("train", "test", *PROTOCOL.ood)
NAMES = ("MSP", "ODIN", "KNN", "SSD", "EnergyCorrected")
FITS = len(NAMES) + 1  # two seeds of the learned one


def detectors(*names):
    return {name: quick(name) for name in names or NAMES}


def feature_sets(seed=0):
    shifts = {"train": 0.0, "test": 0.0, "cousins": 0.1, "aunts": 0.3, "uncles": 0.4, "strangers": 1.0}
    return {name: make_set(60 if n else 90, seed=10 * seed + n, shift=s) for n, (name, s) in enumerate(shifts.items())}


def image_sets():
    """Tiny images whose brightness tells their class; OOD sets have labels that the backbone knows nothing of."""
    rng = np.random.default_rng(0)
    images = {}
    for n, name in enumerate(SETS):
        labels = np.arange(60 - n) % 3
        bright = 40 + 60 * labels[:, None, None, None] + rng.integers(0, 40, (len(labels), 4, 4, 3)) + 8 * n * (n > 1)
        images[name] = ImageArray(bright.astype(np.uint8), labels if n < 2 else labels + 7, name=f"{name} images")
    return images


class FakeBackbone:
    """Features are the pixels' means by row; counts how often each set is extracted, and dies when told to."""

    def __init__(self, name="net", scale=1.0):
        self.name, self.scale, self.calls, self.die_at, self.block = name, scale, [], None, "layer2"

    def fingerprint(self):
        return f"weights {self.scale}"

    def extract(self, images, *, odin=None, labels=True, stages=False, views=None):
        if self.die_at == len(self.calls):
            raise KeyboardInterrupt
        self.calls.append(images.name.split()[0])
        pixels = np.stack([images[i] for i in range(len(images))]).astype(np.float32) / 255
        pixels *= 1 if views is None else 1 + len(views) / 10
        features = np.concatenate([pixels.mean((2, 3)), pixels.std((1, 3))], 1) * self.scale
        logits = -np.abs(pixels.mean((1, 2, 3))[:, None] * 255 - np.array([60, 120, 180], np.float32)) / 20
        return of.FeatureSet(
            features,
            logits=logits,
            labels=images.labels if labels else None,
            odin_logits=None if odin is None else logits * 1.01,
            head_weight=np.ones((3, features.shape[1])),
            stage2=features[:, ::2] ** 2 if stages else None,
            about=({"stage2": self.block} if stages else {}) | ({} if views is None else {"views": str(views)}),
        )


def counting(monkeypatch):
    """How often detectors fit, score and step."""
    counts = Counter()

    def watch(cls, name, shown=None):
        original = getattr(cls, name)

        def watched(self, *arguments, **more):
            counts[shown or name.strip("_")] += 1
            return original(self, *arguments, **more)

        monkeypatch.setattr(cls, name, watched)

    for cls in (of.MSP, of.ODIN, of.KNN, of.SSD):
        watch(cls, "fit")
    watch(of.EnergyCorrected, "_fit_together")
    watch(InTurn, "run", "step")
    return counts


def run_features():
    """Two backbones' features."""
    sets = {"a": feature_sets(0), "b": feature_sets(1)}
    return benchmark_features(PROTOCOL, sets, detectors=detectors(), seeds=2, layout=False)


def run_rows(sets=None, **more):
    """One backbone's features, without a layout."""
    return benchmark_features(PROTOCOL, {"a": sets or feature_sets()}, **{"layout": False, **more})


def run_images(out, backbone=None, data=None, **more):
    settings = {"detectors": detectors(), "seeds": 2, "device": "cpu", "layout": False, **more}
    return run_benchmark(PROTOCOL, data or image_sets(), [backbone or FakeBackbone()], out, **settings)
