"""Detectors of distances and densities in feature space."""
