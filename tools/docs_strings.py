"""For the documentation site: docstrings as Markdown. Roles such as ``:class:`` become code, examples blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe


def examples() -> dict[str, str]:
    """Examples of public names whose docstrings have none: those of the file beside this one, and one for each detector."""
    from outfield.detectors.registry import homes

    text = Path(__file__).with_name("reference_examples.md").read_text(encoding="utf-8")
    own = dict(re.findall(r"^## (\w+)\n(.*?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL))
    return {
        **{name: f"of.{name}().fit(train).score(test)" for name in homes()},
        **{name: code.strip() for name, code in own.items()},
    }


EXAMPLES = examples()


class AsMarkdown(griffe.Extension):  # type: ignore[misc]
    """Changes every docstring once it is read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = as_markdown(obj.docstring.value)
            public = (obj.is_class or obj.is_function) and obj.parent is not None and obj.parent.is_module
            if public and obj.name in EXAMPLES and ">>>" not in text:
                text += f"\n\n```python\n{EXAMPLES[obj.name]}\n```"
            obj.docstring.value = text


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
