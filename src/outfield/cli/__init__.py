"""The command line. It reads files, calls the library and prints; it computes nothing itself.

A command is a function in ``commands/``. Nothing here is imported from the library before a command runs, so that ``outfield
--help`` answers at once.
"""

from outfield.cli import commands  # noqa: F401  # they add themselves to the application
from outfield.cli.app import app, main

__all__ = ["app", "main"]
