"""Files with bytes changed, added and taken away at random: an error of ours, or a right result."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files import find_npy, read_npz

TRIES = 300
DATA = make_set(n=12)
ARRAYS = {name: value.numpy() for name, value in DATA.tensors().items()}


def threshold():
    return of.Threshold.fit(torch.arange(40.0))


WRITE = {
    "features.npy": lambda path: np.save(path, ARRAYS["features"]),
    "stored.npz": lambda path: np.savez(path, **ARRAYS),
    "packed.npz": lambda path: np.savez_compressed(path, **ARRAYS),
    "images.npz": lambda path: np.savez(path, images=np.zeros((3, 4, 4, 3), np.uint8), classes=np.array(["a", "b"])),
    "foreign.safetensors": lambda path: save_file(DATA.tensors(), path),
    "ours.npz": DATA.save,
    "ours.safetensors": DATA.save,
    "detector.safetensors": lambda path: quick("SSD").fit(make_set()).save(path),
    "threshold.safetensors": lambda path: threshold().save(path),
}
CHECKED = [name for name in WRITE if name.startswith("ours")]


def changed(content, seed):
    """The content with one to three changes, mostly near its ends, where headers are."""
    content = bytearray(content)
    for _ in range(seed.choice([1, 1, 2, 3])):
        size = len(content)
        place = seed.choice(
            [seed.randrange(size), seed.randrange(min(400, size)), size - 1 - seed.randrange(min(400, size))]
        )
        other = seed.randrange(size)
        how = seed.randrange(7)
        if how == 0:
            content[place] ^= 1 << seed.randrange(8)
        elif how == 1:
            content[place] = seed.choice(b"\x00\xff\x7f0919-{}[](),:'\"\\ LeE.\n")
        elif how == 2:
            content[place:place] = seed.randbytes(seed.choice([1, 2, 8, 100]))
        elif how == 3:
            del content[place : place + seed.choice([1, 2, 8, 100])]
        elif how == 4:
            content[place : place + 8] = content[other : other + 8]
        elif how == 5:
            content[place:place] = content[other : other + seed.choice([1, 10, 300])]
        else:
            del content[max(place, 1) :]
        if not content:
            break
    return bytes(content)


def uses(path):
    if path.name == "features.npy":
        return [lambda: find_npy(path).read(), lambda: of.open_features(path).in_memory()]
    if path.name == "images.npz":
        return [lambda: read_npz(path), lambda: of.open_images(path)]
    if path.name == "detector.safetensors":
        return [lambda: of.load(path).score(DATA)]
    if path.name == "threshold.safetensors":
        return [lambda: of.Threshold.load(path)]
    return [
        lambda: of.FeatureSet.load(path),
        lambda: of.open_features(path).in_memory(),
        lambda: of.FeatureSet(
            features=torch.cat([p["features"] for p in of.open_features(path).batches(5, ["features"])])
        ),
    ]


@pytest.mark.parametrize("name", WRITE)
def test_changed_files_are_refused_or_read_right(tmp_path, name):
    path = tmp_path / name
    WRITE[name](path)
    content = path.read_bytes()
    seed = random.Random(zlib.crc32(name.encode()))
    survived = 0
    for number in range(TRIES):
        damaged = changed(content, seed)
        path.write_bytes(damaged)
        for use in uses(path):
            try:
                found = use()
            except of.OutfieldError:
                continue
            except Exception as error:
                raise AssertionError(f"change {number}: {type(error).__name__}: {error}") from error
            survived += 1
            if name in CHECKED:
                for field, value in found.tensors().items():
                    assert torch.equal(value, DATA.tensors()[field]), f"change {number}: other {field}"
            elif name == "threshold.safetensors":
                assert found.value == threshold().value
    assert survived < TRIES * len(uses(path)) / 2
