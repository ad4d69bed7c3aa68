"""Executors write an archive into an object store, and read it: the same to the byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from harness.object_store import ObjectStore
from quorumlog import LocalCluster, connect
from quorumlog.pipelines.archive import MANIFEST_NAME, PARTS, Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

URL = "s3://lake/orders"
# A Spark of its own: its workers get the environment that its JVM was started with.
DRIVER = """
import json, sys, threading
import quorumlog.spark
from quorumlog.errors import ConfigError
from quorumlog.spark.pipelines import Place, SparkEngine, archive, audit

servers, url = sys.argv[1:]
spark = quorumlog.spark.session("objects", "local[2]", **{"spark.ui.enabled": False})
place, engine = Place(servers=servers), SparkEngine(spark)
for stop_index in (1_000, 2_000):
    archive(place, url, part_bytes=40_000, stop_index=stop_index, verify=True, engine=engine)
differences = audit([place, Place(archive=url)], engine=engine).differences
ended = []
def beside(stop_index):
    try:
        archive(place, url + "-2", part_bytes=40_000, stop_index=stop_index, engine=engine)
    except ConfigError as error:
        ended.append(str(error))
for stop_index in (1_000, 2_000, 3_000):
    threads = [threading.Thread(target=beside, args=[stop_index]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    archive(place, url + "-2", part_bytes=40_000, stop_index=stop_index, engine=engine)
differences += audit([place, Place(archive=url + "-2")], engine=engine).differences
strange = [told for told in ended if "another archive run has written there" not in told]
reading = spark.read.format("quorumlog").option("archive", url)
alone = reading.load().selectExpr("count(*)", "max(index)").first()
together = reading.option("servers", servers).load().count()
print(json.dumps([len(differences), len(strange), *alone, together]))
"""


def keys_below(store: ObjectStore, prefix: str) -> list[str]:
    status, _, content = store.ask("GET", f"/lake?list-type=2&prefix={prefix}")
    assert status == 200
    return re.findall("<Key>(.*?)</Key>", content.decode())


def test_an_archive_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStore("lake") as store, LocalCluster(members=1, directory=tmp_path / "member") as cluster:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with connect(cluster.servers) as log:
            for first in range(0, 3000, 500):
                log.append_batch([b"%d:" % n + bytes(n % 90) for n in range(first, first + 500)])
        command = [sys.executable, "-c", DRIVER, cluster.servers, URL]
        ran = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=280)
        assert ran.returncode == 0, ran.stderr
        assert store.environment["AWS_SECRET_ACCESS_KEY"] not in ran.stdout + ran.stderr
        differences, strange, rows, last_index, together = json.loads(ran.stdout.splitlines()[-1])
        for stop_index in (1_000, 2_000):
            archive(
                Place(servers=cluster.servers),
                str(tmp_path / "a"),
                part_bytes=40_000,
                stop_index=stop_index,
            )
        again = Archive.open(f"{URL}-2").manifest
        names = {f"{URL}-2/{PARTS}/{part.file}" for part in again.parts} | {f"{URL}-2/{MANIFEST_NAME}"}
        assert {f"s3://lake/{key}" for key in keys_below(store, "orders-2/")} == names
        assert again.parts[-1].stop_index == 3_000
        ours, theirs = (Archive.open(each).manifest for each in (str(tmp_path / "a"), URL))
    assert len(ours.parts) > 3 and ours == msgspec.structs.replace(theirs, commit=UNSET)
    assert (differences, strange, rows, last_index) == (
        0,
        0,
        sum(part.rows for part in ours.parts),
        1_999,
    )
    assert together == 3_000
