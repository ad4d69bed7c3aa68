"""The source and the sink over TLS: what a query names is what its tasks use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.net.tls import ClientTls
from tests.certificates import directory, member, options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_are_written_and_read_over_tls(spark: SparkSession) -> None:
    ca = str(directory() / "ca.crt")
    with LocalCluster(store="memory", tls=lambda each: options_of(member(each))) as cluster:
        options = {"servers": cluster.servers, "tlsCa": ca}
        rows = spark.range(0, 100, numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
        rows.write.format("quorumlog").mode("append").options(**options).save()
        read = spark.read.format("quorumlog").options(**options, columns="body").load()
        written = {b"%d" % number for number in range(100)}
        assert {bytes(row.body) for row in read.collect()} == written
        with connect(cluster.servers, tls=ClientTls(ca)) as log:
            assert {entry.body for entry in log.read(0)} == written
