"""An archive and the log behind it are one table: every row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.errors import ConfigError
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.places import Place
from quorumlog.spark.batch_reader import LedgerBatchReader
from quorumlog.spark.options import DEFAULT_COLUMNS, LedgerOptions, spark_schema_of
from quorumlog.spark.streaming import LedgerStreamReader
from tests.spark.made_directories import write_directory

BODIES = [b"%04d" % number for number in range(100)]


def read(**options: str) -> list[tuple[int, bytes]]:
    reader = LedgerBatchReader(LedgerOptions.parse(options), spark_schema_of(DEFAULT_COLUMNS))
    return [
        (row["index"], row["body"])
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_directory(tmp_path / "d", [None, *BODIES[:50], None, *BODIES[50:]], committed_index=101)
    archive(Place(path=str(tmp_path / "d"), batch_bytes=300), str(tmp_path / "a"), stop_index=70)
    return tmp_path


@pytest.mark.parametrize("count", ["1", "7", "40"])
def test_the_seam_is_exact_wherever_the_partitions_lie(made: Path, count: str) -> None:
    alone = read(path=str(made / "d"))
    both = read(path=str(made / "d"), archive=str(made / "a"), minPartitions=count)
    assert both == alone and [body for _, body in both] == BODIES
    only = read(archive=str(made / "a"), minPartitions=count)
    assert only == [row for row in alone if row[0] < 70]


def test_an_archive_of_another_log_is_refused(made: Path) -> None:
    write_directory(made / "other", [None, *reversed(BODIES)], committed_index=100)
    with pytest.raises(ConfigError, match="another log: entry 69"):
        read(path=str(made / "other"), archive=str(made / "a"))


def test_so_it_is_in_front_of_running_members_for_queries_streams_and_audits(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with LocalCluster(members=2) as cluster, connect(cluster.servers) as log:
        log.append_batch(BODIES)
        archive(Place(servers=cluster.servers), path, stop_index=70)
        given = {"servers": cluster.servers, "archive": path}
        both = read(**given, minPartitions="7")
        assert both == read(servers=cluster.servers) and [body for _, body in both] == BODIES
        stream = LedgerStreamReader(
            LedgerOptions.parse({**given, "maxOffsetsPerTrigger": "30"}),
            spark_schema_of(DEFAULT_COLUMNS),
        )
        start, rows = stream.initialOffset(), []
        while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
            parts = stream.partitions(start, end)
            rows += [
                tuple(row.values())
                for part in parts
                for each in stream.read(part)
                for row in each.to_pylist()
            ]
            start = end
        assert [row[-1] for row in rows] == BODIES
        places = [Place(servers=cluster.servers, member_id=member) for member in cluster.running]
        found = audit([*places, Place(archive=path)])
        assert not found.differences
        assert [each.entries for each in found.places][2] == 70
