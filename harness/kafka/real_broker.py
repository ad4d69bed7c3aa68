"""A real Kafka on loopback, in KRaft mode, from Maven Central; stopped by its processes.

Its jars hold the Java clients too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from harness.kafka.wire import KafkaWire
from harness.maven import jars_of, run
from quorumlog.server.free_ports import free_ports

VERSIONS = ("3.9", "4.3")
START_TIMEOUT_S = 240.0
_CACHE = Path.home() / ".cache" / "quorumlog-kafka"
_CLUSTER_ID = "cXVvcnVtbG9nLXRlc3RzLg"
_HERE = Path(__file__).parent


class RealKafka(NamedTuple):
    servers: str
    pids: Sequence[int]


def kafka_jars(version: str) -> str:
    """A class path. Raises Unavailable."""
    return jars_of(_HERE / f"kafka-{version}.xml", _CACHE / version)


def spark_jars() -> list[str]:
    """Of Spark's connector. Raises Unavailable."""
    folder = jars_of(_HERE / "spark.xml", _CACHE / "spark").removesuffix("/*")
    return sorted(str(jar) for jar in Path(folder).glob("*.jar"))


@contextmanager
def real_kafka(
    folder: Path, version: str, *, brokers: int = 1, options: Mapping[str, object] | None = None
) -> Iterator[RealKafka]:
    """Once all of them answer. `options`: of the brokers. Raises Unavailable."""
    jars = kafka_jars(version)
    ports = free_ports(2 * brokers)
    addresses = [f"127.0.0.1:{port}" for port in ports[:brokers]]
    controllers = [f"127.0.0.1:{port}" for port in ports[brokers:]]
    folder.mkdir(parents=True)
    command = ("java", "-Xmx1g", "-cp", jars)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, (address, controller) in enumerate(zip(addresses, controllers, strict=True)):
            given: dict[str, object] = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": ",".join(f"{n}@{at}" for n, at in enumerate(controllers)),
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
                "advertised.listeners": f"PLAINTEXT://{address}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": folder / f"data{number}",
                "default.replication.factor": brokers,
                "min.insync.replicas": brokers // 2 + 1,
                "offsets.topic.replication.factor": brokers,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.replication.factor": brokers,
                "transaction.state.log.num.partitions": 1,
                "transaction.state.log.min.isr": brokers // 2 + 1,
                **(options or {}),
            }
            file = folder / f"broker{number}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
            run([*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", file])
            with (folder / f"log{number}").open("wb") as log:
                main: list[str | Path] = [*command, "kafka.Kafka", file]
                processes.append(subprocess.Popen(main, cwd=folder, stdout=log, stderr=log))
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not all(map(_is_ready, addresses)):
            if any(each.poll() is not None for each in processes) or time.monotonic() > deadline_s:
                raise RuntimeError(f"Kafka does not start: {(folder / 'log0').read_text()[-2_000:]}")
            time.sleep(0.1)
        yield RealKafka(",".join(addresses), [each.pid for each in processes])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _is_ready(address: str) -> bool:
    """It knows of a coordinator, and gives out producers' ids."""
    with suppress(OSError, EOFError), KafkaWire(address) as wire:
        found = wire.ask("find_coordinator", 1, key="ready", key_type=0)
        made = wire.ask("init_producer_id", 1, transactional_id=None, transaction_timeout=60_000)
        return not found.error_code and not made.error_code
    return False
