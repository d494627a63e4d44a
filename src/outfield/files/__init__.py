"""Files: atomic writes, checksums, array formats, and what an array must be."""
