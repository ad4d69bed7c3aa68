"""The same requests to members and to a real Kafka: docs/kafka.md says what is answered differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import VERSIONS, real_kafka
from harness.maven import Unavailable
from tests.docs.markdown import DOCS, section, tables
from tests.kafka.doors.script import Script, codes_in, differences

pytestmark = [pytest.mark.doors, pytest.mark.timeout(400)]


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_those_of_kafka_but_for_what_the_page_says(tmp_path: Path, version: str) -> None:
    try:
        with real_kafka(tmp_path / "kafka", version) as kafka:
            theirs = Script(kafka.servers).run()
    except Unavailable as reason:
        pytest.skip(f"Kafka is not to be had: {reason}")
    with KafkaMembers(tmp_path / "members") as members:
        leader = members.kafka_leader()
        ours = Script(members.kafka_addresses[leader.member_id]).run()
    found = {
        label: (codes_in(own), codes_in(other))
        for label, (own, other) in differences(ours, theirs).items()
    }
    (rows,) = tables(section((DOCS / "kafka.md").read_text(), "Answers that differ from Kafka's"))
    assert found == {row["request"]: (row["quorumlog"], row["Kafka"]) for row in rows}
