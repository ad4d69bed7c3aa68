"""One Spark for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import quorumlog.spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`quorumlog.spark.session()` on two cores, with what makes a short-lived JVM start faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        for name in ("SPARK_HOME", "SPARK_LOCAL_IP", "JAVA_HOME"):
            # What session() sets is taken back at the end, for the tests of other folders.
            patch.setenv(name, os.environ.get(name, ""))
            patch.delenv(name)
        session = quorumlog.spark.session(
            "quorumlog-tests",
            "local[2]",
            **{"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2},
        )
        yield session
        session.stop()
