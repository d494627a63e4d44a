"""Backbones: a frozen classifier that turns images into features and logits, with its own preprocessing."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "backbone": ("Backbone",),
        "extraction.extraction": ("Extraction", "evaluation_mode"),
        "extraction.loader": ("read", "read_all"),
        "labels": ("accuracy", "match_labels"),
        "networks.architectures": (
            "Classifier",
            "for_small_images",
            "load_classifier",
            "save_classifier",
            "split_name",
        ),
        "networks.origin": ("Origin",),
        "perturbation": ("Odin", "Perturb"),
        "preprocessing.normalisation": ("check_size",),
        "preprocessing.preprocessing": ("Preprocessing",),
        "views": ("MOST_NAMED", "Views"),
    },
)
