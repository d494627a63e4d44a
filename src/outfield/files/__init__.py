"""Files: written atomically, proved when they are read, never unpickled."""

from outfield.doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "arrays": (
            "HEADER_NAME", "Fingerprint", "NotInRowsError", "Stamp", "StoredArray", "fill", "find_npy", "find_npz",
            "find_tensors", "fingerprint", "open_to_read", "read_npz", "read_tensors",
        ),
        "checks": ("as_tensor", "check_dtype", "class_labels", "finite_floats", "whole_numbers"),
        "download": ("AT_ONCE", "download_file", "has_sha256", "sha256_of"),
        "paths": (
            "SCRATCH_NAME", "PathLike", "as_path", "check_output", "check_readable", "check_writable", "make_folder",
            "new_file", "reason", "write_atomically", "write_bytes", "write_new", "write_npz",
        ),
        "record": ("RECORD_ENDINGS", "Record", "find_record", "kind_of", "read_record", "write_record"),
    },
)  # fmt: skip
