"""Spark's own connector to Kafka: rows written, read and streamed; a query goes on over a failover."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import spark_jars
from harness.maven import Unavailable
from tests.kafka.doors.spark_job import ROWS
from tests.waiting import eventually

pytestmark = [pytest.mark.doors, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def jars() -> str:
    try:
        return ",".join(spark_jars())
    except Unavailable as reason:
        pytest.skip(f"Spark's connector is not to be had: {reason}")


def job(what: str, servers: str, topic: str, folder: Path, jars: str) -> subprocess.Popen[str]:
    with (folder / "spark.log").open("w") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.kafka.doors.spark_job",
                what,
                servers,
                topic,
                str(folder),
                jars,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def test_rows_are_written_read_and_streamed(members: KafkaMembers, tmp_path: Path, jars: str) -> None:
    topic = f"spark-{time.time_ns()}"
    with job("batch", members.kafka_servers, topic, tmp_path, jars) as process:
        said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, (tmp_path / "spark.log").read_text()[-3_000:]
    columns = "key,value,topic,partition,offset,timestamp,timestampType"
    assert said.splitlines() == [f"{ROWS} {ROWS} {columns}", str(ROWS)]


def committed(folder: Path) -> set[Path]:
    """Files of micro-batches that are done: the folder also has those that Spark is writing, or has
    given up."""
    logs = [log.read_text().splitlines() for log in (folder / "_spark_metadata").glob("[0-9]*")]
    return {folder / Path(json.loads(line)["path"]).name for _, *lines in logs for line in lines}


def test_a_query_goes_on_over_a_failover(tmp_path: Path, jars: str) -> None:
    from confluent_kafka import Producer

    topic = "streamed"
    with KafkaMembers(tmp_path / "members") as members:
        members.kafka_leader()
        producer = Producer({"bootstrap.servers": members.kafka_servers, "enable.idempotence": True})
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for number in range(sent, sent + count):
                producer.produce(topic, str(number))
            assert producer.flush(240) == 0
            sent += count

        def read() -> list[str]:
            rows = [pyarrow.parquet.read_table(file) for file in committed(tmp_path / "forever")]
            return [value for each in rows for value in each["value"].to_pylist()]

        send(1_000)
        with job("stream", members.kafka_servers, topic, tmp_path, jars) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "started\n"
                eventually(lambda: len(read()) >= sent, timeout_s=240, what="the first rows")
                for _ in range(2):
                    leader = members.kafka_leader()
                    leader.kill()
                    send(1_000)
                    eventually(lambda: len(read()) >= sent, timeout_s=240, what="rows after a failover")
                    leader.start()
                said, _ = process.communicate(timeout=240)
                assert said == "stopped\n", (tmp_path / "spark.log").read_text()[-3_000:]
            finally:
                process.kill()
        assert sorted(map(int, read())) == list(range(sent)), "each once"
