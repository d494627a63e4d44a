"""Scores: metrics, thresholds, p-values and drift. A score is one number per sample; higher is more OOD."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "drift": ("Drift", "in_words"),
        "row_drift": ("RowDrift",),
        "acceptance": ("Acceptance", "check_accuracy", "fewest_right"),
        "class_threshold": ("ClassThresholds",),
        "risk_coverage": ("RiskCoverage", "augrc", "aurc", "coverage_at_risk"),
        "metrics": ("Separation", "aupr_in", "aupr_out", "auroc", "fpr95", "id_rejected_at_95_ood_recall", "ood_accepted"),
        "threshold": ("Threshold", "check_keep", "discovery_limit", "fewest", "same", "share_interval"),
        "vectors": ("as_scores", "marked", "rank"),
    },
)  # fmt: skip
