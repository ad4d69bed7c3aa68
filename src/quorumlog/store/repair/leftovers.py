"""What a crash has left beside the log: files that were not given their name, and what is in the way."""

from __future__ import annotations

from contextlib import suppress

from quorumlog.config import StoreConfig
from quorumlog.store.disk import Disk, is_folder
from quorumlog.store.files.start_file import START_NAME
from quorumlog.store.files.state_files import STATES_NAME
from quorumlog.store.repair.set_aside import SetAside


def remove_leftovers(disk: Disk, directory: str, config: StoreConfig) -> list[str]:
    """For a start of the process; returns what it did, in sentences. Nothing depends on it."""
    lines: list[str] = []
    folder = f"{directory}/{STATES_NAME}"
    left = [f"{directory}/{START_NAME}.tmp"]
    set_aside = SetAside(disk, directory, config)
    try:
        names = disk.list(folder)
    except NotADirectoryError:
        names = []
        set_aside.take(folder, STATES_NAME)
        lines.append(f"{folder} is no folder, set aside")
    for name in names:
        path = f"{folder}/{name}"
        if is_folder(disk, path):
            set_aside.take(path, f"{STATES_NAME}-{name}")
            lines.append(f"{path} is a folder, set aside")
        elif name.endswith(".tmp"):
            left.append(path)
    for path in left:
        if disk.exists(path):
            with suppress(OSError):  # a folder, or a full disk
                disk.unlink(path)
    return lines
