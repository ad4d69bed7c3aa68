"""Kafka's own Java clients, told what to do by the line (JavaClient.java)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.kafka.real_broker import kafka_jars
from harness.maven import run

TIMEOUT_S = 180.0
_SOURCE = Path(__file__).with_name("JavaClient.java")


class JavaClient:
    def __init__(self, folder: Path, version: str) -> None:
        """`folder`: for its class. Raises Unavailable."""
        jars = kafka_jars(version)
        run(["javac", "-nowarn", "-cp", jars, "-d", folder, _SOURCE])
        self._java = (
            "java",
            "-XX:TieredStopAtLevel=1",
            "-Xmx256m",
            "-cp",
            f"{folder}:{jars}",
            "JavaClient",
        )

    def run(self, servers: str, *command: str | int) -> list[list[str]]:
        """The words of each line. Raises CalledProcessError, with what it said."""
        done = subprocess.run(
            [*self._java, servers, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return [line.split(" ") for line in done.stdout.splitlines()]
