"""Data of Outfield's demo; nothing to import, `outfield demo` reads the files."""
