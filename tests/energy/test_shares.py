"""One fit by several processes: the steps of one process up to rounding, whatever the sampler, the start and the shares."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from tests.helpers.samples import QUICK, make_set
from torch import distributed

import outfield as of
from outfield.energy import shares
from outfield.energy.chains import Random
from outfield.energy.shares import Share, SharedRandom


class Meeting:
    """Threads that stand for processes: sums are taken when all are there."""

    def __init__(self, count):
        self.count, self.barrier, self.there = count, threading.Barrier(count, timeout=60), {}

    def exchange(self, rank, value):
        self.there[rank] = value
        self.barrier.wait()
        found = [self.there[other] for other in range(self.count)]
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class Thread(Share):
    meeting: Meeting

    def add_up(self, tensor):
        total = sum(self.meeting.exchange(self.rank, tensor.clone()))
        tensor.copy_(total)

    def check_equal(self, digest, what):
        if len(set(self.meeting.exchange(self.rank, digest))) > 1:
            raise of.InputError(f"{what} are not the same")


def fitted_together(detector, sets):
    """What each of several threads, as processes, gets of a fit; or its error."""
    meeting, found = Meeting(len(sets)), [None] * len(sets)

    def work(rank):
        with shares.sharing(Thread(rank, len(sets), meeting)):
            try:
                found[rank] = detector().fit(sets[rank])
            except of.OutfieldError as error:
                found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def quick(name, **training):
    given = QUICK[name]
    return {**given, "training": replace(given["training"], **training)}


CASES = {
    "EBM": ("EBM", {}),
    "the correction": ("EnergyCorrected", {}),
    "replay": ("EBM", {"training": {"start": "replay", "replay_size": 50, "replay_fresh": 0.3}}),
    "MALA": ("EBM", {"sampler": of.MetropolisLangevin(steps=3)}),
    "HMC": ("EBM", {"sampler": of.HamiltonianMonteCarlo(steps=2, leapfrog=2)}),
    "no penalty": ("EBM", {"training": {"l2": 0.0}}),
    "data": ("EBM", {"training": {"start": "data", "average": 2}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_shares_are_the_whole_up_to_rounding(case, count):
    name, more = CASES[case]
    settings = {**quick(name, **more.get("training", {})), **{k: v for k, v in more.items() if k != "training"}}
    train, test = make_set(n=100), make_set(n=30, seed=1)
    alone = of.DETECTORS[name](**settings).fit(train)
    found = fitted_together(lambda: of.DETECTORS[name](**settings), [train] * count)
    # Without the penalty nothing determines the energy's constant; Adam makes steps of what rounding leaves of its gradient.
    constant = (lambda scores: 0.0) if settings["training"].l2 else torch.mean
    for one in found:
        ours, theirs = (scores - constant(scores) for scores in (one.score(test), alone.score(test)))
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-4)
        assert one.history_.loss == pytest.approx(alone.history_.loss, rel=1e-3, abs=1e-4)
        if settings["training"].l2:
            assert one.history_.real_energy == pytest.approx(alone.history_.real_energy, rel=1e-3, abs=1e-4)
    assert len({one.fingerprint() for one in found}) == 1  # all have the same bits
    other = of.DETECTORS[name](**{**settings, "seed": 5}).fit(train)
    assert not torch.allclose(other.score(test), alone.score(test), rtol=2e-4, atol=1e-5)


def test_what_cannot_be_shared_is_refused(tmp_path):
    train = make_set(n=100)
    for settings, said in (
        (quick("EBM", batch_size=2), "a batch of 2 rows cannot be shared by 3 processes"),
        (quick("EBM", engine="fused"), "engine is 'fused', but several processes share the fit"),
    ):
        for error in fitted_together(lambda settings=settings: of.EBM(**settings), [train] * 3):
            assert said in str(error)
    for error in fitted_together(lambda: of.EBM(**QUICK["EBM"]), [train, make_set(n=100, seed=1)]):
        assert "the training rows are not the same" in str(error)
    with (
        shares.sharing(Thread(0, 1, Meeting(1))),
        pytest.raises(of.InputError, match="keeps no checkpoint; leave checkpoint out"),
    ):
        of.EBM(**QUICK["EBM"]).fit(train, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(of.InputError, match="no processes to share a fit with"), shares.data_parallel():
        pass
    assert shares.current() is None


def test_rows_have_the_random_numbers_of_the_whole():
    z = torch.zeros(7, 2)
    whole = Random(torch.Generator().manual_seed(3), 2)
    expected = [whole.normal(z), whole.uniform(z), whole.normal(z)]
    for rank in range(3):
        mine = Share(rank, 3).rows(7)
        random = SharedRandom(torch.Generator().manual_seed(3), 2, 7, mine)
        for name, numbers in zip(("normal", "uniform", "normal"), expected, strict=True):
            assert torch.equal(getattr(random, name)(z[mine]), numbers[mine])


def test_a_group_of_one_process(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with shares.data_parallel() as share:
            assert (share.rank, share.count) == (0, 1)
            assert shares.current() is share
            rows = torch.arange(6.0).view(3, 2)
            assert torch.equal(share.joined(rows, 3), rows)
            share.check_equal("a", "rows")
    finally:
        distributed.destroy_process_group()


def test_torchrun_gives_what_one_process_gives(tmp_path):
    train, test = make_set(n=100), make_set(n=30, seed=1)
    train.save(tmp_path / "train.npz")
    line = ["fit", "ebm", "train.npz", "--out", "ebm.safetensors", "--device", "cpu", "--set", "network.hidden=16"]
    line += [text for setting in ("epochs=2", "batch_size=33", "l2=0.1") for text in ("--set", f"training.{setting}")]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone"]
    settings = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
    done = subprocess.run([*run, "-m", "outfield", *line], timeout=280, check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("fitted EBM on 100 samples") == 1
    ours = of.load(tmp_path / "ebm.safetensors")
    alone = of.EBM(network=ours.network, training=ours.training, sampler=ours.sampler, projection=ours.projection).fit(
        train
    )
    assert alone.training.batch_size == 33
    torch.testing.assert_close(ours.score(test), alone.score(test), rtol=1e-3, atol=1e-5)
    refused = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}
    from tests.helpers.program import outfield

    with pytest.MonkeyPatch.context() as patch:
        for name, value in refused.items():
            patch.setenv(name, value)
        found = outfield("fit", "SSD", tmp_path / "train.npz", "-o", tmp_path / "ssd.safetensors")
    assert found.returncode == 2
    assert "SSD is fitted at once, by one process" in found.said
