"""What the tests with Kafka's own clients share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.kafka.members import KafkaMembers


@pytest.fixture(scope="package")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaMembers]:
    """Three that nobody kills."""
    with KafkaMembers(tmp_path_factory.mktemp("members") / "all") as running:
        running.kafka_leader()
        yield running
        running.check_running()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path
