"""Archives of the fixtures, unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """`filter` came with 3.11.4 and is demanded from 3.14 on."""
    with tarfile.open(archive) as members:
        if hasattr(tarfile, "data_filter"):
            members.extractall(folder, filter="data")
        else:
            members.extractall(folder)
