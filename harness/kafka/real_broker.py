"""A real Kafka of one broker on loopback, in KRaft mode, from Maven Central; stopped by its process.

Its jars hold the Java clients too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.kafka.wire import KafkaWire
from harness.maven import jars_of, run
from quorumlog.server.free_ports import free_ports

VERSIONS = ("3.9", "4.3")
START_TIMEOUT_S = 120.0
_CACHE = Path.home() / ".cache" / "quorumlog-kafka"
_CLUSTER_ID = "cXVvcnVtbG9nLXRlc3RzLg"
_HERE = Path(__file__).parent


def kafka_jars(version: str) -> str:
    """A class path. Raises Unavailable."""
    return jars_of(_HERE / f"kafka-{version}.xml", _CACHE / version)


def spark_jars() -> list[str]:
    """Of Spark's connector. Raises Unavailable."""
    folder = jars_of(_HERE / "spark.xml", _CACHE / "spark").removesuffix("/*")
    return sorted(str(jar) for jar in Path(folder).glob("*.jar"))


@contextmanager
def real_kafka(folder: Path, version: str, **options: str | int) -> Iterator[str]:
    """Its address, once it answers. `options`: of the broker, with _ for a dot. Raises Unavailable."""
    jars = kafka_jars(version)
    port, controller = free_ports(2)
    address = f"127.0.0.1:{port}"
    folder.mkdir(parents=True)
    given = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    java = ("java", "-Xmx1g", "-cp", jars)
    run([*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", file])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", file], stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _is_ready(address):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"Kafka does not start: {(folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def _is_ready(address: str) -> bool:
    """It has a coordinator, and gives out producers' ids."""
    with suppress(OSError, EOFError), KafkaWire(address) as wire:
        found = wire.ask("find_coordinator", 1, key="ready", key_type=0)
        made = wire.ask("init_producer_id", 1, transactional_id=None, transaction_timeout=60_000)
        return not found.error_code and not made.error_code
    return False
