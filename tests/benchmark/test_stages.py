"""The log of a run in short: sets that a detector scored count together."""

from __future__ import annotations

import pytest

from outfield.benchmark.stages import Stage, Stages


@pytest.fixture
def stages():
    return Stages(None, "cpu")


def scored(stages, detector, name, seconds, found):
    stages.log.append({"what": "scores", "detector": detector, "set": name, "seconds": seconds, "found": found})


def test_scores_of_a_detector_count_together(stages):
    stages.log.append({"what": "detector", "detector": "KNN", "seconds": 1.0, "found": False})
    stages.log.append({"what": "history", "detector": "EBM", "seconds": 1.0, "found": False})
    scored(stages, "KNN", "svhn", 0.25, True)
    scored(stages, "SSD", "svhn", 0.5, True)
    scored(stages, "KNN", "lsun", 0.0101, True)
    scored(stages, "KNN", "places", 0.1, False)
    assert stages.summary() == [
        {"what": "detector", "detector": "KNN", "seconds": 1.0, "found": False},
        {"sets": 3, "what": "scores", "detector": "KNN", "seconds": 0.36, "found": False},
        {"sets": 1, "what": "scores", "detector": "SSD", "seconds": 0.5, "found": True},
    ]


@pytest.mark.parametrize("seconds", [(None, 1.0), (1.0, None), (None, None)])
def test_a_time_that_is_not_known_makes_the_sum_unknown(stages, seconds):
    for name, one in zip(("a", "b"), seconds, strict=True):
        scored(stages, "KNN", name, one, True)
    (found,) = stages.summary()
    assert found["seconds"] is None
    assert found["found"] is True
    assert found["sets"] == 2


def test_what_is_not_kept_is_not_mentioned(tmp_path):
    stage = Stage("scores", {"detector": "KNN"}, {"a": 1})
    for stages in (Stages(None, "cpu"), Stages(tmp_path, "cpu")):
        stages.mention(stage)
        assert stages.log == []
    stages.keep(stage, b"kept", lambda result, path: path.write_bytes(result), 1.5)
    stages.mention(stage)
    assert [(entry["found"], entry["seconds"]) for entry in stages.log] == [(False, 1.5), (True, 1.5)]
