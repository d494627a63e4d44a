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

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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


# What is raised where plain data out of a file, or of a client, is not as it was written
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OutfieldError)


def reason(error: BaseException) -> str:
    """What an error says, in one line: of the system without its number, of a key that is missing with its kind."""
    said = repr(error) if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
    return next(iter(said.strip().splitlines()), type(error).__name__)[:300]


@contextlib.contextmanager
def as_ours(
    told: str, kind: type[Exception] | None = FileFormatError, *raised: type[Exception], after: str = ""
) -> Iterator[None]:
    """Errors in the block become one of ours, of this kind or their own, which says what went wrong, and why.

    Those of the kinds ``raised``, or whatever there is. Ours pass unless one of their kinds is named.

    >>> with as_ours("n is no number", InputError, ValueError):
    ...     int("x")
    Traceback (most recent call last):
    outfield.errors.InputError: n is no number: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except Exception as error:  # other libraries raise nearly anything
        passes = isinstance(error, OutfieldError) and not any(issubclass(one, OutfieldError) for one in raised)
        if passes or not isinstance(error, raised or Exception):
            raise
        raise (kind or type(error))(f"{told}: {reason(error)}{after}") from error
