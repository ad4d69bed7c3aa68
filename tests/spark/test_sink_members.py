"""A sink finds the members where they are by now, whatever its option `servers` says; without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from quorumlog import LocalCluster, connect
from quorumlog.spark import writers
from quorumlog.spark.row_bodies import RowBodies, SinkOptions

GONE = "127.0.0.1:1"


def test_tasks_and_the_commit_go_where_members_were_found_when_the_batch_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "_task", lambda: SimpleNamespace(partitionId=lambda: 0))
    with LocalCluster(members=1) as cluster:
        options = SinkOptions(servers=cluster.servers, body_format="raw", timeout_ms=10_000)
        schema = StructType([StructField("body", StringType())])
        writer = writers.LedgerWriter()
        assert writer.begin(options, schema, "copy", overwrite=False) is None
        servers = writer.servers
        assert set(servers) == set(cluster.servers.split(","))
        old = replace(options, servers=GONE)
        bodies = RowBodies(schema, old)
        rows = pa.record_batch({"body": ["one", "two"]})
        part = writers.staged(old, servers, bodies, "", iter([rows]))
        assert part.rows == 2
        assert set(servers) <= set(part.servers)
        writers.committed(old, "copy", 0, [part])
        with connect(cluster.servers) as log:
            assert [entry.body for entry in log.read(0)] == [b"one", b"two"]
