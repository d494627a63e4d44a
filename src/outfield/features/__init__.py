"""Rows of a network: a set in memory, a stream from disk, and columns of tables."""
