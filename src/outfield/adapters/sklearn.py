"""A scikit-learn estimator around any detector of features: lower = outlier, ``predict`` gives +1 and −1.

>>> import numpy as np, outfield as of
>>> from outfield.adapters.sklearn import OutfieldDetector
>>> rows = np.random.default_rng(0).standard_normal((200, 4)) + [5, 5, 0, 0]
>>> model = OutfieldDetector(of.KNN(k=5), contamination=0.1).fit(rows)
>>> model.predict([[5, 5, 0, 0], [0, 0, 5, 5], [50, 50, 0, 0]])
array([ 1, -1, -1])
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from outfield.adapters.plain_rows import PlainRows
from outfield.config import arguments, construct, require, require_number
from outfield.detectors import Detector
from outfield.errors import InputError
from outfield.extras import library
from outfield.scores import rank

base = library("sklearn.base", extra="sklearn")
validation = library("sklearn.utils.validation", extra="sklearn")


class OutfieldDetector(PlainRows, base.OutlierMixin, base.BaseEstimator):  # type: ignore[misc,name-defined]
    """Any detector of features as a scikit-learn outlier detector, for ``Pipeline``, ``GridSearchCV``, ``clone`` and pickle.

    ``score_samples`` is minus the detector's score, ``decision_function`` = ``score_samples`` − ``offset_``, and ``predict`` is
    −1 where that is below 0. The settings of a detector that is passed as an object are reached as ``detector__k``.

    Args:
        detector: A detector that works on features alone, such as ``of.KNN(k=5)``, or the name of one ("SSD").
        network_features: The rows are the features of a network: detectors look at their direction alone, as the methods'
            authors do. Otherwise columns are standardised, and the length of a row counts, as in a table.
        contamination: Share of ID rows that may be called outliers; decides ``offset_``.
        held_out: Share of the rows that the detector is not fitted on and ``offset_`` is chosen with: new ID rows are then called
            outliers with probability ``contamination`` at most (split conformal). With 0 it is the quantile of the scores of the
            training rows themselves, as other scikit-learn detectors choose it, which is too optimistic.
        random_state: Decides which rows are held out.
        device: Where it is fitted and scores: "auto", "cpu", "cuda".

    Attributes:
        detector_: The fitted detector, of which :meth:`~outfield.Detector.save` makes a file.
        preprocessing_: What turns rows into features, an :class:`outfield.TablePreprocessing`; None for a network's.
        offset_: Where outliers begin.
        n_features_in_: Columns of the training rows.
    """

    def __init__(
        self,
        detector: Detector | str = "SSD",
        *,
        network_features: bool = False,
        contamination: float = 0.05,
        held_out: float = 0.0,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.detector = detector
        self.network_features = network_features
        self.contamination = contamination
        self.held_out = held_out
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Learn from ID rows.

        Args:
            X: Rows (N, D).
            y: Their classes, of any kind, where they are known. Marks of outliers, which are all +1 or −1, are no classes and
                are left aside, as every scikit-learn outlier detector does.
        """
        require_number("contamination", self.contamination, above=0, most=0.5)
        require_number("held_out", self.held_out, least=0)
        require(self.held_out < 1, "held_out", self.held_out, "below 1")
        rows = validation.validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        classes = _classes(y, len(rows))
        fitted_on, apart = self._split(len(rows))
        part = None if classes is None else np.unique(classes[fitted_on], return_inverse=True)[1]
        self._learn(rows[fitted_on], part)
        self.offset_ = self._offset(self._scores(rows[apart]))
        return self

    def _split(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows to fit on, and those that the offset is chosen with."""
        order = np.arange(count)
        if not self.held_out:
            return order, order
        require_number("random_state", self.random_state, least=0, whole=True)
        order = np.random.default_rng(self.random_state).permutation(count)
        apart = round(self.held_out * count)
        if rank(1 - self.contamination, apart + 1) > apart or apart == count:
            what = (
                f"held_out={self.held_out} of {count} rows is {apart}, too few for contamination={self.contamination}"
            )
            raise InputError(f"{what}; at least {int(np.ceil(1 / self.contamination)) - 1} are needed")
        return np.sort(order[apart:]), np.sort(order[:apart])

    def _offset(self, scores: np.ndarray) -> float:
        if not self.held_out:
            return float(np.percentile(-scores, 100 * self.contamination))
        return -float(np.sort(scores)[rank(1 - self.contamination, len(scores) + 1) - 1])

    def score_samples(self, X: Any) -> np.ndarray:  # noqa: N803
        """Minus the detector's score (N,), float64: lower = more of an outlier."""
        validation.check_is_fitted(self)
        return -self._scores(validation.validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """``score_samples`` − ``offset_`` (N,): below 0 for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """+1 for ID rows, −1 for outliers (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """As scikit-learn has it; with ``deep`` the settings of the detector, too, as ``detector__NAME``."""
        found: dict[str, Any] = super().get_params(deep=False)
        if deep and isinstance(self.detector, Detector):
            found |= {f"detector__{name}": value for name, value in arguments(self.detector).items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """As scikit-learn has it; ``detector__NAME`` changes a setting of the detector, of which a new one is made."""
        named = [name for name in params if name.startswith("detector__")]
        inside = {name.removeprefix("detector__"): params.pop(name) for name in named}
        super().set_params(**params)
        if inside:
            require(isinstance(self.detector, Detector), "detector", self.detector, "an object, to have settings")
            self.detector = construct(type(self.detector), arguments(self.detector) | inside)
        return self


def _classes(y: Any, count: int) -> np.ndarray | None:
    """Classes (N,) of any kind of value; None where there are none."""
    if y is None:
        return None
    found = np.asarray(y)
    if found.shape != (count,):
        raise InputError(f"y has shape {found.shape}; it must hold one class for each of {count} rows")
    if found.dtype.kind in "fiu" and set(np.unique(found)) <= {-1, 1}:
        return None
    if found.dtype.kind == "f" and not (np.isfinite(found).all() and (found == np.round(found)).all()):
        raise InputError("y holds numbers that are not whole, which cannot be classes; pass classes or None")
    return found
