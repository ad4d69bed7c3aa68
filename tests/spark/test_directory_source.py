"""`path`: directories of stopped members, ours and Java's, read without a JVM."""

from __future__ import annotations

import base64
import json
import logging
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.messages.message_options import MessageOptions
from quorumlog.spark.options import COLUMNS, LedgerDataLoss, spark_schema_of
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import DurableFile
from quorumlog.store.member_directory import open_member_directory
from tests.spark.made_directories import SMALL_SEGMENTS, flip_bit_of_body, write_directory
from tests.unpacking import unpack

JAVA = Path(__file__).parents[1] / "fixtures" / "dledger-java"
BODIES: list[bytes | None] = [
    None if number in (0, 120) else b"body %d;" % number for number in range(300)
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """300 entries in two terms over many segments; committed up to 249."""
    return write_directory(tmp_path / "n0", BODIES, committed_index=249)


def rows_of(
    path: Path, columns: tuple[str, ...] = ("index", "body"), **given: str
) -> dict[str, list[Any]]:
    reader = LedgerDataSource({"path": str(path), **given}).reader(spark_schema_of(columns))
    rows: dict[str, list[Any]] = {name: [] for name in columns}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for name, values in batch.to_pydict().items():  # type: ignore[union-attr]
                rows[name] += values
    return rows


def expected(first_index: int, stop_index: int) -> dict[str, list[Any]]:
    indices = [index for index in range(first_index, stop_index) if BODIES[index] is not None]
    return {"index": indices, "body": [BODIES[index] for index in indices]}


def test_it_is_read_up_to_the_committed_index(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert rows_of(directory) == expected(0, 250)
    assert "committed index 249 of its checkpoint; the log ends at 299" in caplog.text


def test_and_further_if_that_is_asked_for_by_name(directory: Path) -> None:
    assert rows_of(directory, readConsistency="local") == expected(0, 300)
    with pytest.raises(IndexOutOfRange, match=r"endingOffsets is 300, .* up to offset 250"):
        rows_of(directory, endingOffsets="300")


@pytest.mark.parametrize("prefetch", ["0", "2"])
def test_partitions_and_batches_may_be_small(directory: Path, prefetch: str) -> None:
    def small(**given: str) -> dict[str, list[Any]]:
        sizes = {"minPartitions": "7", "batchBytes": "200", "prefetch": prefetch}
        return rows_of(directory, ("index", "body"), **sizes, **given)

    assert small() == expected(0, 250)
    assert small(startingOffsets="100", endingOffsets="140") == expected(100, 140)


def test_every_column(directory: Path) -> None:
    rows = rows_of(directory, COLUMNS)
    assert set(rows["group"]) == {"default"}
    assert rows["term"] == [1 if index < 120 else 2 for index in rows["index"]]
    assert rows["pos"] == sorted(rows["pos"])
    assert len(set(rows["chain_crc"])) == len(rows["index"])


def test_a_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "n0", [None, b"a"], committed_index=1, group="orders")
    assert rows_of(path, ("group", "body")) == {"group": ["orders"], "body": [b"a"]}
    assert rows_of(path, ("body",), group="orders", startingOffsets='{"orders": 1}') == {"body": [b"a"]}
    with pytest.raises(ConfigError, match=r"option group is 'default', but .*n0 is of group 'orders'"):
        rows_of(path, group="default")


def test_without_a_checkpoint_nothing_is_known_to_be_committed(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "n0", [None, b"a"], committed_index=-1)
    assert rows_of(path)["index"] == []
    assert rows_of(path, readConsistency="local")["body"] == [b"a"]


def test_a_checkpoint_that_names_another_entry_is_not_believed(directory: Path) -> None:
    checkpoint = directory / "checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("committedTerm=2", "committedTerm=1"))
    assert rows_of(directory)["index"] == []


def test_a_damaged_body_is_an_error_that_names_the_place(directory: Path) -> None:
    flip_bit_of_body(directory, b"body 200;")
    with pytest.raises(DirectoryDamaged, match=r"body_crc does not match.*index 200") as caught:
        rows_of(directory)
    assert caught.value.index == 200
    assert rows_of(directory, endingOffsets="200") == expected(0, 200)


def test_what_is_damaged_behind_the_plan_is_found_by_the_task_that_reads_it(directory: Path) -> None:
    """Tasks do not look through what was not synced again: they check what they read."""
    reader = LedgerDataSource({"path": str(directory)}).reader(spark_schema_of(("index", "body")))
    (partition,) = reader.partitions()
    assert isinstance(partition, LedgerPartition)
    assert partition.scanned_index == 299
    flip_bit_of_body(directory, b"body 200;")
    with pytest.raises(DirectoryDamaged, match=r"body_crc does not match.*index 200"):
        list(reader.read(partition))


def test_a_directory_that_a_start_would_refuse_is_refused(directory: Path) -> None:
    (directory / "durable").unlink()
    with pytest.raises(DirectoryDamaged, match=r"durable: is missing .*; run: quorumlog verify"):
        rows_of(directory)


def test_committed_entries_that_are_gone_are_an_error_or_left_out(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The durable point is an older one, and the tail above it is torn."""
    flip_bit_of_body(directory, b"body 200;")
    DurableFile.create(OsDisk(), str(directory)).close()
    lost = "entries 200 .. 249 are missing: checkpoint names entry 249 as committed"
    with pytest.raises(DirectoryDamaged, match=f"{lost}.*; run: quorumlog verify") as caught:
        rows_of(directory)
    assert caught.value.index == 200
    with caplog.at_level(logging.WARNING):
        assert rows_of(directory, failOnDataLoss="false") == expected(0, 200)
    assert lost in caplog.text


def test_what_is_no_directory_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no log"):
        rows_of(tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        rows_of(tmp_path / "nowhere")


def test_the_tail_of_a_running_member_is_not_read(directory: Path) -> None:
    running = open_member_directory(
        OsDisk(), str(directory), group="default", member_id="n0", config=SMALL_SEGMENTS, group_size=3
    )
    with pytest.raises(ConfigError, match="in use by a running member"):
        rows_of(directory, readConsistency="local")
    assert rows_of(directory) == expected(0, 250)
    running.close(clean=True)
    assert rows_of(directory, readConsistency="local") == expected(0, 300)


def test_an_empty_directory_of_a_new_member_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    new = open_member_directory(
        OsDisk(), str(path), group="default", member_id="n0", config=SMALL_SEGMENTS, group_size=3
    )
    new.close(clean=True)
    assert rows_of(path)["index"] == []
    assert rows_of(path, readConsistency="local")["index"] == []


@pytest.fixture
def java_directory(tmp_path: Path) -> Path:
    """500 entries over many small segments, written by a single Java member."""
    unpack(JAVA / "single" / "single.tar.xz", tmp_path)
    return tmp_path / "dledger-n0"


def test_a_log_that_has_dropped_its_first_segment_begins_behind_it(
    java_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rows_of(java_directory)
    sorted((java_directory / "data").iterdir())[0].unlink()
    rest = rows_of(java_directory)
    begin_index = rest["index"][0]
    lost = f"entries 0 .. {begin_index - 1} of group 'default' are lost"
    assert begin_index > 0
    assert rest["body"] == whole["body"][begin_index:]
    with pytest.raises(LedgerDataLoss, match=lost):
        rows_of(java_directory, startingOffsets="0")
    with caplog.at_level(logging.WARNING):
        assert rows_of(java_directory, startingOffsets="0", failOnDataLoss="false") == rest
    assert lost in caplog.text


@pytest.mark.parametrize(("name", "member"), [("single", "n0"), ("three", "n1")])
def test_a_java_members_directory_is_read(tmp_path: Path, name: str, member: str) -> None:
    unpack(JAVA / name / f"{name}.tar.xz", tmp_path)
    with lzma.open(JAVA / name / "bodies.jsonl.xz", "rt") as lines:
        bodies = {index: base64.b64decode(body) for index, body in map(json.loads, lines)}
    said = json.loads((JAVA / name / "expected.json").read_text())["members"][member]["reopened"]
    committed_index = said["committed_index"]
    rows = rows_of(
        tmp_path / f"dledger-{member}", ("group", "index", "body", "chain_crc"), minPartitions="5"
    )
    assert rows["index"] == list(range(said["begin_index"], committed_index + 1))
    assert rows["body"] == [bodies[index] for index in rows["index"]]
    assert set(rows["group"]) == {"default"}
    assert set(rows["chain_crc"]) == {0}


def test_a_relative_path_means_the_same_to_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task has the working directory of its executor."""
    write_directory(tmp_path / "d", [b"a", b"b", b"c"], committed_index=2)
    archive(Place(path=str(tmp_path / "d")), str(tmp_path / "kept"))
    (tmp_path / "executor").mkdir()
    for option, name in (("path", "d"), ("path", "file:d"), ("archive", "kept")):
        monkeypatch.chdir(tmp_path)
        source = LedgerDataSource({option: name})
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        monkeypatch.chdir(tmp_path / "executor")
        assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 3
    assert MessageOptions.parse({"view": "messages", "path": "store"}).path == os.path.abspath("store")
