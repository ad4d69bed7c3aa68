"""The raw limit of a disk: measured, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.bench.raw_limit import measure_raw_limit, scratch_directory
from quorumlog.errors import ConfigError


def test_the_raw_limit_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    limit = measure_raw_limit(str(tmp_path), 4096, 0.1)
    assert limit.syncs_per_second > 0
    assert limit.sync_p50_ms > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_to_be_measured_is_named_with_its_words() -> None:
    with pytest.raises(ConfigError, match=r"^the disk of /proc cannot be measured: .Errno .* make room"):
        measure_raw_limit("/proc", 4096, 0.1)


def test_a_directory_that_takes_no_files_is_refused_with_the_option() -> None:
    with (
        pytest.raises(ConfigError, match=r"^/proc takes no files .*--raw-dir"),
        scratch_directory(Path("/proc")),
    ):
        pass
