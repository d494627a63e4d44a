"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.backbone.architectures import Classifier as Classifier
from outfield.backbone.architectures import for_small_images as for_small_images
from outfield.backbone.architectures import load_classifier as load_classifier
from outfield.backbone.architectures import load_weights as load_weights
from outfield.backbone.architectures import save_classifier as save_classifier
from outfield.backbone.architectures import split_name as split_name
from outfield.backbone.backbone import Backbone as Backbone
from outfield.backbone.backbone import accuracy as accuracy
from outfield.backbone.backbone import match_labels as match_labels
from outfield.backbone.extraction import Extraction as Extraction
from outfield.backbone.extraction import evaluation_mode as evaluation_mode
from outfield.backbone.extraction import read as read
from outfield.backbone.extraction import read_all as read_all
from outfield.backbone.hooks import Observer as Observer
from outfield.backbone.origin import Origin as Origin
from outfield.backbone.origin import open_text_classifier as open_text_classifier
from outfield.backbone.perturbation import Odin as Odin
from outfield.backbone.perturbation import Perturb as Perturb
from outfield.backbone.preprocessing import Preprocessing as Preprocessing
from outfield.backbone.preprocessing import check_size as check_size
from outfield.backbone.views import MOST_NAMED as MOST_NAMED
from outfield.backbone.views import Views as Views

__all__ = [
    "Backbone",
    "Classifier",
    "Extraction",
    "MOST_NAMED",
    "Observer",
    "Odin",
    "Origin",
    "Perturb",
    "Preprocessing",
    "Views",
    "accuracy",
    "check_size",
    "evaluation_mode",
    "for_small_images",
    "load_classifier",
    "load_weights",
    "match_labels",
    "open_text_classifier",
    "read",
    "read_all",
    "save_classifier",
    "split_name",
]
