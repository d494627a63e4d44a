"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.files.arrays import Fingerprint as Fingerprint
from outfield.files.arrays import HEADER_NAME as HEADER_NAME
from outfield.files.arrays import NotInRowsError as NotInRowsError
from outfield.files.arrays import Stamp as Stamp
from outfield.files.arrays import StoredArray as StoredArray
from outfield.files.arrays import find_npy as find_npy
from outfield.files.arrays import find_npz as find_npz
from outfield.files.arrays import find_tensors as find_tensors
from outfield.files.arrays import fingerprint as fingerprint
from outfield.files.arrays import read_npz as read_npz
from outfield.files.arrays import read_tensors as read_tensors
from outfield.files.download import download_file as download_file
from outfield.files.download import sha256_of as sha256_of
from outfield.files.paths import PathLike as PathLike
from outfield.files.paths import SCRATCH_NAME as SCRATCH_NAME
from outfield.files.paths import as_path as as_path
from outfield.files.paths import check_output as check_output
from outfield.files.paths import check_readable as check_readable
from outfield.files.paths import csv_cell as csv_cell
from outfield.files.paths import make_folder as make_folder
from outfield.files.paths import new_file as new_file
from outfield.files.paths import open_to_read as open_to_read
from outfield.files.paths import write_atomically as write_atomically
from outfield.files.paths import write_bytes as write_bytes
from outfield.files.paths import write_new as write_new
from outfield.files.paths import write_npz as write_npz
from outfield.files.record import RECORD_ENDINGS as RECORD_ENDINGS
from outfield.files.record import Record as Record
from outfield.files.record import find_record as find_record
from outfield.files.record import kind_of as kind_of
from outfield.files.record import read_record as read_record
from outfield.files.record import tensors_under as tensors_under
from outfield.files.record import write_record as write_record
from outfield.files.values import as_tensor as as_tensor
from outfield.files.values import check_dtype as check_dtype
from outfield.files.values import class_labels as class_labels
from outfield.files.values import finite_floats as finite_floats
from outfield.files.values import whole_numbers as whole_numbers

__all__ = [
    "Fingerprint",
    "HEADER_NAME",
    "NotInRowsError",
    "PathLike",
    "RECORD_ENDINGS",
    "Record",
    "SCRATCH_NAME",
    "Stamp",
    "StoredArray",
    "as_path",
    "as_tensor",
    "check_dtype",
    "check_output",
    "check_readable",
    "class_labels",
    "csv_cell",
    "download_file",
    "find_npy",
    "find_npz",
    "find_record",
    "find_tensors",
    "fingerprint",
    "finite_floats",
    "kind_of",
    "make_folder",
    "new_file",
    "open_to_read",
    "read_npz",
    "read_record",
    "read_tensors",
    "sha256_of",
    "tensors_under",
    "whole_numbers",
    "write_atomically",
    "write_bytes",
    "write_new",
    "write_npz",
    "write_record",
]
