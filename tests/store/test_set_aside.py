"""What is kept for people is bounded: the oldest goes, never the newest of each file."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.recovery import SetAside
from quorumlog.testing.disk import SimDisk
from tests.store.log_making import (
    SMALL,
    append_numbered,
    new_store,
    numbered,
    open_store,
    read_log,
    repair_from,
    sync,
)
from tests.store.sim_logs import open_simulated
from tests.store.test_recovery import data_file, flip

LIMITED = replace(SMALL, max_set_aside_bytes=250)
"""Segments of 1024 bytes, index segments of 256."""


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "real" else SimDisk()


@pytest.fixture
def directory(disk: Disk, tmp_path: Path) -> str:
    disk.make_directory(f"{tmp_path}/m")
    return f"{tmp_path}/m"


def keep(folder: SetAside, disk: Disk, name: str, size_bytes: int = 100) -> str:
    path = folder.new_name(name)
    file = disk.open(path, create=True)
    file.pwritev([bytes(size_bytes)], 0)
    file.close()
    folder.came()
    return path.rpartition("/")[2]


def held(disk: Disk, directory: str) -> list[str]:
    names = disk.list(f"{directory}/set-aside")
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def test_the_oldest_goes_first_and_the_log_says_so(
    disk: Disk, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SetAside(disk, directory, LIMITED)
    caplog.set_level(logging.INFO, "quorumlog.store")
    for position in (0, 300, 900, 100, 0):
        keep(folder, disk, f"damaged-{position:020d}")
    assert held(disk, directory) == [f"damaged-{100:020d}.4", f"damaged-{0:020d}.5"]
    assert folder.count == (2, 200)
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == (
        f"deleted {directory}/set-aside/damaged-{0:020d}.1 (100 bytes): more than"
        " max_set_aside_bytes (250) were set aside"
    )


def test_the_newest_of_each_segment_stays_whatever_it_takes(disk: Disk, directory: str) -> None:
    folder = SetAside(disk, directory, LIMITED)
    for name in (
        f"damaged-{0:020d}",  # 1
        f"{1023:020d}",
        f"{1024:020d}",  # 3
        f"data-{2048:020d}",  # 4
        f"index-{0:020d}",
        f"index-{100:020d}",  # 6
        f"index-{256:020d}",  # 7
        "data-notes",
        "data-notes",  # 9
        f"{5:020d}",  # 10
    ):
        keep(folder, disk, name)
    numbers = [int(name.rpartition(".")[2]) for name in held(disk, directory)]
    assert numbers == [3, 4, 6, 7, 9, 10]
    assert folder.count == (6, 600)


def test_a_limit_of_zero_leaves_the_newest_of_each(disk: Disk, directory: str) -> None:
    folder = SetAside(disk, directory, replace(SMALL, max_set_aside_bytes=0))
    for _ in range(3):
        keep(folder, disk, f"{0:020d}")
    assert held(disk, directory) == [f"{0:020d}.3"]


def test_what_an_earlier_release_has_kept_is_older_than_all(disk: Disk, directory: str) -> None:
    disk.make_directory(f"{directory}/set-aside")
    for name in (f"damaged-{0:020d}", f"damaged-{0:020d}-2", f"{500:020d}"):
        file = disk.open(f"{directory}/set-aside/{name}", create=True)
        file.pwritev([bytes(100)], 0)
        file.close()
    folder = SetAside(disk, directory, LIMITED)
    assert keep(folder, disk, f"damaged-{0:020d}").endswith(".1")
    names = disk.list(f"{directory}/set-aside")
    assert len(names) == 2
    assert f"damaged-{0:020d}.1" in names


def test_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "m" / "data" / "folder").mkdir(parents=True)
    disk = OsDisk()
    folder = SetAside(disk, str(tmp_path / "m"), replace(SMALL, max_set_aside_bytes=0))
    folder.take(f"{tmp_path}/m/data/folder", "data-folder")
    (tmp_path / "m" / "data" / "folder").mkdir()
    folder.take(f"{tmp_path}/m/data/folder", "data-folder")
    assert held(disk, str(tmp_path / "m")) == ["data-folder.1", "data-folder.2"]


def test_repairs_and_starts_keep_to_the_limit_and_the_store_counts(tmp_path: Path) -> None:
    config = replace(SMALL, max_set_aside_bytes=600)
    for name in ("m", "twin"):
        store = new_store(str(tmp_path / name), config)
        append_numbered(store, 10)
        sync(store)
        store.close()
    twin, _ = open_store(str(tmp_path / "twin"), config)
    store, _ = open_store(str(tmp_path / "m"), config)
    assert store.set_aside.count == (0, 0)
    for _ in range(4):
        flip(data_file(tmp_path / "m"), 248 + 8)
        store.settle(store.examine(1, 2))
        repair_from(twin, store)
    assert store.set_aside.count == (2, 496)
    next((tmp_path / "m" / "set-aside").iterdir()).unlink()
    store.set_aside.look()
    assert store.set_aside.count == (1, 248)
    store.close()
    for name in ("a", "b", "c", "d"):
        (tmp_path / "m" / "data" / name).write_bytes(bytes(100))
    store, _ = open_store(str(tmp_path / "m"), config)
    assert store.set_aside.count == (5, 648)
    assert os.path.exists(tmp_path / "m" / "set-aside" / "data-d.8")
    store.close()
    store, _ = open_store(str(tmp_path / "m"), replace(config, max_set_aside_bytes=0))
    assert store.set_aside.count == (5, 648)
    store.close()
    twin.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EXDEV, errno.ENAMETOOLONG])
def test_a_stray_name_that_cannot_be_set_aside_refuses_no_start(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    disk = SimDisk()
    directory = open_simulated(disk)
    append_numbered(directory.store, 5)
    sync(directory.store)
    directory.close(clean=True)
    disk.kill()
    disk.write_file("m/data/stray", b"1")

    move = disk.rename

    def rename(old: str, new: str) -> None:
        if old == "m/data/stray":
            raise OSError(number, "refused", old)
        move(old, new)

    monkeypatch.setattr(disk, "rename", rename)
    directory = open_simulated(disk)
    assert read_log(directory.store) == numbered(5)
    assert "m/data/stray is not a segment and stays where it is: refused" in "; ".join(directory.report)
