"""Kafka without ZooKeeper: three processes, each broker and controller, acks=all on one partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, Unavailable, maven_version
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, MeasuringFailed, Shape

_ARTIFACT = "kafka_2.13"
_JAVA = ("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
"""The heap is that of Kafka's own start script."""
_BATCH = 256
_WINDOW = IN_FLIGHT_RECORDS // _BATCH
_CLUSTER_ID = "cXVvcnVtbG9nLWJlbmNoLQ"
"""Any 16 bytes in base64."""


class Kafka(Peer):
    family = "kafka"
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(
            1,
            IN_FLIGHT_RECORDS,
            1,
            f"producer batches of 16 KiB, {IN_FLIGHT_RECORDS:,} in flight",
        ),
        "batch-call": Shape(1, _WINDOW, _BATCH, f"producer batches of {_BATCH}, {_WINDOW} in flight"),
    }

    def __init__(self, *, flush_each: bool) -> None:
        self.synced = flush_each
        self.name = "kafka-fsync" if flush_each else "kafka"
        self.durability = "log synced on all in sync" if flush_each else "page cache of all in sync"

    @property
    def title(self) -> str:
        return f"Kafka {maven_version('kafka', _ARTIFACT)}{' flush each' if self.synced else ''}"

    def set_up(self, cache: Cache) -> None:
        self._classpath = cache.maven_classpath("kafka")
        self.client = [cache.go_build("kafka", ".", "kafka-load")]
        self._cache = cache

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        controllers = ",".join(f"{i}@127.0.0.1:{own[1]}" for i, own in enumerate(ports))
        commands = []
        for number, (client_port, controller_port) in enumerate(ports):
            options: dict[str, int | str | Path] = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": controllers,
                "listeners": f"PLAINTEXT://127.0.0.1:{client_port},"
                f"CONTROLLER://127.0.0.1:{controller_port}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": folder / f"n{number}",
                "default.replication.factor": len(ports),
                "min.insync.replicas": 2,
                "offsets.topic.replication.factor": len(ports),
                "transaction.state.log.replication.factor": len(ports),
            }
            if self.synced:
                options["log.flush.interval.messages"] = 1
            path = folder / f"n{number}.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
            self._format(path)
            main = ("-cp", self._classpath, "kafka.Kafka", path)
            commands.append(ServerCommand(f"n{number}", [*_JAVA, *main]))
        return commands

    def _format(self, path: Path) -> None:
        """A broker starts only on a directory that this tool has marked as its cluster's."""
        tool = [*_JAVA, "-cp", self._classpath, "kafka.tools.StorageTool"]
        try:
            self._cache.run([*tool, "format", "--cluster-id", _CLUSTER_ID, "--config", path])
        except Unavailable as error:
            raise MeasuringFailed(str(error)) from error
