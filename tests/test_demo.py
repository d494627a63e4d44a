"""The demo end to end, with shorter training: real digits, real photographs, every detector."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import outfield as of
from outfield import demo, plots, report


@pytest.fixture(scope="module")
def run():
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("EBM", "EnergyCorrected"):
            settings = dict(demo.SETTINGS[name])
            settings["training"] = dataclasses.replace(settings["training"], epochs=2)
            patch.setitem(demo.SETTINGS, name, settings)
        return demo.run_demo()


def test_the_network_knows_its_digits(run):
    assert run.accuracy > 0.95


def test_sets_do_not_overlap():
    images = demo.digit_images()
    assert set(images.train_labels.tolist()) == set(range(8))
    seen = [
        {tuple(image.flatten().tolist()) for image in part} for part in (images.train, images.held_out, images.test)
    ]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert len(images.near) == 354
    assert images.far.shape == (600, 1, 8, 8)
    assert 0 <= float(images.far.min()) <= float(images.far.max()) <= 1


def test_every_detector_is_evaluated_on_both_sets(run):
    assert [result.detector for result in run.results[::2]] == list(of.DETECTORS)
    by_name = {(r.detector, r.ood): r for r in run.results}
    assert all(r.auroc > 0.6 for r in run.results if r.detector != "EBM")  # after two epochs it knows little yet
    assert by_name["SSD", "photo patches (far)"].auroc > 0.95


def test_thresholds_keep_what_they_promise(run):
    for name, detector in run.detectors.items():
        kept = 1 - float(run.thresholds[name].is_ood(detector.score(run.sets["test"])).float().mean())
        assert kept > 0.88


def test_odin_raises_confidence(run):
    """The perturbation follows the gradient of the log-probability, so the tempered top probability must rise."""
    data = run.sets["test"]
    before, after = (
        torch.softmax(x / demo.ODIN_TEMPERATURE, 1).amax(1).mean() for x in (data.logits, data.odin_logits)
    )
    assert float(after) > float(before)


def test_spread_is_the_spatial_deviation(run):
    network = demo.DigitNet(8).eval()
    maps = network.body(run.images.test).detach()
    expected = ((maps - maps.mean((2, 3), keepdim=True)) ** 2).mean((2, 3)).sqrt()
    data = demo.extract(network, run.images.test)
    torch.testing.assert_close(data.spread, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(data.features, maps.mean((2, 3)))


def test_the_figure_and_table(run, tmp_path):
    plots.demo_figure(run, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 50_000
    table = report.results_table(run.results)
    assert table.header == ["detector", "digits 8 and 9 (near)", "photo patches (far)", "mean"]
    assert "| SSD |" in table.markdown()
