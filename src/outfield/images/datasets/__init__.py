"""Published image data sets: known by name, found in a folder, downloaded, read as they lie on disk."""
