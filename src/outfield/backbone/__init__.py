"""Backbones: a frozen classifier that turns images into features and logits, with its own preprocessing."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "backbone": ("Backbone", "accuracy", "match_labels"),
        "extraction": ("Extraction", "evaluation_mode", "read", "read_all"),
        "architectures": ("Classifier", "for_small_images", "load_classifier", "load_weights", "save_classifier", "split_name"),
        "hooks": ("Observer",),
        "origin": ("Origin", "open_text_classifier"),
        "perturbation": ("Odin", "Perturb"),
        "preprocessing": ("Preprocessing", "check_size"),
        "views": ("MOST_NAMED", "Views"),
    },
)  # fmt: skip
