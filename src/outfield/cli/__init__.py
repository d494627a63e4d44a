"""The command line. It reads files, calls the library and prints; it computes nothing itself."""

from outfield.cli import features, images, examples  # isort: skip  # the order of the commands in --help
from outfield.cli.app import app, main

__all__ = ["app", "examples", "features", "images", "main"]
