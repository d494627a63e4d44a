"""A page as a tree of elements, so that tests ask what a reader sees and not how it is spelt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


@dataclass
class Node:
    """An element: its tag, its attributes, and what is in it, elements and text."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    content: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.content:
            if isinstance(part, Node):
                yield from part.walk()

    @property
    def text(self) -> str:
        """All text in it, as it is read: spaces and line ends are one space."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> Iterator[str]:
        for part in self.content:
            if isinstance(part, str):
                yield part
            elif part.tag not in ("script", "style"):
                yield from part._pieces()

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    def all(self, tag: str = "", **attributes: str) -> list[Node]:
        """Elements below it with this tag, class (``class_``) and other attributes, in their order."""
        wanted = attributes.pop("class_", None)
        return [
            node
            for node in self.walk()
            if node is not self
            and tag in ("", node.tag)
            and (wanted is None or wanted in node.classes)
            and all(node.attributes.get(name.replace("_", "-")) == value for name, value in attributes.items())
        ]

    def one(self, tag: str = "", **attributes: str) -> Node:
        """The first such element; there must be one."""
        found = self.all(tag, **attributes)
        assert found, f"there is no {tag} {attributes}"
        return found[0]


class _Builder(HTMLParser):
    """Builds the tree; fails where tags do not match or an attribute stands twice."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        node = Node(tag, dict(attrs))
        self.open[-1].content.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> means nothing in HTML")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(text: str) -> Node:
    """The tree of a page in which every element is closed."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder.open == [builder.root], f"never closed: {[node.tag for node in builder.open[1:]]}"
    return builder.root


def rows_of(table: Node) -> list[list[str]]:
    """The text of a table's cells below its head, row by row."""
    return [
        [cell.text for cell in row.content if isinstance(cell, Node)]
        for body in table.all("tbody")
        for row in body.all("tr")
    ]
