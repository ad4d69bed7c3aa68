"""A directory of an earlier release: its damaged ranges are in `healing`, its copies in `quarantine`.

The fixture is of such a release: entries 22 to 32 went with a lost segment, and a file that is no
segment was put away.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.verification import inspect_directory, verify_directory
from tests.store.log_making import repair_from
from tests.store.made_logs import make_directory, open_small
from tests.store.stopping_disk import Stopped, StoppingDisk
from tests.unpacking import unpack

FIXTURE = Path(__file__).parent.parent / "fixtures" / "before-names" / "member.tar.xz"
EARLIER, NEW = {"healing", "quarantine"}, {"damaged", "set-aside"}
KEPT = "data-notes.txt.1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    unpack(FIXTURE, tmp_path)
    return tmp_path / "n0"


def names_of(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()} & (EARLIER | NEW)


def damaged_after_a_start(path: Path, disk: Disk | None = None) -> list[tuple[int, int]]:
    directory = open_small(path, disk=disk)
    damaged = [(each.first_index, each.stop_index) for each in directory.store.damaged]
    directory.close(clean=False)
    return damaged


def test_a_start_renames_both_once_and_the_log_is_mended(path: Path, tmp_path: Path) -> None:
    assert names_of(path) == EARLIER
    ranges = (path / "healing").read_bytes()
    disk = StoppingDisk()
    assert damaged_after_a_start(path, disk) == [(22, 33)]
    renamed = disk.steps.index(("rename", f"{path}/damaged"))
    assert disk.steps[renamed : renamed + 3] == [
        ("rename", f"{path}/damaged"),
        ("rename", f"{path}/set-aside"),
        ("sync_directory", str(path)),
    ]
    assert names_of(path) == NEW
    assert (path / "damaged").read_bytes() == ranges
    assert (path / "set-aside" / KEPT).read_bytes() == b"hello"
    again = StoppingDisk()
    assert damaged_after_a_start(path, again) == [(22, 33)]
    assert ("rename", f"{path}/set-aside") not in again.steps

    twin = open_small(make_directory(tmp_path / "twin"))
    directory = open_small(path)
    assert repair_from(twin.store, directory.store) == [(22, 33)]
    for each in (twin, directory):
        each.close(clean=True)
    assert verify_directory(OsDisk(), str(path)).ok
    assert names_of(path) == {"set-aside"}


def test_tools_read_either_name_and_rename_nothing(path: Path) -> None:
    def seen() -> tuple[object, ...]:
        with DirectoryReader(OsDisk(), str(path)) as reader:
            damaged = reader.damaged
        view = inspect_directory(OsDisk(), str(path))
        return damaged, verify_directory(OsDisk(), str(path)).to_json()["damaged"], view.damage

    before = seen()
    assert before[0]
    assert names_of(path) == EARLIER
    damaged_after_a_start(path)
    assert seen() == before
    (path / "damaged").rename(path / "healing")
    (path / "healing").write_bytes(b"[]\ncrc32=0\n")
    assert verify_directory(OsDisk(), str(path)).problem.startswith("healing: is unreadable")


def test_where_both_are_there_the_earlier_counts_and_nothing_is_lost(path: Path) -> None:
    """An earlier release has run on a directory that had the new names."""
    (path / "damaged").write_bytes(b"[]\ncrc32=0\n")
    (path / "set-aside").mkdir()
    (path / "set-aside" / "data-other.7").write_bytes(b"other")
    assert json.loads((path / "healing").read_text().partition("\n")[0])
    assert damaged_after_a_start(path) == [(22, 33)]
    assert names_of(path) == NEW
    kept = {str(each.relative_to(path / "set-aside")) for each in (path / "set-aside").rglob("*")}
    assert kept == {"data-other.7", "quarantine.8", f"quarantine.8/{KEPT}"}


@pytest.mark.parametrize("has_both", [False, True])
def test_killed_at_every_step_of_the_renaming(path: Path, tmp_path: Path, has_both: bool) -> None:
    if has_both:
        (path / "damaged").write_bytes(b"[]\ncrc32=0\n")
        (path / "set-aside").mkdir()
    copy = tmp_path / "copy"
    stop_at = 0
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        try:
            open_small(copy, disk=StoppingDisk(stop_at)).close(clean=False)
        except Stopped:
            pass
        else:
            break
        with DirectoryReader(OsDisk(), str(copy)) as reader:
            assert [(each.first_index, each.stop_index) for each in reader.damaged] == [(22, 33)]
        assert damaged_after_a_start(copy) == [(22, 33)], stop_at
        assert names_of(copy) == NEW
        assert [each.read_bytes() for each in copy.rglob(KEPT)] == [b"hello"], stop_at
        stop_at += 1
    assert stop_at > 3
