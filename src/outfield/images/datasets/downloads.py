"""Published archives: where they are offered, by which checksum they are known, and how they are unpacked."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from outfield.errors import FileFormatError, StorageError
from outfield.files import download_file as download
from outfield.files import make_folder, new_file, reason, sha256_of
from outfield.progress import bar


@dataclass(frozen=True)
class Download:
    """A file that belongs to a published set: a tar archive, or a file that stays as it is.

    Args:
        url: Where it is offered.
        size: How many bytes it has.
        sha256: Its SHA-256, all 64 digits.
        into: The folder, inside of that in which sets are kept, where it goes or is unpacked.
    """

    url: str
    size: int
    sha256: str
    into: str = ""

    def fetch(self, folder: Path) -> None:
        """Get the file, and unpack it if it is an archive; one that is there already is not got again.

        Raises:
            StorageError: It cannot be had, or not be written.
            FileFormatError: Another file came, or an archive that would write outside of the folder.
        """
        place = folder / self.into
        make_folder(place)
        file = place / PurePosixPath(self.url).name
        kept = file.is_file() and sha256_of(file).startswith(self.sha256)
        if not kept:
            download(self.url, file, self.sha256, self.size)
        if ".tar" in file.suffixes:
            unpack(file, place)
            if not kept:
                with contextlib.suppress(OSError):  # it is no longer needed, but does no harm
                    file.unlink()


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a tar archive into a folder, over those that are there.

    Raises:
        FileFormatError: It is broken; or a member of it would lie outside of the folder, or is a link or a device.
        StorageError: A file cannot be written.
    """
    try:
        with tarfile.open(archive) as members, bar(f"unpacking {archive.name}", unit="files") as advance:
            for number, member in enumerate(members):
                place = folder / _name_inside(archive, member)
                if member.isdir():
                    make_folder(place)
                elif (content := members.extractfile(member)) is not None:
                    _write(content, place)
                advance(number + 1)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{archive} is truncated, or is not a tar archive ({error})") from error


def _name_inside(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    """The path of a member, if it is one of a file or folder inside."""
    name = PurePosixPath(member.name)
    inside = not name.is_absolute() and ".." not in name.parts and not os.path.isabs(member.name)
    if not inside or not (member.isreg() or member.isdir()):
        raise FileFormatError(
            f"{archive} holds {member.name!r}, which is a link, a device, or would lie outside of its folder; nothing of the "
            "kind is unpacked"
        )
    return name


def _write(content: IO[bytes], place: Path) -> None:
    """A file, whole or not at all; the disk is not waited for, because there may be a million of them."""
    make_folder(place.parent)
    try:
        with new_file(place.parent) as new:
            shutil.copyfileobj(content, new.file)
            new.move_to(place, to_disk=False)
    except OSError as error:
        raise StorageError(f"cannot write {place}: {reason(error)}") from error
