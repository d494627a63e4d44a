"""Whole studies: the paper's toys in two dimensions, and the demo."""
