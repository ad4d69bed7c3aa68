"""A standalone cluster of Spark: a master and two workers as processes, and a driver beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.spark_cluster import SparkCluster
from quorumlog import LocalCluster, connect

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
import quorumlog.spark
from harness.spark_cluster import SETTINGS
master, servers = sys.argv[1:]
quiet = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
spark = quorumlog.spark.session("standalone", master, **SETTINGS, **quiet)
log = spark.read.format("quorumlog").options(servers=servers, minPartitions=4).load()
print("rows", log.where("length(body) = 6").count(), log.rdd.getNumPartitions())
log.select("body").write.format("quorumlog").mode("append").options(
    servers=servers, producerId="again", batchId=0
).save()
print("executors", len(spark._jsc.sc().statusTracker().getExecutorInfos()) - 1)
"""


@pytest.mark.long
@pytest.mark.timeout(600)  # five JVMs, however little of a machine is left for them
def test_executors_of_a_cluster_read_and_write_the_log(tmp_path: Path) -> None:
    """The package is installed where executors run, as docs/spark.md asks for."""
    bodies = [b"%06d" % number for number in range(2000)]
    with (
        LocalCluster(members=1) as members,
        connect(members.servers) as log,
        SparkCluster(tmp_path) as cluster,
    ):
        log.append_batch(bodies)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.master, members.servers],
            env=cluster.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{cluster.log.read_text()}"
        assert done.stdout.splitlines() == ["rows 2000 4", "executors 2"]
        assert [entry.body for entry in log.read(0)] == bodies * 2
