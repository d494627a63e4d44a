"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.scores.acceptance import Acceptance as Acceptance
from outfield.scores.acceptance import check_accuracy as check_accuracy
from outfield.scores.acceptance import fewest_right as fewest_right
from outfield.scores.class_threshold import ClassThresholds as ClassThresholds
from outfield.scores.drift import Drift as Drift
from outfield.scores.drift import in_words as in_words
from outfield.scores.metrics import Separation as Separation
from outfield.scores.metrics import aupr_in as aupr_in
from outfield.scores.metrics import aupr_out as aupr_out
from outfield.scores.metrics import auroc as auroc
from outfield.scores.metrics import fpr95 as fpr95
from outfield.scores.metrics import id_rejected_at_95_ood_recall as id_rejected_at_95_ood_recall
from outfield.scores.metrics import ood_accepted as ood_accepted
from outfield.scores.risk_coverage import RiskCoverage as RiskCoverage
from outfield.scores.risk_coverage import augrc as augrc
from outfield.scores.risk_coverage import aurc as aurc
from outfield.scores.risk_coverage import coverage_at_risk as coverage_at_risk
from outfield.scores.row_drift import RowDrift as RowDrift
from outfield.scores.threshold import Threshold as Threshold
from outfield.scores.threshold import check_keep as check_keep
from outfield.scores.threshold import discovery_limit as discovery_limit
from outfield.scores.threshold import fewest as fewest
from outfield.scores.threshold import same as same
from outfield.scores.threshold import share_interval as share_interval
from outfield.scores.vectors import as_scores as as_scores
from outfield.scores.vectors import marked as marked
from outfield.scores.vectors import rank as rank

__all__ = [
    "Acceptance",
    "ClassThresholds",
    "Drift",
    "RiskCoverage",
    "RowDrift",
    "Separation",
    "Threshold",
    "as_scores",
    "augrc",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "check_accuracy",
    "check_keep",
    "coverage_at_risk",
    "discovery_limit",
    "fewest",
    "fewest_right",
    "fpr95",
    "id_rejected_at_95_ood_recall",
    "in_words",
    "marked",
    "ood_accepted",
    "rank",
    "same",
    "share_interval",
]
