"""MemberDirectory: made once, opened as what it was, never taken for what it is not."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumlog.config import GroupConfig, MemberAddress, StoreConfig
from quorumlog.entry import Durability, Formation, HardState, Replica, SetBack
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk, os_error
from quorumlog.store.durable_file import read_durable_point
from quorumlog.store.log_points import LOG_ORIGIN, LogPoint
from quorumlog.store.member_directory import open_directory_of
from quorumlog.store.state_files import (
    Checkpoint,
    load_checkpoint,
    load_member,
    read_hard_state,
    save_checkpoint,
)
from quorumlog.store.verification import verify_directory
from quorumlog.testing.disk import SimDisk
from tests.store.made_logs import SMALL, append, fill, flip, open_small, opened, sync
from tests.store.stopping_disk import Stopped, StoppingDisk

disk = OsDisk()
N1 = Replica("n1", "d1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n0"


def spoil(path: Path, name: str) -> None:
    (path / name).write_bytes(bytes(8192))


# ---------------------------------------------------------------- making


def test_a_new_directory_is_complete(path: Path) -> None:
    with opened(path) as directory:
        assert directory.hard_state == HardState(0, None)
        assert directory.formation == Formation()
        assert directory.store.end == LOG_ORIGIN
        assert directory.committed_index == -1
        assert directory.durability is Durability.SYNC
        assert len(directory.directory_id) == 32
        assert directory.renewed == "the directory was empty"
        assert directory.problems() == ()
    assert {"member", "hardstate", "durable", "lock", "data", "index"} <= set(os.listdir(path))


def test_parents_are_made_and_their_names_synced(tmp_path: Path) -> None:
    counting = StoppingDisk()
    with opened(tmp_path / "a" / "b" / "n0", disk=counting):
        pass
    member = counting.steps.index(("rename", f"{tmp_path}/a/b/n0/member"))
    for name in (str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"):
        assert ("sync_directory", name) in counting.steps[:member]


def test_names_are_synced_where_symbolic_links_lead_and_where_they_stand(tmp_path: Path) -> None:
    real = tmp_path / "volumes" / "disk1"
    real.mkdir(parents=True)
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "data").symlink_to(real)
    watched = StoppingDisk()
    with opened(tmp_path / "srv" / "data" / "n0", disk=watched):
        synced = {path for what, path in watched.steps if what == "sync_directory"}
    assert {f"{tmp_path}/{name}" for name in ("srv", "volumes", "volumes/disk1")} <= synced


def test_a_parent_that_this_process_may_not_look_into_is_left_alone(path: Path) -> None:
    def refuse(what: str, name: str) -> OSError | None:
        is_above = str(path).startswith(f"{name}/")
        return PermissionError(errno.EACCES, "no") if what == "sync_directory" and is_above else None

    with opened(path, disk=StoppingDisk(refuse=refuse)) as directory:
        assert directory.renewed == "the directory was empty"


def test_it_is_the_same_directory_at_the_next_start(path: Path) -> None:
    with opened(path) as directory:
        first_id = directory.directory_id
        directory.save_hard_state(HardState(3, N1))
        founding = (Replica("n0", first_id), N1, Replica("n2", "d2"))
        directory.save_formation(Formation(founding, pending_id="ab" * 16))
        directory.save_formation(Formation((), founding, "ab" * 16))
        fill(directory, 20, term=3)
        end = directory.store.end
    with opened(path) as again:
        assert again.directory_id == first_id
        assert again.renewed == ""
        assert again.hard_state == HardState(3, N1)
        assert again.formation == Formation((), founding, "ab" * 16)
        assert again.store.end == end
        assert again.store.durable == end
        assert again.committed_index == 19
        assert again.report == ()
        for changed in (Formation((), (N1,), "ab" * 16), Formation((), founding, "cd" * 16)):
            with pytest.raises(AssertionError):
                again.save_formation(changed)


def test_member_is_written_last(path: Path) -> None:
    counting = StoppingDisk()
    open_small(path, disk=counting).close(clean=False)
    at = counting.steps.index(("rename", f"{path}/member"))
    before = counting.steps[:at]
    for name in ("hardstate", "durable"):
        last_sync = max(i for i, step in enumerate(before) if step == ("sync", f"{path}/{name}"))
        assert ("write", f"{path}/{name}") not in counting.steps[last_sync:at]
        assert ("sync_directory", str(path)) in before[last_sync:]
    assert counting.steps[at + 1] == ("sync_directory", str(path))


def test_a_creation_that_was_killed_at_any_step_is_made_again(tmp_path: Path) -> None:
    was_used = 0
    for stop_at in range(200):
        path = tmp_path / str(stop_at)
        try:
            open_small(path, disk=StoppingDisk(stop_at)).close(clean=False)
        except Stopped:
            pass
        else:
            break
        known = load_member(disk, str(path)) if path.exists() else None
        with opened(path) as directory:
            assert directory.store.end == LOG_ORIGIN
            assert directory.hard_state == HardState(0, None)
            if known is not None:
                was_used += 1
                assert directory.directory_id == known.directory_id
                assert directory.renewed == ""
            fill(directory, 5)
        with opened(path) as directory:
            assert directory.store.end.index == 4
    else:
        pytest.fail("a creation has more steps than this test knows")
    assert was_used > 0
    assert stop_at > 20


@pytest.mark.parametrize("name", ["member", "hardstate", "durable", "data", "index"])
def test_an_unused_directory_that_lost_a_file_before_member_was_there_is_made_again(
    path: Path, name: str
) -> None:
    with opened(path) as directory:
        first_id = directory.directory_id
    shutil.rmtree(path / "data")
    (path / "data").mkdir()
    shutil.rmtree(path / "index")
    (path / "index").mkdir()
    (path / "member").unlink()
    if name in ("data", "index"):
        (path / name).rmdir()
    elif name != "member":
        (path / name).unlink()
    with opened(path) as directory:
        assert directory.directory_id != first_id
        assert directory.renewed == "the directory was empty"


# ---------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group": "other"}, ["--group", "g", "other"]),
        ({"member_id": "n9"}, ["--id", "n0", "n9"]),
        (
            {"config": StoreConfig(segment_bytes=2048, index_segment_bytes=320)},
            ["segment_bytes", "1024", "2048"],
        ),
        (
            {"config": StoreConfig(segment_bytes=1024, index_segment_bytes=640)},
            ["index_segment_bytes", "320", "640"],
        ),
    ],
)
def test_a_directory_of_another_member_is_refused_by_name(
    path: Path, options: dict[str, object], words: list[str]
) -> None:
    with opened(path):
        pass
    with pytest.raises(ConfigError) as raised, opened(path, **options):
        pass
    for word in [*words, str(path)]:
        assert word in str(raised.value)
    with opened(path):  # and the refusal let the lock go
        pass


def test_two_processes_cannot_use_one_directory(path: Path) -> None:
    with opened(path), pytest.raises(ConfigError, match="in use by another process"):
        open_small(path)
    with opened(path):
        pass


@pytest.fixture
def no_umask() -> Iterator[None]:
    """What is kept from others is kept by the modes themselves."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[bool, set[int]]:
    """Of folders (True) and files (False), `path` included."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for each in (path, *path.rglob("*")):
        found[each.is_dir()].add(stat.S_IMODE(each.stat().st_mode))
    return found


@pytest.mark.usefixtures("no_umask")
def test_what_a_member_keeps_is_for_its_user_alone(path: Path) -> None:
    with opened(path) as directory:
        fill(directory, 40)
        directory.write_checkpoint(directory.store.durable)
        end = directory.store.end.position
    base = end // SMALL.segment_bytes * SMALL.segment_bytes
    with (path / "data" / f"{base:020d}").open("r+b") as file:
        file.seek(end - base)
        file.write(b"torn")
    with opened(path) as directory:
        fill(directory, 40)
    assert any((path / "set-aside").iterdir())
    assert modes(path) == {True: {0o700}, False: {0o600}}


def test_a_directory_open_to_others_is_used_as_it_is_and_named_in_the_log(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)
    with opened(path) as directory:
        said = [line for line in directory.report if "other users" in line]
        assert len(said) == 1
        assert f"{path} " in said[0]
        assert "0750" in said[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    for private in (0o700, 0o2700, 0o1700):
        path.chmod(private)
        with opened(path) as directory:
            assert directory.report == ()


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="is a file; choose another directory") as refusal:
            open_small(path)
        assert "Errno" not in str(refusal.value)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_no_permission_names_the_directory(path: Path, number: int) -> None:
    path.mkdir()

    def refuse(what: str, _: str) -> OSError | None:
        return OSError(number, os.strerror(number)) if what == "make_directory" else None

    with pytest.raises(ConfigError, match=str(path)):
        open_small(path, disk=StoppingDisk(refuse=refuse))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission(path: Path) -> None:
    path.mkdir(mode=0o555)
    with pytest.raises(ConfigError, match="no permission"):
        open_small(path)


def test_a_log_without_a_member_file_is_never_overwritten(path: Path) -> None:
    with opened(path) as directory:
        fill(directory, 10)
    (path / "member").unlink()
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="inspect, verify and read"):
        open_small(path)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", ["checkpoint", "currterm", "holiday.jpg"])
def test_a_directory_with_files_of_other_software_is_refused(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).write_text("x")
    with pytest.raises(ConfigError, match=name):
        open_small(path)
    assert os.listdir(path) == [name]


def test_a_member_id_that_no_vote_could_name_is_refused(path: Path) -> None:
    with opened(path, member_id="n" * 255) as directory:
        directory.save_hard_state(HardState(1, Replica("n" * 255, directory.directory_id)))
    with pytest.raises(ConfigError, match="--id"):
        open_small(path.with_name("other"), member_id="n" * 256)


def test_a_damaged_member_file_stops_the_start(path: Path) -> None:
    with opened(path):
        pass
    flip(path / "member", 20)
    with pytest.raises(StoreFailure, match="member cannot be used"):
        open_small(path)


def test_an_old_hard_state_that_was_put_back_is_noticed(path: Path) -> None:
    with opened(path) as directory:
        fill(directory, 10, term=1)
        old = (path / "hardstate").read_bytes()
        directory.save_hard_state(HardState(6, None))
        append(directory.store, [b"x"], 6)
        sync(directory.store)
    (path / "hardstate").write_bytes(old)
    with pytest.raises(DirectoryDamaged, match="of term 1, but the log holds entries of term 6"):
        open_small(path)


# ---------------------------------------------------------------- identity


@pytest.mark.parametrize("name", ["hardstate", "durable"])
@pytest.mark.parametrize("lost", ["spoiled", "deleted"])
def test_a_directory_that_forgot_is_a_new_one_with_the_old_log(path: Path, name: str, lost: str) -> None:
    with opened(path) as directory:
        first_id = directory.directory_id
        directory.save_hard_state(HardState(4, N1))
        founding = (Replica("n0", first_id), N1)
        directory.save_formation(Formation((), founding))
        fill(directory, 30, term=4)
        end = directory.store.end
    if lost == "spoiled":
        spoil(path, name)
    else:
        (path / name).unlink()
    with opened(path) as directory:
        assert directory.directory_id != first_id
        assert name in directory.renewed
        assert directory.formation == Formation((), founding)
        assert directory.store.end == directory.store.durable == end
        assert directory.hard_state.term == 4
        second_id = directory.directory_id
    with opened(path) as directory:
        assert directory.directory_id == second_id
        assert directory.renewed == ""


def test_a_directory_that_was_found_older_than_it_was_is_a_new_one_with_the_old_log(path: Path) -> None:
    with opened(path) as directory:
        first_id = directory.directory_id
        fill(directory, 30, term=4)
        end = directory.store.end
        directory.save_hard_state(HardState(4, N1))
        directory.set_back(SetBack(directory.directory_id, 50, 29))
        assert directory.directory_id == first_id, "it is of no use any more, and speaks for nobody"
    with opened(path) as directory:
        assert directory.directory_id != first_id
        assert "rolled back" in directory.renewed
        assert "(now ends at 29, had acknowledged entry 50)" in directory.renewed
        assert directory.store.end == end
        second_id, sentence = directory.directory_id, directory.renewed
    with opened(path) as directory:
        assert (directory.directory_id, directory.renewed) == (second_id, sentence)
        directory.count_again()
        assert directory.renewed == ""
    with opened(path) as directory:
        assert (directory.directory_id, directory.renewed) == (second_id, "")


def test_a_verified_directory_that_got_another_id_is_sound(path: Path) -> None:
    """Killed before anything was written on: what the files say of their owner fits."""
    with opened(path, clean=False) as directory:
        fill(directory, 30, term=4)
        sync(directory.store)
        directory.save_hard_state(HardState(4, N1))
        directory.set_back(SetBack(directory.directory_id, 50, 29))
    assert verify_directory(OsDisk(), str(path)).damage == ()
    with opened(path, clean=False):
        pass
    assert verify_directory(OsDisk(), str(path)).damage == ()


def test_a_new_id_does_not_keep_what_was_pending_with_the_old_one(path: Path) -> None:
    with opened(path) as directory:
        pending = (Replica("n0", directory.directory_id), N1)
        directory.save_formation(Formation(pending, pending_id="ab" * 16))
    spoil(path, "hardstate")
    with opened(path) as directory:
        assert directory.formation == Formation()


def test_the_new_id_is_on_disk_before_the_files_are_made_again(path: Path) -> None:
    with opened(path) as directory:
        first_id = directory.directory_id
    spoil(path, "hardstate")
    spoil(path, "durable")
    for stop_at in range(200):
        copy = path.with_name(f"copy{stop_at}")
        shutil.copytree(path, copy)
        try:
            open_small(copy, disk=StoppingDisk(stop_at)).close(clean=False)
        except Stopped:
            pass
        else:
            break
        record = load_member(disk, str(copy))
        assert record is not None
        remade = read_hard_state(disk, str(copy)), read_durable_point(disk, str(copy))
        if remade != (None, None):
            assert record.directory_id != first_id, "it would speak for what it forgot"
        with opened(copy) as directory:
            assert directory.directory_id != first_id
    assert stop_at > 10


def test_a_bad_tail_of_a_log_without_a_durable_point_is_cut_and_kept_aside(path: Path) -> None:
    with opened(path) as directory:
        fill(directory, 30)
    spoil(path, "durable")
    flip(path / "data" / f"{2048:020d}", 40)  # a header in the last segment that holds entries
    with opened(path) as directory:
        assert 10 < directory.store.end.index < 29
        kept = directory.store.end
        assert directory.report
        fill(directory, kept.index + 5, term=2)
    with opened(path) as directory:
        assert directory.store.end.index == kept.index + 4


# ---------------------------------------------------------------- checkpoint and stop


@pytest.mark.parametrize(
    ("change", "believed"),
    [
        ({}, True),
        ({"committed_index": 18}, False),
        ({"committed_index": 500}, False),
        ({"committed_index": -5}, False),
        ({"committed_term": 2}, False),
        ({"committed_chain": 1}, False),
        ({"end_index": 3}, True),
    ],
)
def test_a_checkpoint_counts_only_if_the_log_holds_exactly_that_entry(
    path: Path, change: dict[str, int], believed: bool
) -> None:
    with opened(path) as directory:
        fill(directory, 20)
    checkpoint = load_checkpoint(disk, str(path))
    assert checkpoint is not None
    save_checkpoint(disk, str(path), checkpoint._replace(**change))
    with opened(path) as directory:
        assert directory.committed_index == (19 if believed else -1)


def test_a_checkpoint_never_runs_ahead_of_the_disk(path: Path) -> None:
    with opened(path) as directory:
        fill(directory, 3)
        append(directory.store, [b"not synced yet"], 1)
        with pytest.raises(AssertionError):
            directory.write_checkpoint(directory.store.end)


def test_a_checkpoint_that_an_asynchronous_cut_overtook_is_dropped(path: Path) -> None:
    config = dataclasses.replace(SMALL, flush="async")
    with opened(path, config=config) as directory:
        fill(directory, 20)
        late = directory.store.end
        directory.store.truncate_from(10)
        directory.write_checkpoint(late)
        assert directory.store.end.index == 9
    with opened(path, config=config) as directory:
        assert directory.committed_index == -1  # the checkpoint of before names an entry that is gone


def test_checkpoints_are_written_by_other_threads(path: Path) -> None:
    calls = itertools.count()

    def refuse(what: str, name: str) -> OSError | None:
        # Every third write of a small file finds no space, so that each thread repeats the other's.
        no_space = what == "write" and name.endswith(".tmp") and next(calls) % 3 == 0
        return OSError(errno.ENOSPC, "No space left on device") if no_space else None

    with opened(path) as directory:
        fill(directory, 5)
    with opened(path, disk=StoppingDisk(refuse=refuse)) as directory:
        point = directory.store.end
        with ThreadPoolExecutor(2) as pool:
            written = [pool.submit(directory.write_checkpoint, point) for _ in range(60)]
            for term in range(2, 40):
                directory.save_hard_state(HardState(term, None))
            for checkpoint in written:
                checkpoint.result()
        while directory.problems():
            directory.write_checkpoint(point)
    assert read_hard_state(disk, str(path)) == HardState(39, None)


def test_no_space_for_the_checkpoint_is_shown_and_retried(path: Path) -> None:
    full = [False]

    def refuse(what: str, name: str) -> OSError | None:
        no_space = full[0] and what == "write" and name.endswith(".tmp")
        return OSError(errno.ENOSPC, "No space left on device") if no_space else None

    with opened(path, disk=StoppingDisk(refuse=refuse)) as directory:
        fill(directory, 5)
        full[0] = True
        directory.write_checkpoint(directory.store.end)
        (problem,) = directory.problems()
        assert "checkpoint" in problem
        assert problem.endswith("No space left on device; make space on its file system")
        full[0] = False
        directory.write_checkpoint(directory.store.end)
        assert directory.problems() == ()
    assert load_checkpoint(disk, str(path)) == Checkpoint(4, 4, 1, directory.store.end.chain)


def test_a_clean_stop_leaves_nothing_unsynced(path: Path) -> None:
    counting = StoppingDisk()
    directory = open_small(path, disk=counting)
    fill(directory, 5)
    append(directory.store, [b"last"], 1)
    end = directory.store.end
    counting.steps.clear()
    directory.close(clean=True)
    synced = {
        Path(name).parent.name + "/" + Path(name).name for what, name in counting.steps if what == "sync"
    }
    assert "n0/durable" in synced
    assert any(name.startswith("data/") for name in synced)
    durable = read_durable_point(disk, str(path))
    assert durable is not None and durable.point == end


def test_a_kill_syncs_nothing_and_the_next_start_keeps_what_was_written(path: Path) -> None:
    counting = StoppingDisk()
    directory = open_small(path, disk=counting)
    fill(directory, 5)
    append(directory.store, [b"never synced"], 1)
    counting.steps.clear()
    directory.close(clean=False)
    assert counting.steps == []
    with opened(path) as again:
        assert again.store.end.index == again.store.durable.index == 5


def test_the_durable_point_is_synced_on_request(path: Path) -> None:
    counting = StoppingDisk()
    with opened(path, disk=counting) as directory:
        fill(directory, 5)
        directory.sync_durable_point()
        counting.steps.clear()
        directory.sync_durable_point()
        assert counting.steps == []


# ---------------------------------------------------------------- memory


def test_a_member_in_memory_is_a_new_one_at_every_start() -> None:
    config = GroupConfig("n1", (MemberAddress("n1", "h", 1),), "/n1", store="memory", storage=SMALL)
    disk = SimDisk()
    first, second = open_directory_of(config, disk), open_directory_of(config, disk)
    assert first.directory_id != second.directory_id
    assert first.durability is Durability.MEMORY
    assert first.renewed == "a member in memory has a new directory at every start"
    first.save_hard_state(HardState(2, N1))
    first.save_formation(Formation((), (N1,)))
    append(first.store, [b"a", b"b"], 2)
    sync(first.store)
    first.write_checkpoint(first.store.end)
    first.sync_durable_point()
    assert (first.hard_state, first.formation) == (HardState(2, N1), Formation((), (N1,)))
    assert first.store.durable.index == 1
    assert first.problems() == ()
    with pytest.raises(AssertionError):
        first.write_checkpoint(LogPoint(7, 2, 0, 0))
    first.close(clean=True)
    second.close(clean=False)
    assert disk.paths() == []


def test_a_clean_close_that_fails_gives_the_directory_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    directory = open_small(path)
    append(directory.store, [b"a", b"b", b"c"], 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        with pytest.raises(StoreFailure):
            directory.close(True)
    with opened(path) as again:
        assert again.store.end.index == 2


def test_a_close_whose_names_cannot_be_synced_says_what_to_do(path: Path) -> None:
    is_closing = False

    def refuse(what: str, name: str) -> OSError | None:
        return os_error(errno.EIO, name) if is_closing and what == "sync_directory" else None

    directory = open_small(path, disk=StoppingDisk(refuse=refuse))
    is_closing = True
    with pytest.raises(StoreFailure, match="cannot be synced: Input/output error; check the disk"):
        directory.close(True)


def test_a_directory_that_an_early_release_has_left_damaged_is_refused_by_name(path: Path) -> None:
    open_small(path).close(clean=True)
    (path / "healing").write_bytes(b"[]\ncrc32=0\n")
    with pytest.raises(ConfigError, match="rename it to damaged"):
        open_small(path)
    with DirectoryReader(OsDisk(), str(path)) as found:
        assert "healing" in [each.path for each in found.damage]
