"""The source, the sink, the view of messages and pipelines as a user, whose password is in no plan."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorumlog import connect
from quorumlog.broker import Message
from quorumlog.broker import connect as broker_of
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.errors import ConfigError
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, clients_are, verifier_for
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.places import Place
from quorumlog.spark import newest_batch
from quorumlog.spark.pipelines import SparkEngine, replay_frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PASSWORD = "open-sesame-4711"


def test_all_of_it_is_done_as_a_user_and_no_plan_or_log_has_the_password(
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    root = ClientUser("root", password_file=str(file))
    plans = ""
    with caplog.at_level(logging.DEBUG), LocalBrokers(1, topics={"orders": 1}) as brokers:
        servers = brokers.cluster.servers
        with connect(servers) as log:
            verifier = verifier_for(PASSWORD)
            log.change_users(UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier))
        with broker_of(brokers.servers, user=root) as broker:
            broker.send_batch([Message("orders", b"a message")], queue_id=0)
        options = {"servers": servers, "user": "root", "passwordFile": str(file)}
        rows = spark.range(0, 20, numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
        sink = rows.write.format("quorumlog").mode("append")
        sink.options(**options, producerId="rows", batchId=1).save()
        assert newest_batch(servers, "rows", user=root) == 1
        source = spark.read.format("quorumlog").options(**options, columns="body").load()
        messages = spark.read.format("quorumlog").options(
            **{**options, "servers": brokers.servers}, view="messages", columns="body"
        )
        written = {b"%d" % number for number in range(20)}
        assert written <= {bytes(row.body) for row in source.collect()}
        found = messages.load()
        assert [bytes(row.body) for row in found.collect()] == [b"a message"]
        for frame in (source, found):
            frame.explain(True)
            plans += frame._jdf.queryExecution().toString()
        place = Place(servers=servers)
        with clients_are(root):
            assert not audit([place, place], engine=SparkEngine(spark)).differences
            replayed = replay_frames(spark, place, place, "again", stop_index=5, again=True)
            assert replayed.appended >= 0
        with (
            clients_are(ClientUser("root", PASSWORD)),
            pytest.raises(ConfigError, match="use password_file"),
        ):
            audit([place, place], engine=SparkEngine(spark))
        nobody = spark.read.format("quorumlog").option("servers", servers)
        with pytest.raises(Exception, match="named none"):
            nobody.load().collect()
    said = "".join(capfd.readouterr()) + caplog.text + plans
    assert "body" in said and PASSWORD not in said
