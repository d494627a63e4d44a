"""Networks by name and in files, with their weights."""
