"""Memory that a process has freed and its allocator keeps."""

from __future__ import annotations

from contextlib import suppress


def give_back_freed_memory() -> None:
    """To the system, after something large was taken apart. glibc keeps memory below a block in use, and
    after one large buffer takes the next ones from there, too: a member that had read the state of
    100,000 sessions kept 50 MB for nothing. It takes some 20 ms, so call it outside the loop; without
    glibc it does nothing."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
