"""Detectors that apply the classifier's last layer themselves."""
