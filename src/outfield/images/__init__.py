"""Images: folders, files and published sets, decoded one by one; stand-ins for OOD images made from ID images."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "datasets": ("DATASETS", "find", "title"),
        "folder": (
            "BYTES_AT_MOST", "IMAGE_ENDINGS", "ImageFiles", "ON_ERROR", "Skipped", "decode", "image_names", "open_images",
            "pixels_of", "size_of", "summary",
        ),
        "image_source": ("ImageArray", "ImageSource", "check_image", "check_source", "image_copies", "part_of"),
        "stand_in_images": ("KINDS", "SHEET", "as_png", "check_free", "stand_ins", "write_stand_ins"),
    },
)  # fmt: skip
