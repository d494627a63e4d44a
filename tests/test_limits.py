"""The limits that messages and pages speak of: a table of its own, so that none moves unseen."""

from __future__ import annotations

import pytest
import torch

from outfield.benchmark import claims, view
from outfield.detectors import class_gaussians, fused, held_out, relation, residual, sharpening, temperature, weibull
from outfield.energy import checkpoints, network, run, samplers, settings
from outfield.energy.priors import parameters
from outfield.features import about, column_names, columns, fields, head
from outfield.files import checks, download, headers, npy, npz, scratch, tensors, zipped
from outfield.scores import beta, sorting, vectors

LIMITS = {
    settings: {"MOST": 10**9, "LARGEST": 1e30},
    samplers: {"MOST_STEPS": 10**9, "LARGEST": 1e30},
    run: {"CHECK_EVERY": 25},
    network: {"MOST_WEIGHTS": 2**32, "MOST_WIDTH": 2**20, "MOST_LAYERS": 10_000},
    checkpoints: {"VERSION": 2},
    parameters: {"TOLERANCE": 0.01},
    beta: {"TINY": 1e-300, "ENOUGH": 1e-15},
    sorting: {"MAX_BINS": 65_536},
    vectors: {"EXACT": 2**53},
    sharpening: {"MOST_RATIO": 500.0},
    temperature: {"RANGE": 50.0},
    weibull: {"SHAPES": (0.01, 10_000.0), "SMALLEST": 1e-12},
    residual: {"SMALLEST_SHARE": 1e-9},
    relation: {"MOST_OFF": 0.02},
    class_gaussians: {"HARDLY": 1e-6, "SMALLEST": 1e-12},
    held_out: {"MOST_SHARED": 0.1},
    fused: {"LEAST": 20, "RULES": ("fisher", "z")},
    tensors: {"LARGEST_HEADER": 2**25, "MOST_SIDES": 64},
    zipped: {"LONGEST_TABLE": 2**20, "BEST_RATE": 1100},
    headers: {"FORMAT": 2, "KNOWN_FORMATS": (1, 2)},
    scratch: {"A_DAY": 86_400.0},
    npy: {"LONGEST": 10_000, "MOST_SIDES": 32, "NUMBERS": "fiubc"},
    npz: {"LONGEST_TEXT": 2**20, "HEADER": "outfield_header", "DIGEST": "outfield_sha256"},
    download: {"WHOLE": 64, "LEAST": 8, "SIZE_AT_MOST": 2**35, "SECONDS": 60},
    checks: {"EXACT": {torch.float32: 2**24, torch.float64: 2**53}, "REPEATED": 2**28},
    columns: {"EXACT": 2**53},
    column_names: {"SHOWN": 60},
    fields: {"MOST_STAGES": 8},
    about: {"MOST": 64, "LONGEST": 1000},
    head: {"MOST_UNEXPLAINED": 0.01},
    claims: {
        "MARGIN": {"fpr95": 0.01, "auroc": 0.005},
        "FAILURE": 0.1,
        "HOLDS": "holds",
        "PARTLY": "partly",
        "FAILS": "does not hold",
        "UNTESTED": "not tested",
    },
    view: {"POINTS": 2000, "FIRST": 600, "WIDTH": 50},
}


@pytest.mark.parametrize("module", LIMITS, ids=lambda module: module.__name__)
def test_limits(module):
    assert {name: getattr(module, name) for name in LIMITS[module]} == LIMITS[module]
