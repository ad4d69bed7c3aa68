"""Files are opened where no descriptor is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from quorumlog.store.disk import KeptDescriptors


def opening(refusals: int) -> Callable[[], str]:
    """Of a file, which needs as many descriptors that others had."""
    left = refusals

    def opened() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return "a file"

    return opened


def test_a_file_gets_a_descriptor_that_was_kept_and_a_connection_is_closed_for_it() -> None:
    files_get_kept_descriptors()


def files_get_kept_descriptors() -> None:
    kept, closed = KeptDescriptors(), list[str]()

    def close_one() -> None:
        closed.append("a connection")

    kept.keep(close_one)
    assert kept.opened(opening(0)) == "a file"
    assert not closed
    assert kept.opened(opening(3)) == "a file"
    assert len(closed) == 3
    kept.refill()
    for _ in range(8):
        kept.opened(opening(1))
    with pytest.raises(OSError, match="Too many open files"):
        kept.opened(opening(1))
    kept.refill()
    assert kept.opened(opening(1)) == "a file"
    kept.let_go(close_one)
    with pytest.raises(OSError, match="Too many open files"):
        kept.opened(opening(1))


def test_other_refusals_are_raised_as_they_are() -> None:
    kept = KeptDescriptors()

    def refused() -> None:
        raise FileNotFoundError(errno.ENOENT, "gone")

    def close_one() -> None:
        raise AssertionError

    kept.keep(close_one)
    with pytest.raises(FileNotFoundError):
        kept.opened(refused)
    kept.let_go(close_one)
