"""What a crash has left beside the log: files that were not given their name, and what is in the way."""

from __future__ import annotations

from contextlib import suppress

from quorumlog.config import StoreConfig
from quorumlog.store.disk import Disk
from quorumlog.store.files.start_file import START_NAME
from quorumlog.store.files.state_files import STATES_NAME
from quorumlog.store.repair.set_aside import SetAside


def remove_leftovers(disk: Disk, directory: str, config: StoreConfig) -> list[str]:
    """For a start of the process; returns what it did, in sentences. Nothing depends on it."""
    lines: list[str] = []
    folder = f"{directory}/{STATES_NAME}"
    left = [f"{directory}/{START_NAME}.tmp"]
    try:
        left += [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".tmp")]
    except NotADirectoryError:
        SetAside(disk, directory, config).take(folder, STATES_NAME)
        lines.append(f"{folder} is no folder, set aside")
    for path in left:
        if disk.exists(path):
            with suppress(OSError):  # a folder, or a full disk
                disk.unlink(path)
    return lines
