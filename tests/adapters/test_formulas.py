"""Every detector's score in ONNX Runtime and in torch.export's program against its own, on fresh rows and far out in the tail."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.helpers.samples import make_set, quick
from torch import nn

import outfield as of
from outfield.adapters.graph import Decision, Traced, exportable, open_rows, scorer, surprise
from outfield.adapters.onnx import STEPS, converted
from outfield.detectors import Calibration, Summed

NAMES = tuple(name for name in of.DETECTORS if name not in ("ODIN", "Auto"))  # Auto gives a sum, as Fused does
FIELDS = ("features", "logits", "spread")
TRAIN = make_set(120)


class Scores(nn.Module):
    """All scores at once: an export takes seconds, however many there are."""

    def __init__(self, detectors):
        super().__init__()
        self.scorers = [scorer(detector) for detector in detectors]

    def forward(self, *fields):
        return tuple(score(dict(zip(FIELDS, fields, strict=True))) for score in self.scorers)


def confident():
    rows = make_set(20, seed=10).tensors()
    return of.FeatureSet(**{**rows, "logits": 30 * rows["logits"]})


def zeros():
    rows = make_set(6, seed=11).tensors()
    return of.FeatureSet(**{**rows, "features": 0 * rows["features"]})


def sets_of_rows():
    return {
        "fresh": make_set(64, seed=6), "one": make_set(1, seed=4), "far": make_set(50, seed=7, shift=1.0),
        "very far": make_set(20, seed=8, shift=30.0), "training rows": TRAIN, "confident": confident(),
        "zeros": zeros(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return {name: quick(name).fit(TRAIN) for name in NAMES}


@pytest.fixture(scope="module")
def exported(fitted):
    example = tuple(make_set(5, seed=5).tensors()[name] for name in FIELDS)
    model = Scores(fitted.values())
    with torch.no_grad():
        expected = model(*example)
        program = torch.export.export(model, example, dynamic_shapes=(open_rows(example),), strict=False)
    return Traced(program, FIELDS, NAMES, example, expected)


@pytest.fixture(scope="module")
def session(exported):
    model = converted(exported)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def close(found, detector, rows, what):
    wanted = detector.score(rows).double().numpy()
    assert found.dtype == np.float32
    allowed = 1e-4 * np.abs(wanted) + 1e-6 * np.abs(wanted).max()
    assert (np.abs(found - wanted) <= allowed).all(), (what, np.abs(found - wanted).max())


@pytest.mark.parametrize("what", sets_of_rows())
def test_onnx_runtime_scores_as_pytorch_does(fitted, session, what):
    rows = sets_of_rows()[what]
    found = session.run(None, {name: rows.tensors()[name].numpy() for name in FIELDS})
    assert len(found) >= 30
    for (name, detector), scores in zip(fitted.items(), found, strict=True):
        # A sum jumps at the smallest score that calibrated a member, and of the training rows one has exactly that.
        if what != "training rows" or not isinstance(detector, Summed):
            close(scores, detector, rows, (what, name))


@pytest.mark.parametrize("what", ["fresh", "one", "far"])
def test_the_program_of_torch_export_scores_as_the_detector_does(fitted, exported, what):
    rows = sets_of_rows()[what]
    found = exported.program.module()(*(rows.tensors()[name] for name in FIELDS))
    for (name, detector), scores in zip(fitted.items(), found, strict=True):
        close(scores.numpy(), detector, rows, (what, name))


@pytest.mark.parametrize("detector", [
    of.Fused((of.SSD(), of.KNN(k=3, field="spread")), rule="z", weights=[1, 0.3]),
    quick("Auto"),
    of.KNN(k=2, field="spread"),
], ids=["sum of standard deviations", "what Auto chooses", "another field"])  # fmt: skip
def test_scores_of_settings_of_their_own(detector):
    rows = make_set(30, seed=4, shift=0.5)
    detector = detector.fit(TRAIN, **({"held_out": make_set(80, seed=3)} if isinstance(detector, of.Fused) else {}))
    found = scorer(detector)(rows.tensors())
    np.testing.assert_allclose(found.numpy(), detector.score(rows).numpy(), rtol=1e-5, atol=1e-6)


def test_odin_is_refused_with_those_that_can_be_exported():
    for detector in (of.ODIN().fit(TRAIN), of.Fused((of.SSD(), of.ODIN())).fit(TRAIN, held_out=make_set(60, seed=9))):
        with pytest.raises(of.InputError, match=r"ODIN cannot be exported: .*gradient.*SSD.*Fused"):
            scorer(detector)
    assert set(exportable()) == set(NAMES) - {"Fused", "HEAT", "Mahalanobis"}


def test_the_page_lists_them_all():
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    listed = re.findall(r"^\| ([A-Z][\w, ]+) \|", page.partition("## What can be exported")[2], re.M)
    assert {name for line in listed for name in line.split(", ")} == {*NAMES, "Auto"}


@pytest.mark.parametrize("held", [[0.0, 1.0, 1.0, 3.0], [2.0, 2.0]])
def test_surprise_is_the_calibrations(held):
    calibration = Calibration.of(torch.tensor(held))
    scores = torch.tensor([-5.0, 0.0, 0.25, 1.0, 2.0, 2.5, 3.0, 100.0])
    assert torch.equal(surprise(calibration)(scores), calibration.surprise(scores))


def test_a_decision_is_the_thresholds():
    threshold = of.Threshold.fit(torch.tensor([*range(30), 7.0, 7.0]), keep=0.9)
    scores = torch.tensor([-1.0, 0.0, 6.9, 7.0, 7.1, 26.9, threshold.value, 29.0, 30.0])
    p_values, is_ood = Decision(threshold.reference, threshold.value)(scores)
    assert torch.equal(p_values, threshold.p_value(scores).float())
    assert torch.equal(is_ood, threshold.is_ood(scores))


class Numbers(nn.Module):
    """Numbers that float32 would round, in every place where detectors have them."""

    def forward(self, x):
        far = x.scatter(0, torch.zeros(1, dtype=torch.int64), 1e-30)
        return (
            x * 0.1, x / 0.1, x + 0.1, 0.1 - x, x.clamp_min(1e-308).log(), x.clamp_max(0.7), x.clamp(0.1, 0.7), far**0.1,
            torch.where(x > 1, x, 0.3), torch.where(x > 1, 0.3, x), (x > 0.1).double(), (x <= 0.7).double(), x.clamp(-1e300, 0.1),
            (x >= 0.1).double(), (x < 0.7).double(), x.clamp(0, 0.1),
        )  # fmt: skip


def test_numbers_are_not_rounded_to_float32():
    x = torch.tensor([0.05, 2.0, 0.0, 0.1, 0.1 + 1e-12, 0.7, 0.7 - 1e-12], dtype=torch.float64)
    model = Numbers()
    wanted = model(x)
    program = torch.export.export(model, (x,), dynamic_shapes=open_rows((x,)), strict=False)
    names = tuple(f"out{i}" for i in range(len(wanted)))
    content = converted(Traced(program, ("x",), names, (x,), wanted)).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for number, (one, other) in enumerate(zip(wanted, session.run(None, {"x": x.numpy()}), strict=True)):
        np.testing.assert_allclose(other, one.numpy(), rtol=1e-14, atol=0, err_msg=f"output {number}")


def test_steps_that_onnx_lacks_keep_their_precision():
    x = torch.tensor([0.0, 1e-300, -1e-20, 1e-17, 3e-9, -0.5, -0.999999, 1.0, 1e10], dtype=torch.float64)
    torch.testing.assert_close(STEPS[torch.ops.aten.log1p.default](x), torch.log1p(x), rtol=1e-14, atol=0)
    x = torch.tensor([0.0, 1e-300, -1e-20, 1e-17, 3e-9, -0.5, -40.0, -800.0, 1.0, 1000.0], dtype=torch.float64)
    torch.testing.assert_close(STEPS[torch.ops.aten.expm1.default](x), torch.expm1(x), rtol=1e-14, atol=0)
    x = torch.tensor([[2.0, 1.0, 2.0, 0.0]])
    for descending in (False, True):
        values, _ = STEPS[torch.ops.aten.sort.stable](x, descending=descending)
        assert torch.equal(values, x.sort(descending=descending).values)
    a, b = torch.randn(4, 3), torch.randn(5, 3)
    torch.testing.assert_close(STEPS[torch.ops.aten.cdist.default](a, b), torch.cdist(a, b))
