"""What of a file the operating system holds in memory, asked of itself (mincore)."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from quorumlog.store.disk import OsDisk

PAGE = 4096


def is_cached(path: Path, position: int) -> bool:
    """Is the page in memory? Asking does not bring it there."""
    answer = ctypes.c_ubyte()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        first_byte = ctypes.c_char.from_buffer(memory)
        page = ctypes.c_void_p(ctypes.addressof(first_byte) + position // PAGE * PAGE)
        result = ctypes.CDLL(None).mincore(page, ctypes.c_size_t(PAGE), ctypes.byref(answer))
        del first_byte
    assert result == 0, path
    return bool(answer.value & 1)


def skip_unless_it_forgets(folder: Path) -> None:
    """Skip the test where files have no other place than memory."""
    path = folder / "probe"
    path.write_bytes(bytes(2 * PAGE))
    file = OsDisk().open(str(path))
    file.sync()
    file.uncache(0, 2 * PAGE)
    file.close()
    if is_cached(path, 0):
        pytest.skip(f"the file system of {folder} keeps everything in memory")
