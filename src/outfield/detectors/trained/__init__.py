"""Detectors that train a network."""
