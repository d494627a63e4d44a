"""For the documentation site: docstrings as Markdown. Roles such as ``:class:`` become code, examples blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe


class AsMarkdown(griffe.Extension):  # type: ignore[misc]
    """Changes every docstring once it is read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""A docstring without what only Sphinx reads.

    >>> as_markdown("See :meth:`~outfield.Detector.save`::")
    'See `Detector.save`:'
    >>> as_markdown("One.\n\n>>> 1\n1")
    'One.\n\n```python\n>>> 1\n1\n```'
    """
    text = re.sub(r"^( *)>>> .*(?:\n(?! *$).+)*", _fenced, text, flags=re.MULTILINE)
    text = re.sub(r":(?:class|func|meth|mod|data|attr|exc):`~?(?:outfield\.)?([^`]+)`", r"`\1`", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _fenced(example: re.Match[str]) -> str:
    return f"{example[1]}```python\n{example[0]}\n{example[1]}```"
