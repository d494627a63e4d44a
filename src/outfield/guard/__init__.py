"""Guards: a reader of images, tables or features, a detector and a threshold in one file; verdicts on inputs."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "annotations": ("BoxPlan", "are_annotated", "overlaps"),
        "boxes": ("Boxes",),
        "build": ("ImagePlan",),
        "decision": ("Decision", "PER_CLASS", "true_classes"),
        "guard": ("Guard", "RowGuard", "open_guard"),
        "description": ("describe_guard",),
        "readers": ("ImageReader", "Reader", "TableReader"),
        "review": ("ReviewFolder", "classes_of"),
        "texts": ("Texts",),
        "verdict": ("BoxVerdict", "COLUMNS", "ImageVerdict", "VERDICT_ENDINGS", "Verdict", "Verdicts", "as_json",
                    "as_json_lines", "write_verdicts"),
        "explanation": ("ColumnWhy", "ExplainedVerdict", "RowWhy"),
    },
)  # fmt: skip
