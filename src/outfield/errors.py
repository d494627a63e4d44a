"""The tree of errors.

::

    OutfieldError
    ├── InputError (ValueError)            an argument or array is not what it must be
    │   ├── MissingFieldError              a FeatureSet lacks a field that a detector needs
    │   ├── TooFewSamplesError             not enough samples for what was asked
    │   └── UnknownNameError               no detector, prior or option of that name
    ├── NotFittedError (ValueError)        score or save before fit
    ├── FileFormatError (ValueError)       a file is truncated, tampered with, or not ours
    ├── StorageError (OSError)             a file could not be read or written
    ├── MissingExtraError (ImportError)    a library is needed that comes with an extra of the package
    └── DivergenceError (RuntimeError)     training left the region where its numbers mean anything

Every message names the argument, what it was, and what would be right.
"""


class OutfieldError(Exception):
    """Root of every error that Outfield raises on purpose."""


class InputError(OutfieldError, ValueError):
    """An argument or array is not what it must be."""


class MissingFieldError(InputError):
    """A FeatureSet lacks a field that a detector needs."""


class TooFewSamplesError(InputError):
    """There are not enough samples for what was asked."""


class UnknownNameError(InputError):
    """No detector, prior or option goes by that name."""


class NotFittedError(OutfieldError, ValueError):
    """A detector was asked to score or save before it was fitted."""


class FileFormatError(OutfieldError, ValueError):
    """A file is truncated, tampered with, or not one of ours."""


class StorageError(OutfieldError, OSError):
    """A file could not be read or written."""


class MissingExtraError(OutfieldError, ImportError):
    """A library is needed that is not installed; it comes with an extra of the package."""


class DivergenceError(OutfieldError, RuntimeError):
    """Training produced non-finite or exploding energies."""


class OutfieldWarning(UserWarning):
    """Something works but is probably not what you want."""
