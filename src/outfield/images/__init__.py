"""Images: folders, files and published sets, decoded one by one; stand-ins for OOD images made from ID images.

Where to look:

- what a source of images is, images in memory, some images of a set: :mod:`~outfield.images.image_source`.
- a JPEG becomes pixels, and what a broken one does: :mod:`~outfield.images.decoding`.
- a folder of images and its classes, an ``.npz``: :mod:`~outfield.images.folder`.
- data sets by name: where they may lie and what they should hold, :mod:`~outfield.images.catalogue`; how each is read,
  :mod:`~outfield.images.layouts`; CIFAR's pickles without unpickling, :mod:`~outfield.images.pickles`;
  archives, :mod:`~outfield.images.catalogue`.
- stand-ins: the kinds and the sets made of them, :mod:`~outfield.images.stand_in_sets`; written to a folder,
  :mod:`~outfield.images.stand_in_sets`.
"""

from outfield.doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "catalogue": ("DATASETS", "find", "title"),
        "decoding": ("BYTES_AT_MOST", "ON_ERROR", "Skipped", "decode", "pixels_of", "size_of", "summary"),
        "folder": ("IMAGE_ENDINGS", "ImageFiles", "image_names", "open_images"),
        "image_source": ("ImageArray", "ImageSource", "part_of"),
        "stand_in_sets": ("KINDS", "SHEET", "check_free", "stand_ins", "write_stand_ins"),
    },
)
