"""Detectors that are made of others."""
