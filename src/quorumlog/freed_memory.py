"""What a process has freed and its allocator keeps."""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> None:
    """To the system, after something large was taken apart. glibc keeps what lies below a block in use,
    and after one large buffer takes the next ones from there, too: a member that had read the state of
    100,000 sessions kept 50 MB for nothing. Milliseconds; elsewhere it does nothing."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


_libc = ctypes.CDLL(None)
