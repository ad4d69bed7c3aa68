"""read --path, inspect and verify on the directories of stopped members."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.config import StoreConfig
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import DamagedRange, LogPoint, LogStart
from quorumlog.store.state_files import DamagedRanges, save_start
from tests.cli.conftest import LINES, NOT_TEXT, STORAGE, Cli, objects, plain
from tests.store.test_drop import COUNT, drop, filled, start_at
from tests.unpacking import unpack

JAVA = Path(__file__).parents[1] / "fixtures" / "dledger-java" / "single"
INSPECT_KEYS = {
    "ledger_begin_index",
    "ledger_end_index",
    "ledger_end_term",
    "current_term",
    "voted_for",
    "committed_index",
    "segments",
    "start",
    "states",
    "damage",
    "damaged",
}
VERIFY_KEYS = [
    "directory",
    "entries",
    "checked",
    "unchecked",
    "chain_crc",
    "ok",
    "problem",
    "damaged",
    "ledger_begin_index",
    "ledger_end_index",
]


@pytest.fixture
def damaged(stopped: list[Path], tmp_path: Path) -> Path:
    """A copy with one bit of one body flipped."""
    copy = tmp_path / "damaged"
    shutil.copytree(stopped[0], copy)
    segment = next(iter(sorted((copy / "data").iterdir())))
    data = bytearray(segment.read_bytes())
    data[data.index(b"line 77")] ^= 1
    segment.write_bytes(data)
    return copy


def test_read_prints_what_a_stopped_member_holds(cli: Cli, stopped: list[Path]) -> None:
    for directory in stopped:
        result = cli("read", "--path", directory)
        assert result.exit_code == 0, result.output
        assert result.stdout_bytes == "\n".join(LINES).encode() + b"\n" + NOT_TEXT + b"\n"
    rows = objects(cli("read", "--path", stopped[0], "--from", 5, "--to", 8, "--format", "json").stdout)
    assert [row["index"] for row in rows] == [5, 6, 7]
    first = rows[0]["body"]
    assert [row["body"] for row in rows] == LINES[LINES.index(first) : LINES.index(first) + 3]


def test_json_may_be_asked_for_in_both_ways(cli: Cli, stopped: list[Path]) -> None:
    given = ("read", "--path", stopped[0], "--last", 2)
    both = cli(*given, "--json", "--format", "json")
    assert (both.exit_code, both.stdout) == (0, cli(*given, "--json").stdout)


def test_read_says_what_is_not_known_to_be_committed(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stopped[0], copy)
    (copy / "checkpoint").unlink()
    result = cli("read", "--path", copy)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "--local prints them" in plain(result.stderr)
    assert cli("read", "--path", copy, "--local").stdout_bytes.endswith(NOT_TEXT + b"\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--servers LIST, or --path DIR"),
        (("--path", ".", "--follow"), "--follow needs --servers"),
        (("--path", ".", "--json", "--format", "hex"), "--json excludes --format hex"),
        (("--path", ".", "--json", "--format", "text"), "--json excludes --format text"),
        (("--servers", "h:1", "--local"), "--local goes with --path only"),
        (("--servers", "h:1", "--follow", "--timeout", "1"), "without --follow, which waits for ever"),
        (("--path", ".", "--timeout", "1"), "--timeout goes with --servers"),
        (("--path", "nowhere"), "nowhere does not exist"),
        (("--path", ".", "--servers", "h:1"), "--servers and --path exclude each other"),
        (("--path", ".", "--from", "5", "--to", "4"), "--to 4 is below --from 5"),
    ],
)
def test_read_refuses_options_that_do_not_go_together(
    cli: Cli, arguments: tuple[str, ...], named: str
) -> None:
    result = cli("read", *arguments)
    assert result.exit_code == 2
    assert named in plain(result.stderr)


def test_read_gives_up_when_it_is_told_to(cli: Cli, free_address: str) -> None:
    result = cli("read", "--servers", free_address, "--timeout", "0.2")
    assert result.exit_code == 1
    assert re.search(r"gave up after \d+\.\d s", plain(result.stderr))


def test_a_list_of_servers_in_the_environment_does_not_forbid_a_path(
    cli: Cli, stopped: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMLOG_SERVERS", "127.0.0.1:1")
    assert cli("read", "--path", stopped[0]).stdout_bytes.endswith(NOT_TEXT + b"\n")


def test_read_refuses_a_directory_of_another_group(cli: Cli, stopped: list[Path]) -> None:
    result = cli("read", "--path", stopped[0], "--group", "orders")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is of group default, not orders" in plain(result.stderr)
    assert cli("read", "--path", stopped[0], "--group", "default").exit_code == 0


def test_read_beyond_the_end_of_a_directory_says_what_a_server_says(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    (found,) = objects(cli("inspect", stopped[0], "--json").stdout)
    end = found["committed_index"]
    for options in (("--from", end + 100), ("--from", end + 1, "--to", end + 2)):
        result = cli("read", "--path", stopped[0], *options)
        assert (result.exit_code, result.stdout) == (1, "")
        said = f"index {options[1]} is outside the log, whose committed entries are 0 to {end}"
        assert said in plain(result.stderr)
    assert cli("read", "--path", stopped[0], "--from", end + 1).exit_code == 0
    partly = cli("read", "--path", stopped[0], "--from", end, "--to", end + 5)
    assert (partly.exit_code, partly.stdout_bytes) == (1, NOT_TEXT + b"\n")


def test_inspect_shows_the_same_as_table_and_as_object(cli: Cli, stopped: list[Path]) -> None:
    (found,) = objects(cli("inspect", stopped[0], "--json").stdout)
    assert found.keys() >= INSPECT_KEYS
    assert found["damage"] == []
    assert found["ledger_begin_index"] == 0
    assert found["committed_index"] == found["ledger_end_index"] >= len(LINES)
    assert found["current_term"] >= found["ledger_end_term"] >= 1
    assert found["segments"][0]["first_index"] == 0
    table = cli("inspect", stopped[0])
    assert table.exit_code == 0
    assert f"index 0 to {found['ledger_end_index']}" in table.stdout
    assert "n0 of group default" in table.stdout
    assert "no damage" in table.stdout
    assert f"{STORAGE.segment_bytes} B" in table.stdout


def test_inspect_says_what_is_damaged_where(cli: Cli, damaged: Path) -> None:
    (found,) = objects(cli("inspect", damaged, "--json").stdout)
    (damage,) = found["damage"]
    assert damage["file"].startswith("data/")
    table = cli("inspect", damaged)
    assert f"index {damage['index']}" in table.stdout
    quick = cli("inspect", damaged, "--quick")
    assert "no damage seen (entries were not read)" in quick.stdout


def test_read_stops_at_damage_and_goes_on_behind_it_if_told_to(cli: Cli, damaged: Path) -> None:
    (row,) = objects(cli("verify", damaged, "--json").stdout)
    assert not row["ok"]
    stops = cli("read", "--path", damaged)
    assert (stops.exit_code, stops.stdout.splitlines()) == (3, LINES[:77])
    said = plain(stops.stderr)
    assert "body_crc does not match (position" in said
    assert "--skip-damaged continues after it" in said
    skips = cli("read", "--path", damaged, "--skip-damaged")
    held = [line for line in LINES if line != "line 77"]
    assert skips.stdout_bytes == "\n".join(held).encode() + b"\n" + NOT_TEXT + b"\n"
    assert skips.exit_code == 0
    assert "skipped: data/" in plain(skips.stderr)
    assert cli("read", "--path", damaged, "--to", 40).exit_code == 0
    refused = cli("read", "--servers", "h:1", "--skip-damaged")
    assert (refused.exit_code, refused.stdout) == (2, "")


@pytest.fixture
def java(tmp_path: Path) -> tuple[Path, list[Path]]:
    """500 committed entries of a Java member; the header of entry 450, in its last files, is torn."""
    unpack(JAVA / "single.tar.xz", tmp_path)
    directory = tmp_path / "dledger-n0"
    with DirectoryReader(OsDisk(), str(directory)) as reader:
        position = reader.header_at(450).pos
    segments = sorted((directory / "data").iterdir())
    segment = next(each for each in reversed(segments) if int(each.name) <= position)
    data = bytearray(segment.read_bytes())
    data[position - int(segment.name) + 8] ^= 0x40
    segment.write_bytes(data)
    return directory, segments


def test_committed_entries_that_are_gone_are_named_by_every_tool(
    cli: Cli, java: tuple[Path, list[Path]]
) -> None:
    directory, _ = java
    lost = "entries 450 .. 499 are missing: checkpoint names entry 499 as committed"
    shown = cli("inspect", directory, "--quick")
    assert (shown.exit_code, lost in plain(shown.stdout)) == (0, True)
    verified = cli("verify", directory)
    assert (verified.exit_code, lost in plain(verified.stdout)) == (1, True)
    for options in ((), ("--local",), ("--to", 480)):
        result = cli("read", "--path", directory, "--format", "hex", *options)
        assert (result.exit_code, lost in plain(result.stderr)) == (3, True)
        assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [*range(450)]
    inside = cli("read", "--path", directory, "--from", 460, "--to", 470)
    assert (inside.exit_code, inside.stdout, lost in plain(inside.stderr)) == (3, "", True)
    before = cli("read", "--path", directory, "--format", "hex", "--from", 440, "--to", 450)
    assert (before.exit_code, len(before.stdout.splitlines())) == (0, 10)
    skips = cli("read", "--path", directory, "--format", "hex", "--skip-damaged")
    assert skips.exit_code == 0
    indices = [int(line.split()[0]) for line in skips.stdout.splitlines()]
    assert indices == [*range(450), *range(451, 500)]
    assert "index 450)" in plain(skips.stderr)


def test_an_unreadable_page_is_no_error_of_the_system(
    cli: Cli, stopped: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    for part in ("/data/", "/index/", "checkpoint", "durable", "member"):

        def refuse(descriptor: int, size: int, position: int, part: str = part) -> bytes:
            if part in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(errno.EIO, "Input/output error")
            return pread(descriptor, size, position)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", refuse)
            verified = cli("verify", stopped[0])
            shown = cli("inspect", stopped[0])
            result = cli("read", "--path", stopped[0])
        assert (verified.exit_code, isinstance(verified.exception, SystemExit)) == (1, True), part
        assert "cannot be read" in plain(verified.stdout) or part == "member"
        assert shown.exit_code == (3 if part == "member" else 0), part
        assert result.exit_code == (3 if part in ("/data/", "member") else 0), part


@pytest.mark.parametrize("refused", ["exists", "open"])
@pytest.mark.parametrize("command", [("inspect",), ("verify",), ("read", "--path")])
def test_a_directory_of_another_user_is_read_as_that_user(
    cli: Cli,
    stopped: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    refused: str,
) -> None:
    """Permission ends at the directory, or at its files."""

    def refuse(owner: object, path: object = None, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path or owner))

    monkeypatch.setattr(Path if refused == "exists" else OsDisk, refused, refuse)
    result = cli(*command, stopped[0])
    assert result.exit_code == 2, result.output
    said = plain(result.stderr)
    assert f"no permission for {stopped[0]}/member; run this as the user that the member runs as" in said


def test_verify_finds_three_members_equal(cli: Cli, stopped: list[Path]) -> None:
    result = cli("verify", *stopped)
    assert result.exit_code == 0, result.output
    assert "the 3 directories hold the same log" in result.stdout
    rows = objects(cli("verify", *stopped, "--json").stdout)
    assert [sorted(row) for row in rows] == [sorted(VERIFY_KEYS)] * 3
    assert {row["chain_crc"] for row in rows} == {rows[0]["chain_crc"]}
    assert all(row["ok"] and row["checked"] == row["entries"] and not row["unchecked"] for row in rows)


def test_verify_ends_with_1_on_damage_and_names_file_and_index(cli: Cli, damaged: Path) -> None:
    result = cli("verify", damaged)
    assert result.exit_code == 1
    assert "not ok" in result.stdout
    assert "data/" in result.stdout
    (row,) = objects(cli("verify", damaged, "--json").stdout)
    assert not row["ok"]
    assert "index" in row["problem"]


def test_what_is_damaged_is_said_although_nothing_else_is_wrong(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    """The bytes are back; the member was killed before it had noted that."""
    copy = tmp_path / "copy"
    shutil.copytree(stopped[0], copy)
    with DirectoryReader(OsDisk(), str(copy)) as reader:
        before, last = (
            LogPoint(h.index, h.term, h.chain_crc, h.pos + h.size)
            for h in (reader.header_at(6), reader.header_at(8))
        )
    lost = DamagedRange(before, last, ((7, last.term),), "data/" + "0" * 20, "was lost")
    DamagedRanges(OsDisk(), str(copy), [lost]).save()
    for command, exit_code in (("inspect", 0), ("verify", 1)):
        result = cli(command, copy)
        assert result.exit_code == exit_code, result.output
        text = plain(result.stdout)
        assert "entries 7 .. 8 in data/" in text
        assert f"stop index 9, term {last.term} from 7, chain {before.chain:08x} before" in text
        (found,) = objects(cli(command, copy, "--json").stdout)
        (damaged,) = found["damaged"]
        assert (damaged["first_index"], damaged["stop_index"]) == (7, 9)


def test_verify_names_the_first_differing_index(cli: Cli, stopped: list[Path], damaged: Path) -> None:
    """Two logs of another history: the one-member log of another cluster."""
    with LocalCluster(members=1, directory=damaged.parent / "other", storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([line.encode() for line in (*LINES[:40], "another")])
        other = cluster.data_dir("n0")
    result = cli("verify", stopped[0], other)
    rows = objects(cli("verify", stopped[0], other, "--json").stdout)
    assert result.exit_code == 1
    assert "first differing index: " in result.stdout
    assert "first differing index: " in rows[1]["problem"]


def test_verify_tells_logs_of_other_groups_apart_that_agree_so_far(cli: Cli, tmp_path: Path) -> None:
    directories = []
    for group in ("orders", "audit"):
        with LocalCluster(
            members=1, directory=tmp_path / group, group=group, storage=STORAGE
        ) as cluster:
            directories.append(cluster.data_dir("n0"))
    result = cli("verify", *directories)
    assert result.exit_code == 1
    assert "is of group audit, and" in plain(result.stdout)


def test_the_folder_above_the_directories_of_members_names_them(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=2, directory=tmp_path, storage=STORAGE) as cluster:
        held = cli("verify", cluster.data_dir("n0"))
        assert "a running member holds it" in plain(held.stderr)
    serve = ("serve", "--id", "n0", "--members", "n0=127.0.0.1:1", "--data-dir")
    for command in (("inspect",), ("verify",), ("read", "--path"), serve):
        result = cli(*command, tmp_path)
        assert result.exit_code == 2
        assert "holds the directories of members (n0, n1)" in plain(result.stderr)


def test_a_directory_that_holds_no_log_is_named(cli: Cli, tmp_path: Path) -> None:
    for command in ("inspect", "verify"):
        result = cli(command, tmp_path)
        assert result.exit_code == 2
        assert str(tmp_path) in plain(result.stderr)
    result = cli("inspect", tmp_path / "none")
    assert "does not exist" in plain(result.stderr)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A stopped member whose log has several segments."""
    storage = StoreConfig(segment_bytes=4096, index_segment_bytes=4096)
    with LocalCluster(members=1, directory=tmp_path / "long", storage=storage) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"%d" % number for number in range(300)])
        directory = cluster.data_dir("n0")
    assert len(list((directory / "data").iterdir())) > 3
    return directory


def test_a_beginning_that_is_gone_is_damage_to_every_tool(cli: Cli, long: Path) -> None:
    (long / "data" / f"{0:020d}").unlink()
    assert cli("verify", long).exit_code == 1
    stopped_at_once = cli("read", "--path", long)
    assert (stopped_at_once.exit_code, stopped_at_once.stdout) == (3, "")
    rest = cli("read", "--path", long, "--skip-damaged")
    assert rest.exit_code == 0
    assert rest.stdout.endswith("299\n") and not rest.stdout.startswith("0\n")
    assert "skipped: " in plain(rest.stderr) and "index 0 .. " in plain(rest.stderr)


def test_a_log_whose_files_are_all_gone_is_damage_to_every_tool(cli: Cli, long: Path) -> None:
    shutil.rmtree(long / "data")
    for command in (("verify", long), ("read", "--path", long)):
        result = cli(*command)
        assert result.exit_code == (1 if command[0] == "verify" else 3), result.output
        assert "not known to be committed" not in plain(result.stderr)
    assert "0 to 300" in plain(cli("inspect", long).stdout)


def test_a_directory_that_no_start_takes_is_not_ok(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stopped[0], copy)
    (copy / "hardstate").unlink()
    result = cli("verify", copy)
    assert result.exit_code == 1
    assert "hardstate: is missing" in plain(result.output)


def test_the_tools_open_a_directory_of_default_sizes(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=1, directory=tmp_path, storage=StoreConfig()) as cluster:
        with connect(cluster.servers) as log:
            log.append(b"one")
        directory = cluster.data_dir("n0")
    for command in (("verify", directory), ("inspect", directory), ("read", "--path", directory)):
        assert cli(*command).exit_code == 0, command


# ---------------------------------------------------------------- logs without their first entries


def begun_at(path: Path, first: int, count: int = COUNT) -> Path:
    directory = filled(path, count=count)
    for index in range(4, count, 4):
        directory.store.boundaries.save(start_at(directory.store, index))
    directory.write_checkpoint(directory.store.end)
    if first:
        drop(directory, first)
    directory.close(clean=True)
    return path


def test_verify_compares_from_the_highest_begin_on(cli: Cli, tmp_path: Path) -> None:
    paths = [begun_at(tmp_path / f"n{first}", first) for first in (0, 8, 16)]
    result = cli("verify", *paths)
    assert result.exit_code == 0, result.output
    said = " ".join(plain(result.stdout).split())
    assert "the 3 directories hold the same log from index 16 on, where the last of them begins" in said
    rows = objects(cli("verify", *paths, "--json").stdout)
    assert [row["ledger_begin_index"] for row in rows] == [0, 8, 16]
    short = begun_at(tmp_path / "short", 0, count=20)
    said = " ".join(plain(cli("verify", *paths, short).stdout).split())
    assert (
        "the 4 directories agree from index 16 on, where the last of them begins, up to index 19, where"
        " the shortest ends" in said
    )
    shorter = begun_at(tmp_path / "shorter", 0, count=10)
    result = cli("verify", paths[2], shorter)
    said = " ".join(plain(result.stdout).split())
    assert result.exit_code == 0
    assert "the 2 directories have no entry in common: one begins at index 16, one ends at 9" in said


def test_inspect_shows_the_start_and_the_states_boundary_states(cli: Cli, tmp_path: Path) -> None:
    path = begun_at(tmp_path / "n0", 8)
    bad = path / "states" / f"{4096:020d}"
    bad.write_bytes(b"?")
    (found,) = objects(cli("inspect", path, "--json").stdout)
    assert found["start"] == {
        "before_index": 7,
        "term": 1,
        "position": 2048,
        "record_bytes": len(b"state before 8"),
        "replaces": False,
        "good_slots": 2,
    }
    assert [(each["first_index"], each["problem"]) for each in found["states"]] == [
        (12, ""),
        (-1, "is damaged"),
        (20, ""),
    ]
    said = " ".join(plain(cli("inspect", path).stdout).split())
    assert "after entry 7 (term 1), state of 14 B" in said
    assert f"before 12, 20 states/{4096:020d} is damaged" in said
    assert objects(cli("verify", path, "--json").stdout)[0]["ok"], "a state is a help"
    start = bytearray((path / "start").read_bytes())
    start[100] ^= 1
    (path / "start").write_bytes(start)
    assert "one of two slots is not good" in " ".join(plain(cli("inspect", path).stdout).split())


def test_a_log_that_waits_to_replace_another_is_no_damage(cli: Cli, tmp_path: Path) -> None:
    """The tools say what a start of the process will make of it."""
    path = begun_at(tmp_path / "n0", 0)
    start = LogStart(LogPoint(9, 7, 4711, 4096), b"of another log", replaces=True)
    save_start(OsDisk(), str(path), start)
    result = cli("verify", path)
    assert result.exit_code == 0, result.output
    (found,) = objects(cli("inspect", path, "--json").stdout)
    assert (found["ledger_begin_index"], found["ledger_end_index"]) == (10, 9)
    assert (found["committed_index"], found["durable_index"], found["damage"]) == (9, 9, [])
    assert "removes the log that this one replaces" in " ".join(
        plain(cli("inspect", path).stdout).split()
    )


def test_the_root_of_a_java_broker_in_dledger_mode_is_verified_or_named(
    cli: Cli, tmp_path: Path
) -> None:
    unpack(JAVA / "single.tar.xz", tmp_path)
    verified = cli("broker", "verify", tmp_path)
    assert verified.exit_code == 0, verified.output
    assert "dledger-n0: 500 entries, indices 0 to 499" in plain(verified.stdout)
    for command in (("verify",), ("inspect",)):
        refused = cli(*command, tmp_path)
        assert refused.exit_code == 2
        assert "holds the directories of members (dledger-n0); name one of them" in refused.stderr
    dumped = cli("broker", "dump", tmp_path)
    assert dumped.exit_code == 2
    assert "holds a replicated log: make a store of it with `quorumlog broker convert`" in dumped.stderr
