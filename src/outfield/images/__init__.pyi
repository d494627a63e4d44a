"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.images.datasets import DATASETS as DATASETS
from outfield.images.datasets import find as find
from outfield.images.datasets import title as title
from outfield.images.folder import BYTES_AT_MOST as BYTES_AT_MOST
from outfield.images.folder import IMAGE_ENDINGS as IMAGE_ENDINGS
from outfield.images.folder import ImageFiles as ImageFiles
from outfield.images.folder import ON_ERROR as ON_ERROR
from outfield.images.folder import Skipped as Skipped
from outfield.images.folder import decode as decode
from outfield.images.folder import image_names as image_names
from outfield.images.folder import open_images as open_images
from outfield.images.folder import pixels_of as pixels_of
from outfield.images.folder import size_of as size_of
from outfield.images.folder import summary as summary
from outfield.images.image_source import ImageArray as ImageArray
from outfield.images.image_source import ImageSource as ImageSource
from outfield.images.image_source import check_image as check_image
from outfield.images.image_source import check_source as check_source
from outfield.images.image_source import image_copies as image_copies
from outfield.images.image_source import part_of as part_of
from outfield.images.stand_in_images import KINDS as KINDS
from outfield.images.stand_in_images import SHEET as SHEET
from outfield.images.stand_in_images import as_png as as_png
from outfield.images.stand_in_images import check_free as check_free
from outfield.images.stand_in_images import stand_ins as stand_ins
from outfield.images.stand_in_images import write_stand_ins as write_stand_ins

__all__ = [
    "BYTES_AT_MOST",
    "DATASETS",
    "IMAGE_ENDINGS",
    "ImageArray",
    "ImageFiles",
    "ImageSource",
    "KINDS",
    "ON_ERROR",
    "SHEET",
    "Skipped",
    "as_png",
    "check_free",
    "check_image",
    "check_source",
    "decode",
    "find",
    "image_copies",
    "image_names",
    "open_images",
    "part_of",
    "pixels_of",
    "size_of",
    "stand_ins",
    "summary",
    "title",
    "write_stand_ins",
]
