"""Detectors of the classifier's outputs."""
