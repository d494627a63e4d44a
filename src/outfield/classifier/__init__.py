"""Training of classifiers on images: the paper's recipe, and others."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "augmentation": ("Augmentation", "PadAndShift", "Recoloured"),
        "losses": ("AUGMENTATIONS", "CrossEntropy", "LOSSES", "LogitNorm", "SimCLR"),
        "pixels": ("Pixels", "check_share"),
        "recipe": ("Recipe",),
        "training": ("Curve", "HeldOut", "TrainingCheckpoint", "classifier_for", "train_classifier"),
    },
)
