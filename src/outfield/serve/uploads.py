"""Files of a form: what browsers and ``curl -F`` send."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from outfield.serve.refusals import Refused

HEADER_BYTES = 16_384
"""Of one part's headers."""


class Upload(NamedTuple):
    """One file of a form.

    Attributes:
        name: That the client gave it, or None.
        content: Its bytes.
    """

    name: str | None
    content: bytes


def files_of(body: bytearray, content_type: str, most: int) -> list[Upload]:
    """The files of a form, or the one image that the body is.

    Args:
        body: Of the request.
        content_type: The header: ``multipart/form-data`` with a boundary, or ``image/…`` or ``application/octet-stream``.
        most: Files that may be in it.

    Raises:
        Refused: It is neither, or has too many files, or none.
    """
    kind, options = parse_options_header(content_type)
    if kind.startswith(b"image/") or kind == b"application/octet-stream":
        return [Upload(None, bytes(body))]
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refused(415, "send multipart/form-data with files, or one image as the body (Content-Type: image/…)")
    found = _Form(most)
    try:
        parser = MultipartParser(options[b"boundary"], found.callbacks())
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        raise Refused(400, f"the form is broken: {error}") from error
    if not found.ended:
        raise Refused(400, "the form is broken: its end is missing")
    if not found.files:
        raise Refused(400, "there is no file in the form; send at least one")
    return found.files


class _Form:
    """Collects the files of a form; other fields are left out."""

    def __init__(self, most: int) -> None:
        self.most, self.files, self.ended = most, list[Upload](), False
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value, self._content = b"", b"", bytearray()

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._header,
            "on_header_end": self._end_header,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._all,
        }

    def _begin(self) -> None:
        self._headers, self._content = {}, bytearray()

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._check_header()

    def _header(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._name) + len(self._value) > HEADER_BYTES or len(self._headers) > 16:
            raise Refused(400, "the form is broken: a part has too many headers")

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"filename" not in options:
            return
        if len(self.files) == self.most:
            raise Refused(413, f"there are more than {self.most} files in the form; send fewer at once")
        self.files.append(Upload(_file_name(options[b"filename"]), bytes(self._content)))

    def _all(self) -> None:
        self.ended = True


def _file_name(given: bytes) -> str | None:
    """The last part of a name, without letters that cannot be shown."""
    name = given.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[\x00-\x1f\x7f]", "", name)[:255] or None
