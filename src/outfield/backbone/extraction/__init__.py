"""One pass of a network over images."""
