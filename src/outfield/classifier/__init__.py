"""Trains a network that classifies images."""
