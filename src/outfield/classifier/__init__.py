"""Training of classifiers on images: the paper's recipe, and others."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "outliers": ("Outliers",),
        "pixels": ("Pixels", "check_share"),
        "recipe": (
            "AUGMENTATIONS", "Augmentation", "CrossEntropy", "LOSSES", "LogitNorm", "OUTLIERS", "PadAndShift", "Recipe",
            "Recoloured", "SimCLR",
        ),
        "training": ("Curve", "HeldOut", "TrainingCheckpoint", "classifier_for", "train_classifier"),
    },
)  # fmt: skip
