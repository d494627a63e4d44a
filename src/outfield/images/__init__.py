"""Pixels: from folders, archives and published data sets."""
