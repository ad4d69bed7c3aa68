"""Opening a folder of equal files that are named by their first byte: commit log and queues."""

from __future__ import annotations

import errno
import logging
from contextlib import closing

from quorumlog.config import StoreConfig
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.recovery import SetAside
from quorumlog.store.segment import Segment
from quorumlog.store.segments import NAME_DIGITS, SegmentList, segment_name

log = logging.getLogger("quorumlog.broker")

LARGEST_NAMED_SEGMENT = 2 * (1 << 30) - 1


def set_aside_of(disk: Disk, root: str, max_bytes: int, file_bytes: int) -> SetAside:
    """`ROOT/set-aside`: never in a folder that Java reads."""
    segment_bytes = max(512, min(file_bytes, LARGEST_NAMED_SEGMENT))
    return SetAside(disk, root, StoreConfig(max_set_aside_bytes=max_bytes, segment_bytes=segment_bytes))


def is_file_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def file_sizes(disk: Disk, folder: str) -> dict[int, int]:
    """Size by first byte, of files that have such a name."""
    return {
        int(name): disk.size_of(f"{folder}/{name}") for name in disk.list(folder) if is_file_name(name)
    }


def _is_folder(disk: Disk, path: str) -> bool:
    try:
        disk.list(path)
    except NotADirectoryError:
        return False
    return True


def open_file_list(
    disk: Disk,
    folder: str,
    file_bytes: int,
    *,
    option: str,
    set_aside: SetAside | None = None,
    writable: bool = True,
    sizes_are_known: bool = False,
) -> SegmentList:
    """What is no file of the list is set aside (`set_aside`), or left alone: Java would refuse the
    folder. Folders stay, such as `lost+found` of a disk that is mounted there. `sizes_are_known`: a
    shorter file was being cut when a crash came, and gets its length back, or is read as if it had it.
    Raises ConfigError where files have another size, StoreFailure where one is missing."""
    sizes = file_sizes(disk, folder)
    if sizes_are_known:
        for base in [base for base, size in sizes.items() if size < file_bytes]:
            if writable:
                with closing(disk.open(f"{folder}/{segment_name(base)}")) as short:
                    short.set_size(file_bytes)
                    short.sync()
            sizes[base] = file_bytes
    elif sizes and file_bytes not in sizes.values() and max(sizes.values()) > 0:
        found = max(sizes.values())
        raise ConfigError(
            f"the files in {folder} have {found} bytes, not {file_bytes}: set {option} to {found}"
        )
    if sizes and sizes[max(sizes)] == 0:
        del sizes[max(sizes)]  # RocketMQ makes the next file before it has its length
    for base, size in sizes.items():
        if size != file_bytes or base % file_bytes:
            raise ConfigError(
                f"{folder}/{segment_name(base)} has {size} bytes where files have {file_bytes}"
                f" ({option}): it was cut, or is of another store. Restore it from a copy"
            )
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        if set_aside is None or (is_file_name(name) and int(name) in sizes) or _is_folder(disk, path):
            continue
        try:
            kept = set_aside.take(path, f"{folder.rsplit('/', 1)[-1]}-{name}")
        except OSError as error:
            if error.errno != errno.EXDEV:  # a disk of its own is mounted there
                raise
            log.warning("%s does not belong there, and is left alone", path)
            continue
        log.warning("%s does not belong there: moved to %s", path, kept)
    bases = sorted(sizes)
    files = SegmentList(disk, folder, file_bytes, bases[0] if bases else 0)
    for base in bases:
        if base != files.end_position:
            files.close()
            raise StoreFailure(
                f"{folder}/{segment_name(files.end_position)} is missing between others: restore it."
                " Of a Java broker's commit log it may lie on another of the paths that its"
                " storePathCommitLog names: copy the files of all of them into that folder"
            )
        path = f"{folder}/{segment_name(base)}"
        try:
            files.adopt(Segment.open(disk, path, base, file_bytes, writable=writable))
        except OSError as error:
            raise StoreFailure(refusal(path, "opened", error)) from error
    files.reserved_position = files.end_position if not writable else files.first_position
    return files
