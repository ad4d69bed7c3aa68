"""import: what was exported lies in the other log, each entry once, whatever happens on the way."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any

import pytest

from quorumlog import AppendReceipt, Entry, LedgerClient, LocalCluster, OutcomeUnknown, connect
from quorumlog.cli.carry import importer as importing
from quorumlog.cli.carry.export_format import Ending, Record, encoded, head, tail
from quorumlog.cli.carry.importer import Importer, batched
from quorumlog.config import MIB
from quorumlog.entry_header import HEADER_BYTES
from tests.cli.conftest import NOT_TEXT, STORAGE, Cli, objects, plain

BODIES = [b"%d" % (number % 7) for number in range(1000)]
"""Most are equal to others: only their order tells which is which."""


@pytest.fixture
def target() -> Iterator[str]:
    """Servers of a log that holds no data."""
    with LocalCluster(members=1, storage=STORAGE) as running:
        yield running.servers


def export_of(file: Path, bodies: Sequence[bytes]) -> Path:
    """A file as an export of a log with these would be; entry n is its record n."""
    entries = [Entry(number, 1, body) for number, body in enumerate(bodies)]
    ending = Ending(len(entries), len(entries) - 1)
    file.write_bytes(head("default", 0) + encoded(entries) + tail(ending))
    return file


def records_of(bodies: Sequence[bytes]) -> list[Record]:
    return [Record(number, 1, body, 0) for number, body in enumerate(bodies)]


def bodies_of(servers: str) -> list[bytes]:
    with connect(servers) as log:
        return [entry.body for entry in log.read(0)]


def test_every_body_comes_back_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    large = bytes(range(256)) * (4 * MIB // 256)
    bodies = [
        b"",
        NOT_TEXT,
        large[HEADER_BYTES:],
        b"\n",
        b'{"a":1}\n',
        b"\x00" * 999,
        b"\xe2\x82\xac",
        b"",
    ]
    file, back = tmp_path / "file", tmp_path / "back"
    with LocalCluster(members=1) as first, LocalCluster(members=1) as second:
        with connect(first.servers) as log:
            for body in bodies:
                log.append(body)
        assert cli("export", file, "--servers", first.servers).exit_code == 0
        imported = cli("import", file, "--servers", second.servers)
        assert imported.exit_code == 0, imported.output
        assert bodies_of(second.servers) == bodies
        # Of two logs without another election in between indices are the same, too.
        assert cli("export", back, "--servers", second.servers).exit_code == 0
    assert back.read_bytes() == file.read_bytes()


def test_what_is_imported_twice_is_there_once(cli: Cli, target: str, tmp_path: Path) -> None:
    given = ("import", export_of(tmp_path / "file", BODIES), "--servers", target)
    assert cli(*given).stdout == "imported 1000 entries: first index 1, last index 1000\n"
    again = cli(*given)
    assert again.exit_code == 0
    assert again.stdout.startswith("nothing to append: all 1000 entries are in the log already")
    assert bodies_of(target) == BODIES
    # Others may go on behind a whole import, and it is still known for what it is.
    with connect(target) as log:
        log.append(b"more")
    assert objects(cli(*given, "--json").stdout) == [
        {"records": 1000, "appended": 0, "found": 1000, "first_index": 1, "last_index": 1000}
    ]
    assert bodies_of(target) == [*BODIES, b"more"]


def test_an_export_that_has_grown_is_imported_behind_what_was(
    cli: Cli, target: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    assert cli("import", export_of(file, BODIES[:300]), "--servers", target).exit_code == 0
    result = cli("import", export_of(file, BODIES), "--servers", target)
    assert "300 of them were there already and were not written twice" in result.stdout
    assert bodies_of(target) == BODIES


def test_a_part_is_imported_behind_other_data_if_that_is_asked_for(
    cli: Cli, target: str, tmp_path: Path
) -> None:
    with connect(target) as log:
        last = log.append_batch([b"there"] * 3).last_index
    given = ("import", export_of(tmp_path / "file", BODIES), "--servers", target, "--from", 5, "--to", 9)
    refused = cli(*given)
    assert refused.exit_code == 1
    assert f"to append after its end, add --expected-last {last}" in plain(refused.stderr)
    assert bodies_of(target) == [b"there"] * 3
    for _ in range(2):
        assert cli(*given, "--expected-last", last).exit_code == 0
        assert bodies_of(target) == [b"there"] * 3 + BODIES[5:9]
    beyond = cli(*given, "--expected-last", 10_000)
    assert beyond.exit_code == 1
    assert "expected_last is 10000, but the log ends at" in plain(beyond.stderr)


def test_an_empty_export_is_nothing_to_import(cli: Cli, target: str, tmp_path: Path) -> None:
    result = cli("import", export_of(tmp_path / "file", []), "--servers", target)
    assert (result.exit_code, result.stdout) == (0, "nothing to import\n")


# ---------------------------------------------------------------- what goes wrong on the way


class Unsure(LedgerClient):
    """Each second batch: nothing, a part, or all of it is written, and the answer is lost."""

    batches = 0

    def append_batch(self, bodies: Any, **options: Any) -> AppendReceipt:
        self.batches += 1
        if self.batches % 2:
            return super().append_batch(bodies, **options)
        written = bodies[: len(bodies) * (self.batches % 3) // 2]
        if written:
            super().append_batch(written, **options)
        raise OutcomeUnknown("the leader was lost")


def test_an_unknown_outcome_is_resolved_by_what_the_log_holds(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_RECORDS", 10)
    notes: list[str] = []
    with Unsure(target) as log:
        importer = Importer(log, -1, notes.append)
        for batch in batched(records_of(BODIES)):
            importer.put(batch)
    assert bodies_of(target) == BODIES
    assert importer.records == len(BODIES)
    assert notes
    assert importer.found


def test_two_imports_of_one_file_at_once_write_it_once(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_RECORDS", 10)
    importers: list[Importer] = []

    def run() -> None:
        with connect(target) as log:
            importers.append(importer := Importer(log, -1, print))
            for batch in batched(records_of(BODIES)):
                importer.put(batch)

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies_of(target) == BODIES
    assert [each.records for each in importers] == [len(BODIES)] * 3
    assert sum(each.appended for each in importers) == len(BODIES)


def test_an_import_stops_where_somebody_else_appends_and_says_how_to_go_on(
    cli: Cli, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_RECORDS", 100)
    file = export_of(tmp_path / "file", BODIES)
    put = Importer.put

    def disturbed(self: Importer, batch: Sequence[Record]) -> None:
        if self.records == 300:
            with connect(target) as log:
                log.append(b"foreign")
        put(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Importer, "put", disturbed)
        stopped = cli("import", file, "--servers", target)
    assert stopped.exit_code == 1
    said = plain(stopped.stderr)
    assert "another client has appended to the log: its entry 301 is not the file's entry 300" in said
    assert "300 entries of the file are in the log, up to its index 300" in said
    assert bodies_of(target) == [*BODIES[:300], b"foreign"]
    options = re.search(r"--from \d+ --expected-last \d+", said)
    assert options
    for _ in range(2):
        assert cli("import", file, "--servers", target, *options[0].split()).exit_code == 0
        assert bodies_of(target) == [*BODIES[:300], b"foreign", *BODIES[300:]]


def test_an_entry_that_is_too_large_for_the_other_log_is_named(
    cli: Cli, target: str, tmp_path: Path
) -> None:
    file = export_of(tmp_path / "file", [b"a", b"x" * (2 * STORAGE.segment_bytes)])
    result = cli("import", file, "--servers", target)
    assert result.exit_code == 1
    said = plain(result.stderr)
    assert "the entry of index 1 in the file, 2097152 bytes" in said
    assert "1 of 2 entries are known to be in the log" in said


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_import_that_is_ended_in_the_middle_goes_on_when_it_is_begun_again(
    start: Callable[..., Popen[bytes]],
    cli: Cli,
    cluster: LocalCluster,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    bodies = [number.to_bytes(2) * 5000 for number in range(3000)]
    file = export_of(tmp_path / "file", bodies)
    with connect(cluster.servers) as log:
        base = log.append(b"there").last_index
        given = ("import", file, "--servers", cluster.servers, "--expected-last", base)
        process = start(*given)
        with log.tail(base + 1) as tail:
            next(tail)
        process.send_signal(number)
        assert process.wait(timeout=60) in (-number, 130, 0)
        again = cli(*given)
        assert again.exit_code == 0, again.output
        assert [entry.body for entry in log.read(base + 1)] == bodies


# ---------------------------------------------------------------- files and options


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:99] + b"?" + data[100:]])
def test_a_cut_off_or_damaged_file_is_not_imported_and_the_place_is_named(
    cli: Cli, free_address: str, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = export_of(tmp_path / "file", BODIES)
    file.write_bytes(damage(file.read_bytes()))
    result = cli("import", file, "--servers", free_address)
    assert result.exit_code == 1, result.output
    said = plain(result.stderr)
    assert f"FILE {file}:" in said
    assert "at position" in said
    assert "nothing was appended; export again" in said


def test_slips(cli: Cli, free_address: str, tmp_path: Path) -> None:
    file = export_of(tmp_path / "file", BODIES[:2])
    notes = tmp_path / "notes"
    notes.write_text("notes")
    lines = tmp_path / "lines"
    lines.write_text('{"index":1,"term":1,"text":"a"}\n')
    for said, *options in (
        ("No such file or directory; name a file that export wrote", tmp_path / "none"),
        ("is not an export; name a file that export wrote", notes),
        ("JSON lines of an earlier release: export again", lines),
        ("--to 1 is below --from 3; swap them", file, "--from", 3, "--to", 1),
    ):
        result = cli("import", *options, "--servers", free_address)
        assert result.exit_code == 2
        assert said in plain(result.stderr)
