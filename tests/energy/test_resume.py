"""A fit that was cut off goes on from its checkpoint and ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of

LEARNED = ["EBM", "EnergyCorrected"]


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("start", ["normal", "replay"])
class TestResume:
    def settings(self, name, start, epochs=3):
        l2 = 0.1 if name == "EBM" else 10.0
        return {
            "training": of.Training(
                epochs=epochs, batch_size=25, learning_rate=1e-3, l2=l2, start=start, replay_size=50
            )
        }

    @pytest.mark.parametrize("stop", [1, 4, 7, 11])
    def test_a_fit_cut_anywhere_ends_with_the_same_bits(
        self, name, start, stop, train_set, test_set, tmp_path, monkeypatch
    ):
        whole = quick(name, **self.settings(name, start)).fit(train_set)
        checkpoint = of.Checkpoint(tmp_path / "fit.safetensors", seconds=0)
        steps = 0

        def die(*_):
            nonlocal steps
            steps += 1
            if steps == stop:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("outfield.energy.loop._Run.check", lambda self: die())
            with pytest.raises(KeyboardInterrupt):
                quick(name, **self.settings(name, start)).fit(train_set, checkpoint=checkpoint)
        resumed = quick(name, **self.settings(name, start)).fit(train_set, checkpoint=checkpoint)
        assert resumed.history_ == whole.history_
        assert torch.equal(resumed.score(test_set), whole.score(test_set))
        again = quick(name, **self.settings(name, start)).fit(train_set, checkpoint=checkpoint)
        assert torch.equal(again.score(test_set), whole.score(test_set))

    def test_another_fits_checkpoint_is_refused(self, name, start, train_set, tmp_path):
        path = tmp_path / "fit.safetensors"
        quick(name, **self.settings(name, start)).fit(train_set, checkpoint=path)
        with pytest.raises(of.InputError, match="other settings"):
            quick(name, **self.settings(name, start, epochs=4)).fit(train_set, checkpoint=path)
        with pytest.raises(of.InputError, match="other features"):
            quick(name, **self.settings(name, start)).fit(make_set(seed=8), checkpoint=path)
        relabelled = of.FeatureSet(train_set.features, labels=1 - train_set.labels.clamp_max(1))
        slope = of.MLP(hidden=16, depth=1, slope=0.9)
        with pytest.raises(of.InputError, match="other settings"):
            quick(name, network=slope, **self.settings(name, start)).fit(train_set, checkpoint=path)
        if name == "EnergyCorrected":
            with pytest.raises(of.InputError, match="other labels"):
                quick(name, **self.settings(name, start)).fit(relabelled, checkpoint=path)
            with pytest.raises(of.InputError, match="other settings"):
                quick(name, prior=of.MixturePrior(0.5), **self.settings(name, start)).fit(train_set, checkpoint=path)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(of.FileFormatError):
            quick(name, **self.settings(name, start)).fit(train_set, checkpoint=path)


def test_a_killed_process_goes_on(tmp_path, train_set, test_set):
    """A real SIGKILL in the middle of a fit, then the same fit again."""
    train_set.save(tmp_path / "train.safetensors")
    script = textwrap.dedent("""
        import sys, torch, outfield as of
        torch.set_num_threads(1)
        folder = sys.argv[1]
        detector = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0,
                                      training=of.Training(epochs=60, batch_size=32, learning_rate=1e-3))
        detector.fit(of.FeatureSet.load(folder + "/train.safetensors"),
                     checkpoint=of.Checkpoint(folder + "/fit.safetensors", seconds=0))
        detector.save(folder + "/detector.safetensors")
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.Popen(command)
    for _ in range(1200):
        if (tmp_path / "fit.safetensors").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "detector.safetensors").exists()
    subprocess.run(command, check=True, env=os.environ)
    training = of.Training(epochs=60, batch_size=32, learning_rate=1e-3)
    whole = of.EnergyCorrected(network=of.MLP(hidden=32, depth=1), prior_temperature=5.0, training=training).fit(
        train_set
    )
    assert torch.equal(of.load(tmp_path / "detector.safetensors").score(test_set), whole.score(test_set))
    leftovers = {path.name for path in Path(tmp_path).iterdir()}
    assert {"train.safetensors", "fit.safetensors", "detector.safetensors"} <= leftovers
