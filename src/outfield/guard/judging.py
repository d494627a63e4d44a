"""From the fields of images to verdicts: the detector's score, the threshold's p-value, and which member rang."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outfield.detectors.base import Detector
from outfield.detectors.naming import names_of
from outfield.detectors.summed import Summed
from outfield.errors import InputError
from outfield.features.set import FeatureSet
from outfield.guard.verdict import Verdict
from outfield.scores.threshold import Threshold


def check_class_names(names: Sequence[str], features: FeatureSet) -> None:
    """Refuse names of classes for logits of another number of classes.

    Raises:
        InputError: They differ.
    """
    if names and features.logits is not None and features.logits.shape[1] != len(names):
        raise InputError(
            f"there are names of {len(names)} classes, but the logits have {features.logits.shape[1]}; each class has one name"
        )


class Judge:
    """A fitted detector with its threshold.

    Args:
        detector: fitted.
        threshold: chosen on scores of that detector.
        names: of the classes, or none.

    Attributes:
        members: names of the detector's members; its own name where it has none.
    """

    def __init__(self, detector: Detector, threshold: Threshold, names: Sequence[str]) -> None:
        self.detector, self.threshold, self.names = detector, threshold, tuple(names)
        self.members = detector.names if isinstance(detector, Summed) else names_of([detector])

    def __call__(self, features: FeatureSet, files: Sequence[str | None]) -> list[Verdict]:
        """A verdict on each row.

        Args:
            features: what the detector needs to score, and logits (N, K), without which verdicts name no class.
            files: where each row comes from (N,).
        """
        scores, members, loudest = self._scored(features)
        p_values, is_ood = self.threshold.p_value(scores), self.threshold.is_ood(scores)
        columns = [p_values[:, None] if members is None else members, p_values, is_ood, scores.double()]
        logits = features.logits
        classes = [None] * len(features) if logits is None else logits.argmax(1).tolist()
        rows = zip(files, classes, loudest, *(column.tolist() for column in columns), strict=True)
        return [
            Verdict(
                file,
                index,
                self.names[index] if self.names and index is not None else None,
                score,
                p_value,
                ood,
                self.members[loud] if ood else None,
                dict(zip(self.members, own, strict=True)),
            )
            for file, index, loud, own, p_value, ood, score in rows
        ]

    def _scored(self, features: FeatureSet) -> tuple[Tensor, Tensor | None, list[int]]:
        """Scores (N,), the members' p-values (N, M) where there are members, and the number of the loudest for each row."""
        if not isinstance(self.detector, Summed):
            return self.detector.score(features), None, [0] * len(features)
        why = self.detector.explain(features)
        return why.total, why.p_values, why.terms.argmax(1).tolist()
