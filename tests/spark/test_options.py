from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import ConfigError
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.options import OPTION_NAMES, AppendedAt, LedgerOptions

SERVERS = {"servers": "127.0.0.1:20911,127.0.0.1:20912"}


def test_defaults() -> None:
    options = LedgerOptions.parse(SERVERS)
    assert options == LedgerOptions(servers="127.0.0.1:20911,127.0.0.1:20912")
    assert options.starting == "earliest"
    assert options.ending == "latest"
    assert options.served_group == "default"
    assert options.fail_on_data_loss
    assert options.verify_crc
    assert not options.pushdown


def test_every_option_with_the_keys_that_spark_hands_over() -> None:
    given = {
        "servers": " a:1 , b:2 ",
        "group": "orders",
        "startingoffsets": "5",
        "endingoffsets": '{"orders": 70}',
        "columns": "index, body",
        "minpartitions": "3",
        "partitionbytes": "1048576",
        "maxrecordsperpartition": "1000",
        "failondataloss": "False",
        "readconsistency": "LOCAL",
        "verifycrc": "false",
        "batchbytes": "65536",
        "prefetch": "0",
        "pushdown": "true",
        "timeoutms": "1500",
        "maxoffsetspertrigger": "10000",
        "maxbytespertrigger": "1000000",
        "minoffsetspertrigger": "100",
        "maxtriggerdelay": "2m",
        "reader": "billing",
        "readerhold": "true",
    }
    assert LedgerOptions.parse(given) == LedgerOptions(
        servers="a:1,b:2",
        group="orders",
        starting=5,
        ending=70,
        columns=("index", "body"),
        min_partitions=3,
        partition_bytes=1048576,
        max_records_per_partition=1000,
        fail_on_data_loss=False,
        read_consistency="local",
        verify_crc=False,
        batch_bytes=65536,
        prefetch=0,
        pushdown=True,
        timeout_ms=1500,
        max_offsets=10000,
        max_bytes=1000000,
        min_offsets=100,
        max_trigger_delay_ms=120_000,
        reader="billing",
        reader_hold=True,
    )
    others = {"path", "archive", "subscribe", "startingtimestamp", "endingtimestamp", "maxstalenessms"}
    others |= {"subscribepattern", "tlsca", "tlscert", "tlskey", "user", "passwordfile"}
    by_time = {"startingoffsetsbytimestamp", "endingoffsetsbytimestamp"}
    assert {*given, *others, *by_time} == {name.lower() for name in OPTION_NAMES}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "-2", "endingOffsets": "-1"}, {}),
        ({"startingOffsets": '{"default": {"0": 17}}'}, {"starting": 17}),
        ({"startingOffsets": '{"default": {"0": -2}}'}, {"starting": "earliest"}),
        ({"endingTimestamp": "9"}, {"ending": AppendedAt(9)}),
        ({"startingOffsetsByTimestamp": '{"default": {"0": 5}}'}, {"starting": AppendedAt(5)}),
        ({"endingOffsetsByTimestamp": '{"default": 5}'}, {"ending": AppendedAt(5)}),
    ],
)
def test_the_forms_of_kafkas_source_are_taken(given: dict[str, str], expected: dict[str, Any]) -> None:
    alias = {"kafka.bootstrap.servers": "a:1"}
    assert LedgerOptions.parse({**alias, **given}) == LedgerOptions(servers="a:1", **expected)


def test_times_may_be_stated_by_group() -> None:
    stated = {"subscribe": "a,b", "startingOffsetsByTimestamp": '{"a": 5, "b": {"0": 7}}'}
    options = LedgerOptions.parse({**SERVERS, **stated})
    assert [each.starting for each in options.by_group()] == [AppendedAt(5), AppendedAt(7)]
    with pytest.raises(ConfigError, match="names the partitions 0, 1"):
        LedgerOptions.parse({**SERVERS, "startingOffsets": '{"a": {"0": 1, "1": 2}}'})
    for others in ('{"a": 5}', '{"a": 5, "default": 7}'):
        with pytest.raises(ConfigError, match=r"names the groups a.*, and 'default' alone is read"):
            LedgerOptions.parse({**SERVERS, "startingOffsets": others})
        with pytest.raises(ConfigError, match=r"names the groups a.*, and 'default' alone is read"):
            LedgerOptions.parse({**SERVERS, "endingOffsetsByTimestamp": others})
    with pytest.raises(ConfigError, match="servers is given twice"):
        LedgerOptions.parse({**SERVERS, "kafka.bootstrap.servers": "b:2"})


@pytest.mark.parametrize("place", [{"path": "/data/n0"}, {"archive": "/data/kept"}])
def test_times_of_a_directory_are_those_of_the_group_that_it_holds(place: dict[str, str]) -> None:
    """Which it holds is looked at when it is opened."""
    stated = {"startingOffsetsByTimestamp": '{"orders": 5}', "endingOffsetsByTimestamp": '{"orders": 9}'}
    options = LedgerOptions.parse({**place, **stated})
    assert (options.group, options.starting, options.ending) == ("orders", AppendedAt(5), AppendedAt(9))
    assert LedgerOptions.parse(place).group == ""
    two = {**stated, "endingOffsetsByTimestamp": '{"default": 9}'}
    with pytest.raises(ConfigError, match="names the groups default, and 'orders' alone is read"):
        LedgerOptions.parse({**place, **two})


def test_a_group_may_be_subscribed_to_as_with_kafka() -> None:
    assert LedgerOptions.parse({**SERVERS, "subscribe": "orders"}).served_group == "orders"


def test_groups_may_be_subscribed_to_by_a_pattern_of_whole_names() -> None:
    options = LedgerOptions.parse({**SERVERS, "subscribePattern": "orders.*", "minPartitions": "4"})
    served = ["orders.eu", "default", "orders", "my.orders", "orders.staging"]
    found = options.subscribed_to(served).by_group()
    assert [each.served_group for each in found] == ["orders", "orders.eu"]
    assert [each.min_partitions for each in found] == [2, 2]
    assert not options.subscribed_to(["default"]).by_group()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscribePattern": "("}, "subscribePattern is no regular expression"),
        ({"subscribePattern": "a", "subscribe": "b"}, "subscribe and subscribePattern exclude"),
        ({"subscribePattern": "a", "group": "b"}, "group and subscribePattern exclude"),
        ({"subscribePattern": "a", "startingOffsets": "7"}, "subscribePattern may find others"),
        ({"subscribePattern": "a", "endingOffsets": '{"a": 7}'}, "subscribePattern may find others"),
        ({"subscribePattern": "a", "startingOffsetsByTimestamp": '{"a": 7}'}, "may find others"),
        ({"subscribePattern": "a", "servers": "", "path": "/data"}, "subscribePattern names several"),
    ],
)
def test_a_pattern_of_groups_that_says_too_little(given: dict[str, str], told: str) -> None:
    given = {key: value for key, value in {**SERVERS, **given}.items() if value}
    with pytest.raises(ConfigError, match=told):
        LedgerOptions.parse(given)


def test_columns_are_named_in_any_case() -> None:
    assert LedgerOptions.parse({**SERVERS, "columns": "Index, BODY"}).columns == ("index", "body")


def test_batches_are_fetched_ahead_from_servers_and_not_from_cached_files() -> None:
    assert LedgerOptions.parse(SERVERS).batches_ahead == 2
    assert LedgerOptions.parse({"path": "/data/n0"}).batches_ahead == 0
    assert LedgerOptions.parse({"path": "/data/n0", "prefetch": "3"}).batches_ahead == 3


@pytest.mark.parametrize("path", ["/data/n0", "file:/data/n0", "file:///data/n0"])
def test_a_path_may_be_a_file_uri(path: str) -> None:
    assert LedgerOptions.parse({"path": path}).path == "/data/n0"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {**SERVERS, "startingOffset": "1"},
            "unknown option 'startingOffset'.*startingOffsets, starting",
        ),
        ({}, "needs option servers .* or option path"),
        ({**SERVERS, "path": "/data"}, "servers and path exclude each other"),
        ({"paths": '["a", "b"]'}, "one path at a time"),
        ({"servers": " , "}, "option servers is empty"),
        ({"servers": "localhost"}, "option servers: 'localhost' is not an address"),
        ({"path": ""}, "option path is empty"),
        ({**SERVERS, "group": ""}, "option group is empty"),
        ({**SERVERS, "minPartitions": "many"}, "minPartitions must be a whole number, not 'many'"),
        ({**SERVERS, "minPartitions": "-1"}, "minPartitions must be in 0 .. "),
        ({**SERVERS, "group": "a", "subscribe": "b"}, "group and subscribe are two names of one thing"),
        ({**SERVERS, "subscribe": "a,a"}, "subscribe names a group twice"),
        ({"path": "/data", "subscribe": "a,b"}, "a directory or an archive holds one"),
        (
            {**SERVERS, "subscribe": "a,b", "startingoffsets": "5"},
            "startingOffsets is 5, of which group",
        ),
        (
            {**SERVERS, "subscribe": "a,b", "endingoffsets": '{"a": 5}'},
            "groups a, and subscribe names a, b",
        ),
        (
            {**SERVERS, "startingTimestamp": "0", "startingOffsets": "latest"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        ({**SERVERS, "maxTriggerDelay": "soon"}, "maxTriggerDelay must be like 500ms, 30s, 15m or 2h"),
        ({"path": "s3a://bucket/n0"}, "read from local paths only"),
        ({"path": "dbfs:/n0"}, "read from local paths only"),
        ({**SERVERS, "partitionBytes": "-1"}, "partitionBytes must be in 1"),
        ({**SERVERS, "batchBytes": "1000000000"}, "batchBytes must be in 1 .. 268435456"),
        ({**SERVERS, "prefetch": "65"}, "prefetch must be in 0 .. 64, not 65"),
        ({**SERVERS, "failOnDataLoss": "yes"}, "failOnDataLoss must be true or false, not 'yes'"),
        ({"path": "/d", "readConsistency": "read_index"}, "need option servers"),
        ({"path": "/d", "maxStalenessMs": "5"}, "need option servers"),
        (
            {**SERVERS, "maxStalenessMs": "5", "readConsistency": "local"},
            "maxStalenessMs is for readConsistency = committed, not local",
        ),
        ({**SERVERS, "readConsistency": "weak"}, "must be read_index, committed or local, not 'weak'"),
        ({**SERVERS, "columns": "index,key"}, "unknown column 'key'; valid are group, index"),
        ({**SERVERS, "columns": "value"}, "body_crc, body, append_time. Kafka's value is body here"),
        ({**SERVERS, "columns": "offset"}, "Kafka's offset is index here"),
        ({**SERVERS, "columns": "partition"}, "A log has no partitions: it has one order"),
        ({**SERVERS, "columns": ","}, "columns names no column"),
        ({**SERVERS, "columns": "body,body"}, "columns names a column twice"),
        ({**SERVERS, "startingOffsets": "first"}, "startingOffsets must be earliest, latest, an index"),
        ({**SERVERS, "endingOffsets": "-3"}, "endingOffsets must not be negative, not -3"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LedgerOptions.parse(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tlsCa": "/none"}, "option tlsCa /none: No such file"),
        ({"tlsCert": "/none"}, "option tlsCa is missing"),
        ({"user": "shop"}, r"user shop has no password: name a file \(option passwordFile\)"),
        ({"passwordFile": "/none"}, "the name of the user is missing: option user"),
    ],
)
def test_a_client_is_refused_with_the_names_of_options(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUORUMLOG_PASSWORD", raising=False)
    options = LedgerOptions.parse({"servers": "127.0.0.1:1", **given})
    with pytest.raises(ConfigError, match=message):
        _ = options.tls, options.as_user


def test_the_data_source_checks_its_options_when_spark_makes_it() -> None:
    with pytest.raises(ConfigError, match="unknown option 'topic'"):
        LedgerDataSource({**SERVERS, "topic": "x"})


def test_the_documents_name_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in OPTION_NAMES if f"`{name}`" not in text] == []
