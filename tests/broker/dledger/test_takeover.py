"""A classic store that becomes the beginning of a replicated log."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest

from quorumlog import connect as log_of
from quorumlog.broker import BrokerAdmin, Message, connect
from quorumlog.broker.client.blocking import BrokerClient
from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.errors import NoSuchMessage
from quorumlog.broker.group_commands import GROUPS_TOPIC
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.message import PutMessageResult, encode_records, message_id_of
from quorumlog.broker.offline.offline_ledger import convert_to_classic
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.offline.old_log import (
    FOLDER_NAME,
    OldLog,
    OldState,
    decode_record,
    encode_record,
    first_difference,
)
from quorumlog.broker.offline.takeover import LEFT_USERS, OldReport, make_later_member, take_over
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.message_store import USERS_NAME, USERS_ON, MessageStore
from quorumlog.broker.wire import OldLogResponse
from quorumlog.client import LedgerClient
from quorumlog.client.async_client import Members
from quorumlog.config import MemberAddress, StoreConfig
from quorumlog.errors import ConfigError, MembershipRefused, NotAuthenticated, StoreFailure
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.server.free_ports import free_ports
from quorumlog.store.directory_kind import RESTORING_NAME
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.segments import segment_name
from quorumlog.store.state_files import FIRST_ADMIN_NAME, save_first_admin
from tests.broker.store.store_making import put_and_wait
from tests.broker.store.test_golden import CONFIG
from tests.waiting import eventually

MEMBERS = [MemberAddress("n0", "127.0.0.1", 20911)]
JAVA_STORE = Path(__file__).resolve().parents[2] / "fixtures" / "rocketmq-store"
STORAGE = StoreConfig(segment_bytes=CONFIG.mapped_file_size_commit_log, retention="off")


def test_a_store_that_runs_is_not_taken_over(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path / "store"), CONFIG)
    with pytest.raises(ConfigError, match="in use"):
        take_over(str(tmp_path / "store"), str(tmp_path / "log"), "n0", MEMBERS)
    store.close()


def _put(store: MessageStore, first: int, stop: int) -> None:
    messages = [Message("orders", b"%d " % n * (n % 60 + 1), keys=[f"k{n}"]) for n in range(first, stop)]
    records = RecordBatch.contiguous(*encode_records(messages, 0, 1_700_000_000_000))
    assert isinstance(put_and_wait(store, records), PutMessageResult)


def test_a_java_brokers_store_is_taken_over_and_read_through_the_seam(tmp_path: Path) -> None:
    for copy in ("n0", "n1", "n2"):
        shutil.copytree(JAVA_STORE, tmp_path / copy)
    with OfflineStore(str(tmp_path / "n0")) as store:
        old = [m for records in store.batches() for m in records.messages()]
    in_queue = [m for m in old if (m.topic, m.queue_id) == (old[0].topic, old[0].queue_id)]
    topic, queue_id, count = old[0].topic, old[0].queue_id, len(in_queue)
    with LocalBrokers(
        directory=tmp_path / "log", storage=STORAGE, staging=False, starts=False
    ) as brokers:
        members = brokers.cluster.members
        made = [
            take_over(str(tmp_path / each), str(tmp_path / "log" / each), each, members).record
            for each in ("n0", "n1", "n2")
        ]
        assert made[0] == made[1] == made[2]
        assert made[0].end_position % made[0].file_bytes == 0
        brokers.start()
        logs = [broker.log for broker in brokers.brokers.values()]
        eventually(lambda: max(log.confirm_offset for log in logs) == made[0].end_position)
        with connect(brokers.servers) as client:
            assert client.pull(topic, queue_id, 0, most_messages=count).messages == in_queue
            (found,) = client.query(old[3].topic, old[3].keys[0], most_messages=1)
            assert client.message(old[3].message_id) == old[3]
            assert found.keys[0] == old[3].keys[0]
            behind = client.send(Message(topic, b"behind the seam", keys=["new"]), queue_id=queue_id)
            assert behind.queue_offset == count
            assert behind.physical_offset > made[0].end_position
            eventually(lambda: client.max_offset(topic, queue_id) == count + 1)
            messages = client.pull(topic, queue_id, count - 3).messages
            assert messages[:-1] == in_queue[-3:]
            assert messages[-1].body == b"behind the seam"
            assert client.status().min_offset == 0
            # What a stopped member does not know to be committed is left out.
            own = brokers.brokers["n0"]
            eventually(lambda: own.reader.offset_at(QueueKey(topic, queue_id), 1 << 60) == count + 1)
        for each in ("n0", "n1", "n2"):
            brokers.cluster.stop(each)
        back = convert_to_classic(str(tmp_path / "log" / "n0"), str(tmp_path / "back"), CONFIG)
        assert (back.messages, back.left_out) == (len(old) + 1, 0)
    with OfflineStore(str(tmp_path / "back")) as store:
        assert store.verify()["problems"] == []


def test_queues_go_on_of_which_the_old_log_has_no_message_any_more(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path / "store"), CONFIG)
    rare = RecordBatch.contiguous(*encode_records([Message("rare", b"rare")] * 5, 0, 1_700_000_000_000))
    assert isinstance(put_and_wait(store, rare), PutMessageResult)
    while store.commit_log.max_offset < 2 * CONFIG.mapped_file_size_commit_log:
        _put(store, 0, 50)
    store.reput_once()
    store.cleaner.drop_before(CONFIG.mapped_file_size_commit_log)
    store.close()
    with LocalBrokers(
        1, directory=tmp_path / "log", storage=STORAGE, staging=False, starts=False
    ) as brokers:
        made = take_over(
            str(tmp_path / "store"), str(tmp_path / "log" / "n0"), "n0", brokers.cluster.members
        )
        assert made.record.queues == [("rare", 0, 5)]
        other = msgspec.structs.replace(made.record, queues=[])
        assert "copy the folder consumequeue" in first_difference(made.record, other)
        brokers.start()
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as client:
            assert client.send(Message("rare", b"rare")).queue_offset == 5
            eventually(lambda: client.max_offset("rare", 0) == 6)
            assert client.min_offset("rare", 0) == 5
            low = client.min_offset("orders", 0)
            assert 0 < low == client.pull("orders", 0, low).messages[0].queue_offset
        brokers.cluster.stop("n0")
        convert_to_classic(str(tmp_path / "log" / "n0"), str(tmp_path / "back"), CONFIG)
    with OfflineStore(str(tmp_path / "back")) as stopped:
        queue = stopped.queues.get(QueueKey("rare", 0))
        assert queue is not None and (queue.min_offset, queue.max_offset) == (5, 6)


def test_old_logs_that_differ_are_told_apart(tmp_path: Path) -> None:
    records = []
    for name, last in (("a", 50), ("b", 51)):
        store = MessageStore(str(tmp_path / name), replace(CONFIG, flush_disk_type=ASYNC_FLUSH))
        _put(store, 0, last)
        store.close()
        made = take_over(str(tmp_path / name), str(tmp_path / f"m{name}"), "n0", MEMBERS).record
        records.append(made)
    clusters = []
    for name in "ab":
        with DirectoryReader(OsDisk(), str(tmp_path / f"m{name}")) as reader:
            clusters.append(reader.formation.cluster_id)
    assert clusters[0] != clusters[1]  # so their members take nothing from each other
    assert first_difference(records[0], records[0]) == ""
    assert "they differ in the" in first_difference(*records)
    stored = msgspec.json.decode((tmp_path / "ma" / "taken-over").read_bytes())
    assert (stored["version"], stored["record"]["file_bytes"]) == (2, 16_384)


def is_let_in(servers: str, user: ClientUser) -> BrokerClient | None:
    try:
        return connect(servers, user=user)
    except NotAuthenticated:
        return None


def test_of_a_store_with_users_the_log_is_open_to_nobody_before_there_is_an_administrator(
    tmp_path: Path,
) -> None:
    store = MessageStore(str(tmp_path / "n0"), CONFIG)
    _put(store, 0, 10)
    secret = RecordBatch.contiguous(*encode_records([Message(GROUPS_TOPIC, b"a verifier")], 0, 0))
    receipt = put_and_wait(store, secret)
    assert isinstance(receipt, PutMessageResult)
    store.note_users(USERS_ON)
    store.close()
    states: list[OldState] = []
    with LocalBrokers(
        1,
        directory=tmp_path / "log",
        storage=STORAGE,
        staging=False,
        starts=False,
        groups=lambda _: GroupService(None, states[-1]),
    ) as brokers:
        cluster = brokers.cluster
        folder = str(cluster.data_dir("n0"))
        record, report = take_over(str(tmp_path / "n0"), folder, "n0", cluster.members)
        states.append(record.state)
        assert LEFT_USERS in report.notes
        shutil.copytree(tmp_path / "n0", tmp_path / "without")
        (tmp_path / "without" / USERS_NAME).unlink()
        take_over(str(tmp_path / "without"), str(tmp_path / "open"), "n0", cluster.members)
        clusters = []
        for made in (folder, str(tmp_path / "open")):
            with DirectoryReader(OsDisk(), made) as reader:
                clusters.append(reader.formation.cluster_id)
        assert clusters[0] != clusters[1], "they take nothing from each other"
        brokers.start()
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with pytest.raises(NotAuthenticated), connect(brokers.servers, timeout_ms=2_000) as nobody:
            nobody.pull("orders", 0, 0)
        cluster.stop("n0")
        order = UserOrder(UserOperation.INIT_ADMIN, "alice", verifier=verifier_for("sesame"))
        save_first_admin(OsDisk(), folder, order)
        cluster.restart("n0")
        eventually(lambda: not (Path(folder) / FIRST_ADMIN_NAME).exists())
        alice = ClientUser("alice", "sesame")
        with eventually(lambda: is_let_in(brokers.servers, alice)) as broker:
            assert len(broker.pull("orders", 0, 0).messages) == 10
            with pytest.raises(NoSuchMessage):
                broker.message(message_id_of(bytes(8), receipt.physical_offset))


def test_a_later_member_gets_the_old_files_before_it_votes(tmp_path: Path) -> None:
    shutil.copytree(JAVA_STORE, tmp_path / "n0")
    with OfflineStore(str(tmp_path / "n0")) as store:
        old = [m for records in store.batches() for m in records.messages()]
    with LocalBrokers(
        1, directory=tmp_path / "log", storage=STORAGE, staging=False, starts=False
    ) as brokers:
        cluster = brokers.cluster
        made = take_over(str(tmp_path / "n0"), str(cluster.data_dir("n0")), "n0", cluster.members).record
        brokers.start()
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as broker:
            broker.send(Message(old[0].topic, b"behind the seam"), queue_id=old[0].queue_id)
            half = tmp_path / "log" / "n1" / FOLDER_NAME / segment_name(0)
            half.parent.mkdir(parents=True)
            half.write_bytes(b"\xff" * made.file_bytes)  # of an attempt that was killed
            (tmp_path / "log" / "n1" / RESTORING_NAME).write_bytes(b"")
            assert make_later_member(broker, str(tmp_path / "log" / "n1"), "n1") == made
        brokers.addresses["n1"] = f"127.0.0.1:{free_ports(1)[0]}"
        new = cluster.start_another()
        with log_of(cluster.servers, timeout_ms=20_000) as log:
            for verb in ("add", "promote"):
                made_so = eventually(lambda verb=verb: changed(log, verb, str(new)))
            assert made_so.voters == ("n0", "n1")
        cluster.stop("n0")  # hands over first, and the new one cannot do without it
        cluster.restart("n0")
        with connect(brokers.addresses["n1"]) as broker:
            later = brokers.brokers["n1"]
            eventually(lambda: later.log.confirm_offset > made.end_position)
            assert broker.message(old[3].message_id) == old[3]
            assert broker.query(old[3].topic, old[3].keys[0])
        files = [(tmp_path / "log" / each / FOLDER_NAME) for each in ("n0", "n1")]
        for name in sorted(path.name for path in files[0].iterdir()):
            assert (files[0] / name).read_bytes() == (files[1] / name).read_bytes()


def changed(log: LedgerClient, verb: str, address: str) -> Members | None:
    try:
        return log.change_members(verb, "n1", address if verb == "add" else "")
    except MembershipRefused as error:
        assert error.retry_after_ms, error
        return None


def test_what_is_not_the_old_log_of_the_record_makes_no_member(tmp_path: Path) -> None:
    """A bit that has flipped at the member that sends, or on the way."""
    shutil.copytree(JAVA_STORE, tmp_path / "n0")
    made = take_over(str(tmp_path / "n0"), str(tmp_path / "m0"), "n0", MEMBERS).record
    old = OldLog(OsDisk(), str(tmp_path / "m0"), made)

    class Broker:
        server = "127.0.0.1:1"

        def old_log(self, position: int = 0, size_bytes: int = 0) -> OldLogResponse:
            if not size_bytes:
                return OldLogResponse(record=encode_record(made))
            data = bytearray(old.read_bytes(position, size_bytes))
            data[100] ^= 1
            return OldLogResponse(data=bytes(data))

    with pytest.raises(StoreFailure, match="does not match its digest"):
        make_later_member(cast(BrokerClient, Broker()), str(tmp_path / "m1"), "n1")
    assert not (tmp_path / "m1" / "member").exists()
    old.close()


CONFIG_FILES = {
    "topics.json": """{"dataVersion":{"counter":7},"topicConfigTable":{
        "orders":{"attributes":{},"perm":6,"readQueueNums":2,"topicName":"orders","writeQueueNums":4},
        "quiet":{"perm":4,"readQueueNums":1,"topicName":"quiet","writeQueueNums":1},
        "c0":{"perm":7,"readQueueNums":16,"writeQueueNums":16},
        "odd|name":{"perm":6,"readQueueNums":1,"writeQueueNums":1},
        "%RETRY%bill":{"perm":6,"readQueueNums":1,"writeQueueNums":1},
        "rmq_sys_wheel_timer":{"perm":6,"readQueueNums":1,"writeQueueNums":1}}}""",
    "subscriptionGroup.json": """{"subscriptionGroupTable":{
        "bill":{"groupName":"bill","retryMaxTimes":16},
        "TOOLS_CONSUMER":{"groupName":"TOOLS_CONSUMER"},"no|good":{"groupName":"no|good"}}}""",
    "consumerOffset.json": """{"offsetTable":{"orders@bill":{0:3,1:99,7:1},"%RETRY%bill@bill":{0:2},
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:2}}}""",
    "delayOffset.json": """{"dataVersion":{"counter":2},"offsetTable":{1:3,2:2\n\t}\n}""",
}
"""As fastjson writes them: numbers as keys, without quotes."""


def java_like_store(folder: Path) -> None:
    """What a Java broker leaves in its commit log and beside it."""
    store = MessageStore(str(folder), replace(CONFIG, flush_disk_type=ASYNC_FLUSH))

    def put(topic: str, queue_id: int, *messages: Message) -> None:
        for number, each in enumerate(messages):
            batch = [replace(each, topic=topic)]
            unique = each.properties.get("of", f"{topic}{number}").rjust(32, "0")
            records = RecordBatch.contiguous(*encode_records(batch, queue_id, 1, [unique]))
            assert isinstance(put_and_wait(store, records), PutMessageResult)

    def delayed(level: int, target: str, body: bytes) -> Message:
        real = {"REAL_TOPIC": target, "REAL_QID": "0", "DELAY": str(level)}
        return Message("", body, properties=real)

    put("orders", 0, *(Message("", b"order %d" % n) for n in range(5)))
    put("odd|name", 0, Message("", b"of a light queue"))
    put("SCHEDULE_TOPIC_XXXX", 0, *(delayed(1, "orders", b"late %d" % n) for n in range(5)))
    put("SCHEDULE_TOPIC_XXXX", 1, *(delayed(2, "%RETRY%bill", b"again %d" % n) for n in range(3)))
    put("%RETRY%bill", 0, *(Message("", b"again %d" % n) for n in range(2)))
    # Offset 1 is committed; the broker has asked for 0 and 2 and has written 2 anew as 3.
    halves = [Message("", b"half", properties={"of": str(n)}) for n in (0, 1, 2, 2)]
    put("RMQ_SYS_TRANS_HALF_TOPIC", 0, *halves)
    put("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, Message("", b"0,1,", tags="d"))
    timers = [
        Message("", b"at", properties={"TIMER_OUT_MS": str(at), "of": str(at)}) for at in (5, 9, 11)
    ]
    put("rmq_sys_wheel_timer", 0, *timers)
    store.close()
    (folder / "config").mkdir()
    for name, text in CONFIG_FILES.items():
        (folder / "config" / name).write_text(text)
    (folder / "config" / "timercheck").write_bytes((6).to_bytes(8, "big") + bytes(4088))


def test_what_a_java_broker_has_delivered_is_not_delivered_again(tmp_path: Path) -> None:
    java_like_store(tmp_path / "store")
    offsets = tmp_path / "store" / "config" / "consumerOffset.json"
    offsets.with_suffix(".json.bak").write_text(CONFIG_FILES["consumerOffset.json"])
    offsets.write_text('{"offsetTable')  # a crash
    states: list[OldState | None] = []
    with LocalBrokers(
        1,
        directory=tmp_path / "log",
        storage=STORAGE,
        staging=False,
        starts=False,
        groups=lambda _: GroupService(None, states[-1]),
    ) as brokers:
        cluster = brokers.cluster
        record, report = take_over(
            str(tmp_path / "store"), str(cluster.data_dir("n0")), "n0", cluster.members
        )
        states.append(record.state)
        assert report == OldReport(
            topics=2,
            groups=1,
            offsets=3,
            delayed_messages=3,
            delivered_messages=5,
            half_messages=1,
            timers=2,
            left_topics=("odd|name",),
            left_groups=("no|good",),
            notes=report.notes,
        )
        assert "consumerOffset.json is cut" in report.notes[0]
        brokers.start()
        with connect(brokers.servers) as client, BrokerAdmin(brokers.servers) as admin:
            eventually(lambda: client.max_offset("orders", 0) == 7)
            assert [m.body for m in client.pull("orders", 0, 5).messages] == [b"late 3", b"late 4"]
            eventually(lambda: client.max_offset("%RETRY%bill", 0) == 3)
            assert client.pull("%RETRY%bill", 0, 2).messages[0].body == b"again 2"
            topics = {row.topic: (row.queues, row.perm) for row in admin.topics()}
            assert topics["orders"] == (4, 6)
            assert topics["quiet"] == (1, 4)
            assert not {"c0", "odd|name", "rmq_sys_wheel_timer"} & set(topics)
            (group,) = admin.groups()
            assert group.offsets == (("%RETRY%bill", 0, 2), ("orders", 0, 3), ("orders", 1, 0))


def test_a_store_whose_deliveries_nobody_knows_is_refused_unless_it_is_wanted(tmp_path: Path) -> None:
    java_like_store(tmp_path / "store")
    store, made = str(tmp_path / "store"), str(tmp_path / "made")
    config = tmp_path / "store" / "config"
    (config / "delayOffset.json").write_text("{")
    (config / "delayOffset.json.bak").write_text("")
    with pytest.raises(ConfigError, match=r"delayOffset.json: .*restore one of them"):
        take_over(store, made, "n0", MEMBERS)
    (config / "delayOffset.json").write_text('{"offsetTable":{1:"x"}}')
    with pytest.raises(ConfigError, match=r"`\$\.offsetTable\[\.\.\.\]`: restore one of them"):
        take_over(store, made, "n0", MEMBERS)
    shutil.rmtree(config)
    says = "no config/delayOffset.json and config/consumerOffset.json, which records the"
    with pytest.raises(ConfigError, match=says):
        take_over(store, made, "n0", MEMBERS)
    record, report = take_over(store, made, "n0", MEMBERS, without_config=True)
    assert record.state is not None
    assert [each.name for each in record.state.topics] == ["%DLQ%bill", "%RETRY%bill", "orders"]
    assert (report.delayed_messages, report.delivered_messages, report.offsets) == (8, 0, 0)


def test_stores_with_other_settings_are_told_apart(tmp_path: Path) -> None:
    java_like_store(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "config" / "delayOffset.json").write_text('{"offsetTable":{1:4,2:2}}')
    one, other = (
        take_over(str(tmp_path / each), str(tmp_path / f"m{each}"), "n0", MEMBERS).record
        for each in "ab"
    )
    assert one.digest != other.digest
    assert first_difference(one, other) == (
        "the delayed messages that were delivered are not the same: copy the folder config of one store"
        " to all of them"
    )
    assert decode_record(encode_record(one)) == one
    earlier = msgspec.structs.replace(one, state=None)
    assert decode_record(msgspec.json.encode(earlier)) == earlier
    with pytest.raises(msgspec.ValidationError, match="of a later release"):
        decode_record(b'{"version":3}')
