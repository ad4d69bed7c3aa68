"""Kafka's own Java clients, told what to do by the line (JavaClient.java)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.kafka.real_broker import kafka_jars
from harness.maven import run

TIMEOUT_S = 180.0
_SOURCE = Path(__file__).with_name("JavaClient.java")


class JavaClient:
    def __init__(
        self, folder: Path, version: str, properties: Mapping[str, object] | None = None
    ) -> None:
        """`folder`: for its class. `properties`: more of its clients'. Raises Unavailable."""
        jars = kafka_jars(version)
        run(["javac", "-nowarn", "-cp", jars, "-d", folder, _SOURCE])
        given = folder / "client.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in (properties or {}).items()))
        self._java = (
            "java",
            f"-Dclient={given}",
            "-XX:TieredStopAtLevel=1",
            "-Xmx256m",
            "-cp",
            f"{folder}:{jars}",
            "JavaClient",
        )

    def command(self, servers: str, *command: str | int) -> list[str]:
        return [*self._java, servers, *map(str, command)]

    def run(self, servers: str, *command: str | int) -> list[list[str]]:
        """The words of each line. Raises CalledProcessError, with what it said."""
        done = subprocess.run(
            self.command(servers, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return [line.split(" ") for line in done.stdout.splitlines()]
