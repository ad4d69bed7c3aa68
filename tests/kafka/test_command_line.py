"""`quorumlog kafka`, `serve --kafka` and `dev --kafka`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from quorumlog.cli.main import app
from quorumlog.cli.run.serving_member import kafka_of
from quorumlog.cli.run.toml_config import load_server_config
from quorumlog.config import GroupConfig, KafkaOptions, parse_members
from quorumlog.errors import ConfigError
from tests.cli.named_options import options_that_do_not_exist
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as made:
        yield made


@pytest.fixture
def kafka(cluster: KafkaCluster) -> Run:
    def run(*arguments: str, status: int = 0) -> Any:
        """Each line of output, from JSON; the result of a failure."""
        words = ["kafka", *arguments, "--servers", cluster.servers, "--json"]
        result: Result = CliRunner().invoke(app, words)
        assert result.exit_code == status, (result.output, result.exception)
        assert options_that_do_not_exist(words, result.stderr) == [], result.stderr
        return result if status else [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_topics_are_created_listed_shown_grown_and_deleted(cluster: KafkaCluster, kafka: Run) -> None:
    kafka("topic", "create", "orders", "--partitions", "2")
    assert [(each["topic"], each["partitions"]) for each in kafka("topic", "list")] == [("orders", 2)]
    with cluster.wire() as wire:
        rows = [{"index": 1, "records": made_batch([b"a", b"b"])}]
        topics = [{"name": "orders", "partition_data": rows}]
        values = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
        wire.ask("produce", 9, **values)
    assert kafka("topic", "show", "orders") == [
        {"partition": 0, "start_offset": 0, "end_offset": 0},
        {"partition": 1, "start_offset": 0, "end_offset": 2},
    ]
    kafka("topic", "partitions", "orders", "3")
    assert len(kafka("topic", "show", "orders")) == 3
    kafka("topic", "delete", "orders")
    assert kafka("topic", "list") == []


def test_what_is_refused_is_said(kafka: Run) -> None:
    kafka("topic", "create", "here")
    assert "already exists" in kafka("topic", "create", "here", status=2).stderr
    assert "can only grow" in kafka("topic", "partitions", "here", "1", status=2).stderr
    for words in (("show", "not-here"), ("delete", "not-here"), ("partitions", "not-here", "3")):
        assert "there is no topic not-here" in kafka("topic", *words, status=2).stderr
    kafka("topic", "delete", "here")


def test_the_port_of_the_log_is_told_from_that_of_kafka(cluster: KafkaCluster) -> None:
    """Both may be in QUORUMLOG_SERVERS."""
    words = ["kafka", "topic", "list", "--servers", cluster.cluster.servers, "--timeout", "5"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "--kafka" in result.stderr


def test_groups_are_listed_with_what_they_have_not_read(cluster: KafkaCluster, kafka: Run) -> None:
    kafka("topic", "create", "read")
    assert kafka("group", "list") == []
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    with cluster.wire() as wire:
        answer = wire.ask(
            "offset_commit",
            7,
            group_id="readers",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "read", "partitions": [partition]}],
        )
    assert answer.topics[0].partitions[0].error_code == 0
    assert kafka("group", "list") == [{"group": "readers", "state": "Empty"}]
    (row,) = kafka("group", "show", "readers")
    assert (row["topic"], row["partition"], row["committed_offset"], row["lag"]) == ("read", 0, 0, 0)
    kafka("topic", "delete", "read")


# ---------------------------------------------------------------- options


def test_the_table_of_a_file_and_the_command_line_name_the_port(tmp_path: Path) -> None:
    path = tmp_path / "quorumlog.toml"
    path.write_text(
        'member_id = "n0"\nmembers = "n0=127.0.0.1:1"\ndata_dir = "d"\n'
        '[kafka]\nlisten = "127.0.0.1:9092"\npartitions = 3\n'
    )
    assert load_server_config(str(path), {}).kafka == KafkaOptions("127.0.0.1:9092", partitions=3)
    given = {"kafka_listen": "127.0.0.1:9093"}
    assert load_server_config(str(path), given).kafka == KafkaOptions("127.0.0.1:9093", partitions=3)
    path.write_text(path.read_text() + 'group = "missing"\n')
    with pytest.raises(ConfigError, match="there is no group 'missing'"):
        load_server_config(str(path), {})


def test_members_are_told_apart_by_where_clients_reach_them() -> None:
    def endpoint(members: str, options: KafkaOptions) -> Any:
        config = GroupConfig(member_id="n1", members=parse_members(members), data_dir="d")
        return kafka_of([config], options, None)

    hosts = "n0=10.0.0.1:1,n1=10.0.0.2:1"
    nodes = endpoint(hosts, KafkaOptions("0.0.0.0:9092")).service.nodes
    assert nodes == {0: ("10.0.0.1", 9092), 1: ("10.0.0.2", 9092)}
    one_host = "n0=10.0.0.1:1,n1=10.0.0.1:2"
    with pytest.raises(ConfigError, match="--kafka-servers"):
        endpoint(one_host, KafkaOptions("10.0.0.1:9092"))
    servers = "n0=10.0.0.1:9092,n1=10.0.0.1:9093"
    nodes = endpoint(one_host, KafkaOptions("10.0.0.1:9093", servers)).service.nodes
    assert nodes == {0: ("10.0.0.1", 9092), 1: ("10.0.0.1", 9093)}
    with pytest.raises(ConfigError, match="must end with a number"):
        config = GroupConfig(member_id="a", members=parse_members("a=10.0.0.1:1"), data_dir="d")
        kafka_of([config], KafkaOptions("10.0.0.1:9092"), None)
