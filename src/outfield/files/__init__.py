"""Files: written atomically, checked against their checksums when they are read, never unpickled."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "arrays": (
            "HEADER_NAME", "Fingerprint", "NotInRowsError", "Stamp", "StoredArray", "find_npy", "find_npz",
            "find_tensors", "fingerprint", "read_npz", "read_tensors",
        ),
        "values": ("as_tensor", "check_dtype", "class_labels", "finite_floats", "whole_numbers"),
        "download": ("download_file", "sha256_of"),
        "paths": (
            "PathLike", "SCRATCH_NAME", "as_path", "check_output", "check_readable", "csv_cell", "make_folder", "new_file",
            "open_to_read", "write_atomically", "write_bytes", "write_new", "write_npz",
        ),
        "record": ("RECORD_ENDINGS", "Record", "find_record", "kind_of", "read_record", "tensors_under", "write_record"),
    },
)  # fmt: skip
