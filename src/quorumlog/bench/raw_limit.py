"""The limit of the disk itself: three plain writers at once, each writing and syncing as a member would.

A replicated append cannot be faster than the disk that every member syncs. Three processes `pwrite` and
`fdatasync` the same sizes, into reserved space that was never written: to overwrite the same blocks is
up to four times faster. A workload is shown as a share of the middle one: a quorum needs two of three.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.config import StoreConfig
from quorumlog.errors import ConfigError

WRITERS = 3
RAW_SECONDS_LIMIT = 2.0
"""Beside a load: longer says no more."""
_RESERVE_STEP_BYTES = StoreConfig().reserve_step_bytes
_FILE_BYTES_LIMIT = 1 << 30
"""Of each writer: a measurement ends there, however short it was."""
_START_DELAY_S = 0.5
"""By then every writer has started and made its file."""


class RawLimit(NamedTuple):
    """Of the middle writer of three."""

    syncs_per_second: float
    sync_p50_ms: float
    """One write and its sync."""


def measure_raw_limit(
    folder: str, write_bytes: int, seconds: float, *, writers: int = WRITERS
) -> RawLimit:
    """All writers write pieces of `write_bytes` into files of `folder` over the same `seconds`.

    Raises ConfigError with the writer's words if one fails, as on a full disk.
    """
    os.makedirs(folder, exist_ok=True)
    begin_s = time.time() + _START_DELAY_S
    command = [sys.executable, "-m", __name__, folder, str(write_bytes), str(begin_s), str(seconds)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(writers)
    ]
    try:
        results = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode != 0:
                words = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
                raise ConfigError(
                    f"the disk of {folder} cannot be measured: {words}; each of {writers} writers needs"
                    f" up to {_FILE_BYTES_LIMIT >> 20} MiB there: make room, or name another directory"
                    " (quorumlog bench: --raw-dir)"
                )
            results.append(RawLimit(*msgspec.json.decode(output, type=tuple[float, float])))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return sorted(results)[writers // 2]


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[str | None]:
    """A temporary directory inside `parent`; None without one. Raises ConfigError if it takes none."""
    if parent is None:
        yield None
        return
    try:
        directory = tempfile.TemporaryDirectory(prefix="quorumlog-raw-", dir=parent)
    except OSError as error:
        raise ConfigError(
            f"{parent} takes no files ({error.strerror}): name another directory on the members' disk"
            " (quorumlog bench: --raw-dir)"
        ) from None
    with directory as scratch:
        yield scratch


@contextmanager
def unnamed_file(folder: str, flags: int = 0) -> Iterator[int]:
    """The descriptor of an empty file that ends with the process."""
    path = os.path.join(folder, f"quorumlog-{os.getpid()}-{time.monotonic_ns()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
    try:
        os.unlink(path)
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _write(folder: str, write_bytes: int, begin_s: float, seconds: float) -> RawLimit:
    piece = os.urandom(write_bytes)
    with unnamed_file(folder) as descriptor:
        reserved = max(_RESERVE_STEP_BYTES, write_bytes)
        os.posix_fallocate(descriptor, 0, reserved)
        os.fsync(descriptor)
        time.sleep(max(0.0, begin_s - time.time()))
        took_s: list[float] = []
        position = 0
        began = before = time.perf_counter()
        while before - began < seconds and position < _FILE_BYTES_LIMIT:
            if position + write_bytes > reserved:
                step = max(_RESERVE_STEP_BYTES, write_bytes)
                os.posix_fallocate(descriptor, reserved, step)
                reserved += step
            os.pwrite(descriptor, piece, position)
            os.fdatasync(descriptor)
            now = time.perf_counter()
            took_s.append(now - before)
            before = now
            position += write_bytes
        return RawLimit(len(took_s) / (before - began), float(np.median(took_s)) * 1000)


if __name__ == "__main__":
    try:
        result = _write(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    except OSError as refusal:
        sys.exit(str(refusal))
    sys.stdout.write(msgspec.json.encode(result).decode())
