"""SetAside: `DIR/set-aside`, where bytes and files are kept for people to look at.

    damaged-00000000000000004096.7   what a repair has overwritten, from that position of the data on
    00000000000000012288.8           what a start has cut off behind the log
    data-..., index-...              files and bytes that do not belong there

The last number counts what came. Above `max_set_aside_bytes` the oldest goes, but never the newest of
each segment, or of each file that is none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import NamedTuple

from quorumlog.config import StoreConfig
from quorumlog.store.disk import Disk
from quorumlog.store.ledger_store import SetAsideCount
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME, NAME_DIGITS

log = logging.getLogger("quorumlog.store")

SET_ASIDE_NAME = "set-aside"
EARLIER_SET_ASIDE_NAME = "quarantine"
"""Until a start renames it (member_directory.py)."""
_POSITION = re.compile(rf"([0-9]{{{NAME_DIGITS}}})(-[0-9]+)?$")
"""The rest was the number of a copy in earlier releases."""


class _Kept(NamedTuple):
    number: int
    name: str
    origin: tuple[str, int]
    """The file that it is of."""
    size_bytes: int


class SetAside:
    def __init__(self, disk: Disk, directory: str, config: StoreConfig) -> None:
        self.count = SetAsideCount(0, 0)
        self._disk = disk
        self._directory = directory
        self._config = config
        self.path = f"{directory}/{SET_ASIDE_NAME}"

    def new_name(self, name: str) -> str:
        """A path in the folder, which exists then and whose name is on disk. Raises OSError."""
        self._disk.make_directory(self.path)
        self._disk.sync_directory(self._directory)
        number = max((_numbered(held)[1] for held in self._disk.list(self.path)), default=0) + 1
        return f"{self.path}/{name}.{number}"

    def take(self, path: str, name: str) -> str:
        """Move a file or folder here; returns its new path. Raises OSError."""
        target = self.new_name(name)
        self._disk.rename(path, target)
        self.came()
        self._disk.sync_directory(path.rpartition("/")[0])
        return target

    def write(self, target: str, pieces: Iterable[bytes], offset: int = 0) -> None:
        """Into a file of the folder, new or not; on disk when this returns. Raises OSError."""
        with closing(self._disk.open(target, create=not self._disk.exists(target))) as copy:
            for piece in pieces:
                copy.pwritev([piece], offset)
                offset += len(piece)
            copy.sync()
        self.came()

    def came(self) -> None:
        """Something new is here: sync its name, delete what is too much. Raises OSError."""
        self._disk.sync_directory(self.path)
        self.tidy()

    def tidy(self) -> None:
        """As far as that is possible. Any thread."""
        kept, limit_bytes = self._look(), self._config.max_set_aside_bytes
        newest = {each.origin: each for each in kept}
        left = sum(each.size_bytes for each in kept)
        for each in kept:
            if left > limit_bytes and newest[each.origin] is not each:
                with suppress(OSError):  # a folder, or people were faster
                    path = f"{self.path}/{each.name}"
                    self._disk.unlink(path)
                    left -= each.size_bytes
                    log.info(
                        "deleted %s (%d bytes): more than max_set_aside_bytes (%d) were set aside",
                        path,
                        each.size_bytes,
                        limit_bytes,
                    )
        self.look()

    def look(self) -> None:
        """Count what is here. Any thread."""
        kept = self._look()
        self.count = SetAsideCount(len(kept), sum(each.size_bytes for each in kept))

    def _look(self) -> list[_Kept]:
        """From the oldest on."""
        kept = []
        with suppress(OSError):
            for name in self._disk.list(self.path):
                stem, number = _numbered(name)
                with suppress(OSError):
                    size_bytes = self._disk.size_of(f"{self.path}/{name}")
                    kept.append(_Kept(number, name, self._origin(stem), size_bytes))
        return sorted(kept)

    def _origin(self, stem: str) -> tuple[str, int]:
        found = _POSITION.search(stem)
        if found is None:
            return stem, 0
        if stem.startswith(INDEX_NAME):
            return INDEX_NAME, int(found[1]) // self._config.index_segment_bytes
        return DATA_NAME, int(found[1]) // self._config.segment_bytes


def _numbered(name: str) -> tuple[str, int]:
    """The name as it was asked for, and its number; 0 for what an earlier release has kept."""
    stem, _, number = name.rpartition(".")
    return (stem, int(number)) if stem and number.isascii() and number.isdigit() else (name, 0)
