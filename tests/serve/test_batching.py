"""Jobs of several requests in one batch: in their order, each with its own verdicts, none left behind."""

import itertools
import threading
import time

import pytest
import torch

import outfield as of
from outfield.serve.batcher import Batcher, Job


class Slow:
    """A guard whose verdicts are the first bytes of its images."""

    def __init__(self, seconds=0.0):
        self.seconds, self.batches = seconds, []

    def judge_pixels(self, pixels):
        time.sleep(self.seconds)
        self.batches.append(pixels[:, 0, 0, 0].tolist())
        if 255 in self.batches[-1]:
            raise of.InputError("255")
        return self.batches[-1]

    def judge(self, rows):
        return rows.features[:, 0].tolist()


def job(guard, *numbers):
    rows = torch.tensor(numbers, dtype=torch.uint8)[:, None, None, None].repeat(1, 1, 1, 3)
    return Job(guard, rows)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def batcher(seen, monkeypatch):
    monkeypatch.setattr("outfield.serve.batcher.WAIT", 0.5)
    made = Batcher("test", 4, lambda guard, verdicts: seen.append([*verdicts]))
    yield made
    made.stop()


def test_jobs_that_wait_share_batches_and_keep_their_verdicts(batcher, seen):
    guard = Slow(0.1)
    jobs = [[1], [2, 3], [4, 5, 6], [7], [8, 9, 10, 11, 12], [13]]
    assert batcher.submit(job(guard, 1)).result(60) == [1]
    answers = [batcher.submit(job(guard, *numbers)) for numbers in jobs[1:]]
    assert [one.result(60) for one in answers] == jobs[1:]
    assert guard.batches[0] == [1]
    assert [*itertools.chain(*guard.batches)] == [*range(1, 14)]
    assert [4, 5, 6, 7] in guard.batches
    assert [8, 9, 10, 11, 12] in guard.batches  # one job is never divided
    assert seen == guard.batches


def test_a_batch_waits_only_for_what_is_on_its_way(batcher):
    guard, began = Slow(), time.monotonic()
    assert batcher.submit(job(guard, 1)).result(60) == [1]
    assert time.monotonic() - began < 0.4
    batcher.announce(1)
    late = threading.Timer(0.1, lambda: (batcher.submit(job(guard, 3)), batcher.announce(-1)))
    late.start()
    batcher.submit(job(guard, 2)).result(60)
    assert [2, 3] in guard.batches
    batcher.announce(1)
    began = time.monotonic()
    batcher.submit(job(guard, 4)).result(60)
    assert time.monotonic() - began > 0.4
    batcher.announce(-1)


def test_jobs_of_two_guards_are_not_mixed(batcher):
    blocking, one, other = Slow(0.3), Slow(), Slow()
    batcher.submit(job(blocking, 0))
    answers = [batcher.submit(job(guard, number)) for number, guard in enumerate((one, one, other, one), 1)]
    assert [answer.result(60) for answer in answers] == [[1], [2], [3], [4]]
    assert (one.batches, other.batches) == ([[1, 2], [4]], [[3]])


def test_rows_of_two_jobs_are_judged_apart(batcher):
    guard = Slow(0.2)
    batcher.submit(job(guard, 0))
    batcher.announce(1)  # which nothing that is no image waits for
    answers = [batcher.submit(Job(guard, of.FeatureSet([[number], [number + 1.0]]))) for number in (1.0, 3.0)]
    batcher.announce(-1)
    assert [answer.result(60) for answer in answers] == [[1.0, 2.0], [3.0, 4.0]]


def test_only_the_job_that_is_wrong_fails(batcher, seen):
    guard = Slow(0.1)
    answers = [batcher.submit(job(guard, number)) for number in (1, 2, 255, 3)]
    with pytest.raises(of.InputError):
        answers[2].result(60)
    assert [answers[number].result(60) for number in (0, 1, 3)] == [[1], [2], [3]]
    assert sorted(itertools.chain(*seen)) == [1, 2, 3]


def test_what_nobody_waits_for_is_left_out(batcher):
    guard = Slow(0.2)
    batcher.submit(job(guard, 1))
    time.sleep(0.05)
    cancelled, good = job(guard, 3), job(guard, 4)
    for one in (cancelled, good):
        batcher.submit(one)
    assert cancelled.answer.cancel()
    assert good.answer.result(60) == [4]
    assert guard.batches == [[1], [4]]
