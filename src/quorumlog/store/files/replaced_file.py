"""Small text files that are replaced as a whole: written beside, then renamed over the old one. A crash
may leave `NAME.tmp`, which nobody reads and the next write removes."""

from __future__ import annotations

import posixpath
from contextlib import closing

from quorumlog.store.disk import Disk, is_no_damage, reason_of


def read_file(disk: Disk, path: str) -> bytes | None:
    """The whole content, or None if there is no such file."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    with closing(file):
        return file.pread(file.size(), 0)


def read_readable(disk: Disk, path: str) -> tuple[bytes | None, str]:
    """As `read_file`, for a file that one can go on without: None and a problem where the disk cannot
    read it. Raises OSError if that is no damage."""
    try:
        return read_file(disk, path), ""
    except OSError as error:
        if is_no_damage(error):
            raise
        return None, f"cannot be read: {reason_of(error)}"


def replace_file(disk: Disk, path: str, data: bytes, *, synced: bool) -> None:
    """Raises OSError; the old content is whole then. `synced`: first content, then name are on disk when
    this returns, so that the name never stands for an empty file."""
    temporary = path + ".tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    with closing(disk.open(temporary, create=True)) as file:
        file.pwritev([data], 0)
        if synced:
            file.sync()
    disk.rename(temporary, path)
    if synced:
        disk.sync_directory(posixpath.dirname(path))


def parse_properties(text: str) -> dict[str, str]:
    """`key=value` lines as Java's Properties writes them for plain ASCII values. A last line without a
    line feed was cut off by a crash, and is left out."""
    pairs = (line.partition("=") for line in text[: text.rfind("\n") + 1].splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals and key[:1] not in "#!"}
