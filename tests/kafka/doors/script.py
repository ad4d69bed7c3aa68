"""One script of requests, by hand, and what there is to compare in the answers."""

from __future__ import annotations

import time
from dataclasses import fields, is_dataclass
from enum import IntEnum
from struct import unpack_from
from typing import Any
from uuid import UUID

from harness.kafka.wire import KafkaWire
from tests.kafka.batches import made_batch
from tests.waiting import eventually

COMPARED = frozenset(
    (
        *("error_code", "name", "index", "partition_index", "partition", "num_partitions"),
        *("base_offset", "log_start_offset", "high_watermark", "last_stable_offset", "records"),
        *("offset", "committed_offset", "metadata", "key", "group_id", "group_state", "state"),
        *("generation_id", "protocol_type", "protocol_name", "protocol_data", "skip_assignment"),
        *("assignment", "group_instance_id", "producer_epoch", "is_internal", "mechanisms"),
    )
)
"""Fields whose values both must give. Addresses, ids, times and messages are each server's own."""

Answers = dict[str, Any]
Now = {"timestamp": int(time.time() * 1_000) - 60_000}


_OF_A_REFUSAL = frozenset(("error_code", "name", "index", "partition_index", "group_id"))
"""The rest says nothing then, and is filled in differently."""


def compared(value: Any, name: str = "") -> Any:
    """What there is to compare; None: nothing."""
    if name == "records":
        return batches_in(value or b"")
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple):
        messages = [each for each in value if is_dataclass(each) or name in COMPARED]
        return sorted((found for each in messages if (found := compared(each))), key=repr)
    if is_dataclass(value):
        found = {}
        kept = _OF_A_REFUSAL if getattr(value, "error_code", 0) else COMPARED
        for field in fields(value):
            inner = getattr(value, field.name)
            is_message = is_dataclass(inner) or isinstance(inner, tuple)
            if field.name in kept or (is_message and field.name != "configs"):
                each = compared(inner, field.name)
                if each not in (None, [], {}):
                    found[field.name] = each
        return None if found.get("is_internal") else found
    return value


def codes_in(answer: Any) -> str:
    """Of its errors: what a difference comes to, in a few words."""
    return " ".join(sorted(_codes_in(answer) - {"none"})) or "none"


def _codes_in(answer: Any) -> set[str]:
    if isinstance(answer, dict):
        own = {answer["error_code"]} if "error_code" in answer else set()
        return own.union(*map(_codes_in, answer.values()))
    return set().union(*map(_codes_in, answer)) if isinstance(answer, list) else set()


def batches_in(data: bytes) -> list[list[int]]:
    """Base offset and number of records of each whole batch."""
    found = []
    position = 0
    while len(data) - position >= 61:
        (base, length), (count,) = (
            unpack_from(">qi", data, position),
            unpack_from(">i", data, position + 57),
        )
        position += 12 + length
        if position <= len(data):
            found.append([base, count])
    return found


_NOT_READY = ("coordinator_not_available", "coordinator_load_in_progress", "not_coordinator")


class Script:
    def __init__(self, address: str) -> None:
        self.wire = KafkaWire(address)
        self.answers: Answers = {}
        self.id = UUID(int=0)
        """Of topic `t`."""

    def step(self, label: str, name: str, version: int, *, settled: bool = False, **values: Any) -> Any:
        """`settled`: asked until it says something else than that it is not ready yet."""
        response = self.wire.ask(name, version, **values)
        while settled and response.error_code.name in _NOT_READY:
            response = self.wire.ask(name, version, **values)
        assert label not in self.answers, label
        self.answers[label] = compared(response)
        return response

    def run(self) -> Answers:
        with self.wire:
            for part in (self.topics, self.produce, self.idempotent, self.fetch, self.offsets):
                part()
            for part in (self.groups, self.static, self.simple, self.admin):
                part()
        return self.answers

    # ------------------------------------------------------------ Topics

    def create(self, label: str, version: int = 7, **topic: Any) -> None:
        topic = {
            "num_partitions": 3,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
            **topic,
        }
        only = topic.pop("validate_only", False)
        self.step(label, "create_topics", version, topics=[topic], timeout=30_000, validate_only=only)

    def topics(self) -> None:
        self.create("create a topic", name="t")
        self.create("create it again", name="t")
        self.create("create with a space in its name", name="a b")
        self.create("create without a name", name="")
        self.create("create a name of 250", name="n" * 250)
        self.create("create without partitions", name="none", num_partitions=0)
        self.create("create with -2 partitions", name="none", num_partitions=-2)
        self.create("create with the default of partitions", name="default", num_partitions=-1)
        compacted = [{"name": "cleanup.policy", "value": "compact"}]
        self.create("create compacted", name="compacted", configs=compacted, validate_only=True)
        self.create(
            "create with an unknown option", name="odd", configs=[{"name": "no.such", "value": "1"}]
        )
        two = [
            {
                "name": "twice",
                "num_partitions": 1,
                "replication_factor": -1,
                "assignments": [],
                "configs": [],
            }
        ]
        self.step(
            "create twice in one", "create_topics", 7, topics=two * 2, timeout=9_000, validate_only=False
        )
        self.step(
            *("only validate", "create_topics", 7),
            topics=[{**two[0], "name": "valid"}],
            timeout=9_000,
            validate_only=True,
        )
        eventually(lambda: self.topic_names() >= {"t", "default"})
        for version in (1, 4, 8, 9, 12):
            self.metadata(f"metadata v{version}", version, "t")
            if version > 1:  # which makes the topics that it is asked for
                self.metadata(f"metadata v{version}, unknown", version, "valid")
        self.metadata("metadata of a bad name", 12, "a b")
        self.metadata("metadata of all", 12, None)
        topics = [{"name": None, "topic_id": UUID(int=5)}]
        self.step(
            *("metadata by an unknown id", "metadata", 12),
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        values = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        asked = self.wire.ask("metadata", 12, topics=[{"name": "t", "topic_id": UUID(int=0)}], **values)
        self.id = asked.topics[0].topic_id
        self.metadata("metadata by name and id", 12, "t")

    def topic_names(self) -> set[str]:
        """Those that somebody leads."""
        asked = self.wire.ask("metadata", 7, topics=None, allow_auto_topic_creation=False)
        return {each.name for each in asked.topics if all(not one.error_code for one in each.partitions)}

    def metadata(self, label: str, version: int, topic: str | None) -> None:
        values: Answers = {"topics": None if topic is None else [{"name": topic}]}
        if topic is not None and version >= 10:
            values["topics"][0]["topic_id"] = UUID(int=0)
        if version >= 4:
            values["allow_auto_topic_creation"] = False
        if 8 <= version <= 10:
            values["include_cluster_authorized_operations"] = False
        if version >= 8:
            values["include_topic_authorized_operations"] = False
        self.step(label, "metadata", version, **values)

    # ------------------------------------------------------------ Produce

    def send(
        self,
        label: str,
        records: bytes | None,
        *,
        topic: str = "t",
        partition: int = 0,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> None:
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        self.step(
            *(label, "produce", version),
            transactional_id=transactional_id,
            acks=acks,
            timeout=30_000,
            topic_data=data,
        )

    def produce(self) -> None:
        batch = made_batch([b"a", b"b", b"c"], **Now)
        for version in (3, 5, 7, 8, 9, 11):
            self.send(f"produce v{version}", batch, version=version)
        self.send("produce with acks 1", batch, acks=1)
        self.send("produce with acks 2", batch, acks=2)
        self.send("produce to an unknown topic", batch, topic="valid")
        self.send("produce to an unknown partition", batch, partition=3)
        self.send("produce a flipped bit", batch[:-1] + bytes([batch[-1] ^ 1]))
        self.send("produce a part of a batch", batch[:-1])
        self.send("produce nothing", b"")
        self.send("produce two batches in one", batch * 2)
        self.send("produce with a base offset", made_batch([b"d"], base_offset=77, **Now))
        self.send("produce a control batch", made_batch([b"d"], attributes=0x20, **Now))
        own_time = made_batch([b"d"], attributes=0x08, **Now)
        self.send("produce with the log's time", own_time, partition=2)
        self.send("produce a wrong count", made_batch([b"d"], record_count=2, **Now))
        self.send("produce a wrong last offset", made_batch([b"d"], last_delta=3, **Now))
        self.send("produce no records in a batch", made_batch([], **Now))
        self.send("produce a batch of 1.1 MB", made_batch([bytes(1_100_000)], **Now), partition=2)
        self.send("produce to a topic by an odd name", batch, topic="a b")
        self.wire.send(
            *("produce", 9),
            transactional_id=None,
            acks=0,
            timeout=30_000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
        )
        self.send("produce after acks 0", batch)
        both = [{"index": n, "records": batch} for n in (0, 1, 9)]
        self.step(
            *("produce to several partitions", "produce", 9),
            transactional_id=None,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": "t", "partition_data": both}],
        )

    # ------------------------------------------------------------ Idempotent producers

    def idempotent(self) -> None:
        def values(**more: Any) -> Answers:
            return {"transactional_id": None, "transaction_timeout": 60_000, **more}

        fresh = {"producer_id": -1, "producer_epoch": -1}
        made = self.step("a producer's id", "init_producer_id", 4, **values(**fresh))
        self.step("a producer's id, v0", "init_producer_id", 0, **values())
        self.step(
            *("coordinator of transactions", "find_coordinator", 3), settled=True, key="tx", key_type=1
        )
        self.step(
            *("a transactional producer's id", "init_producer_id", 4),
            settled=True,
            **values(transactional_id="tx", **fresh),
        )
        own = made.producer_id

        def send(label: str, epoch: int, sequence: int, records: int = 1, producer: int = own) -> None:
            batch = made_batch([b"i"] * records, producer=(producer, epoch, sequence), **Now)
            self.send(label, batch, partition=1)

        send("sequence 0", 0, 0, 2)
        send("sequence 0 once more", 0, 0, 2)
        send("the next sequence", 0, 2)
        send("an older sequence once more", 0, 0, 2)
        send("a sequence too far", 0, 4)
        send("a part of a batch that is there", 0, 1)
        for sequence in range(3, 9):
            send(f"sequence {sequence}", 0, sequence)
        send("a sequence that is forgotten", 0, 0, 2)
        send("a new epoch in the middle", 1, 9)
        send("a new epoch", 1, 0)
        send("the epoch before", 0, 9)
        send("an unknown producer's sequence 0", 0, 0, producer=own + 100_000)
        late = made_batch([b"i"], producer=(own + 200_000, 0, 5), **Now)
        self.send("an unknown producer's sequence 5", late, partition=2)

    # ------------------------------------------------------------ Fetch

    def ask_records(
        self,
        label: str,
        offset: int,
        *,
        version: int = 12,
        topic: str = "t",
        topic_id: UUID | None = None,
        partition: int = 0,
        most: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        epoch: int = -1,
    ) -> None:
        rows: Answers = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": most}
        values: Answers = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
        if version < 15:
            values["replica_id"] = -1
        if version >= 5:
            rows["log_start_offset"] = -1
        if version >= 7:
            values |= {
                "session_id": session[0],
                "session_epoch": session[1],
                "forgotten_topics_data": [],
            }
        if version >= 9:
            rows["current_leader_epoch"] = epoch
        if version >= 11:
            values["rack_id"] = ""
        if version >= 12:
            rows["last_fetched_epoch"] = -1
        name = {"topic_id": topic_id or self.id} if version >= 13 else {"topic": topic}
        self.step(label, "fetch", version, **values, topics=[{**name, "partitions": [rows]}])

    def fetch(self) -> None:
        for version in (4, 5, 7, 11, 12, 13, 16, 17):
            self.ask_records(f"fetch v{version}", 0, version=version)
        self.ask_records("fetch from within a batch", 4)
        self.ask_records("fetch one batch", 3, most=1)
        self.ask_records("fetch at the end", 30)
        self.ask_records("fetch of an empty partition", 0, topic="default")
        self.ask_records("fetch behind the end", 1_000)
        self.ask_records("fetch from before the begin", -1)
        self.ask_records("fetch from an unknown topic", 0, topic="valid")
        self.ask_records("fetch from an unknown partition", 0, partition=9)
        self.ask_records("fetch from an unknown id", 0, version=13, topic_id=UUID(int=5))
        self.ask_records("fetch in an unknown session", 0, session=(12_345, 3))
        self.ask_records("fetch of a later leader", 0, epoch=1_000_000)
        self.ask_records("fetch of idempotent records", 0, partition=1)

    # ------------------------------------------------------------ ListOffsets

    def offsets(self) -> None:
        def values(version: int, timestamp: int, topic: str = "t", partition: int = 0) -> Answers:
            row: Answers = {"partition_index": partition, "timestamp": timestamp}
            more: Answers = {"replica_id": -1}
            if version >= 2:
                more["isolation_level"] = 0
            if version >= 4:
                row["current_leader_epoch"] = -1
            return {**more, "topics": [{"name": topic, "partitions": [row]}]}

        for version in (1, 2, 4, 5, 6, 7):
            for what, timestamp in (("earliest", -2), ("latest", -1), ("by time", Now["timestamp"])):
                label = f"offsets v{version}: {what}"
                self.step(label, "list_offsets", version, **values(version, timestamp))

        def ask(label: str, *what: Any) -> None:
            self.step(label, "list_offsets", 7, **values(7, *what))

        ask("offset of the highest time", -3)
        ask("offset within a batch by time", Now["timestamp"] + 1)
        ask("offset after the last time", Now["timestamp"] + 50_000)
        ask("offset of an unknown topic", -1, "valid")
        ask("offset of an unknown partition", -1, "t", 9)
        ask("offset of an empty topic", -1, "default")
        ask("offset of the highest time of an empty topic", -3, "default")
        ask("offset by time in an empty topic", 0, "default")

    # ------------------------------------------------------------ Groups

    def join(self, label: str, member: str = "", **more: Any) -> Any:
        values = {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": member,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
            **more,
        }
        version = values.pop("version", 7)
        if version < 5:
            values.pop("group_instance_id")
        return self.step(label, "join_group", version, **values)

    def sync(self, label: str, joined: Any, **more: Any) -> None:
        assignments = [{"member_id": joined.member_id, "assignment": b"all"}]
        values = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assignments,
            **more,
        }
        self.step(label, "sync_group", 5, **values)

    def beat(self, label: str, member: str, generation: int, instance: str | None = None) -> None:
        self.step(
            *(label, "heartbeat", 4),
            group_id="g",
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
        )

    def commit(
        self,
        label: str,
        offset: int,
        member: str = "",
        generation: int = -1,
        *,
        group: str = "g",
        **more: Any,
    ) -> None:
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "said",
            **more,
        }
        self.step(
            *(label, "offset_commit", 8),
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=[{"name": more.pop("topic", "t"), "partitions": [partition]}],
        )

    def committed(self, label: str, version: int = 7, group: str = "g") -> None:
        topics = [{"name": "t", "partition_indexes": [0, 1]}]
        values: Answers = {"group_id": group, "topics": topics}
        if version >= 7:
            values["require_stable"] = False
        self.step(label, "offset_fetch", version, **values)

    def groups(self) -> None:
        for version in (0, 1, 3):
            kinds = {"key_type": 0} if version else {}
            self.step(f"coordinator v{version}", "find_coordinator", version, key="g", **kinds)
        self.step("coordinators v4", "find_coordinator", 4, key_type=0, coordinator_keys=["g", "h"])
        self.beat("heartbeat of nobody", "nobody", 1)
        self.committed("offsets of an unknown group")
        self.join("join without a group", group_id="")
        self.join("join with a short session", session_timeout=10)
        self.join("join without protocols", protocols=[])
        self.join("join by an unknown id", "nobody")
        given = self.join("join anew")
        first = self.join("join by the id that was given", given.member_id)
        self.sync("sync with a wrong generation", first, generation_id=first.generation_id + 1)
        self.sync("sync with a wrong protocol", first, protocol_name="other")
        self.sync("sync of nobody", first, member_id="nobody")
        self.commit("commit before sync", 1, first.member_id, first.generation_id)
        self.sync("sync", first)
        self.beat("heartbeat", first.member_id, first.generation_id)
        self.beat("heartbeat of another generation", first.member_id, first.generation_id + 1)
        self.commit("commit", 3, first.member_id, first.generation_id)
        self.commit("commit of another generation", 4, first.member_id, first.generation_id + 1)
        self.commit("commit of nobody", 4, "nobody", first.generation_id)
        self.commit("commit without a member while there are some", 4)
        self.commit(
            "commit with much text",
            4,
            first.member_id,
            first.generation_id,
            committed_metadata="x" * 5_000,
        )
        self.commit(
            "commit an offset below 0", -1, first.member_id, first.generation_id, partition_index=1
        )
        for version in (1, 3, 5, 6, 7):
            self.committed(f"committed offsets v{version}", version)
        for version in (2, 5, 7):
            more = {"require_stable": False} if version >= 7 else {}
            self.step(
                f"all committed offsets v{version}",
                "offset_fetch",
                version,
                group_id="g",
                topics=None,
                **more,
            )
        both = [{"group_id": each, "topics": None} for each in ("g", "h")]
        self.step("offsets of two groups", "offset_fetch", 8, groups=both, require_stable=True)
        self.join("join with another kind of protocol", protocol_type="connect")
        other = [{"name": "sticky", "metadata": b""}]
        self.join("join with another protocol", protocols=other)
        for version in (0, 3, 5):
            more = {"include_authorized_operations": False} if version >= 3 else {}
            self.step(f"describe v{version}", "describe_groups", version, groups=["g", "h"], **more)
        for version in (0, 3):
            self.step(f"groups v{version}", "list_groups", version)
        self.step("stable groups", "list_groups", 4, states_filter=["Stable"])
        self.step("empty groups", "list_groups", 4, states_filter=["Empty"])
        self.leave("leave of nobody", "nobody")
        self.leave("leave", first.member_id)
        self.leave("leave once more", first.member_id)
        self.step("leave v1", "leave_group", 1, group_id="g", member_id=first.member_id)
        self.beat("heartbeat after leaving", first.member_id, first.generation_id)
        self.commit("commit after leaving", 5, first.member_id, first.generation_id)
        self.step(
            "describe an empty group",
            "describe_groups",
            4,
            groups=["g"],
            include_authorized_operations=False,
        )
        self.committed("what was committed stays")

    def leave(self, label: str, member: str, instance: str | None = None) -> None:
        self.step(
            *(label, "leave_group", 4),
            group_id="g",
            members=[{"member_id": member, "group_instance_id": instance}],
        )

    def static(self) -> None:
        first = self.join("join as a static member", group_instance_id="i")
        self.sync("sync of a static member", first, group_instance_id="i")
        again = self.join("start anew", group_instance_id="i")
        self.sync("sync after a new start", again, group_instance_id="i", assignments=[])
        self.beat("heartbeat of the one before", first.member_id, first.generation_id, "i")
        self.beat("heartbeat of the one after", again.member_id, again.generation_id, "i")
        self.beat("heartbeat of an unknown instance", again.member_id, again.generation_id, "j")
        self.leave("leave of the one before", first.member_id, "i")
        self.leave("leave by the instance", "", "i")

    def simple(self) -> None:
        self.commit("commit of a consumer that assigns itself", 7, group="simple")
        self.committed("offsets of such a group", group="simple")
        self.commit("commit in an unknown generation", 7, "m", 3, group="simple")
        self.commit("commit without a group", 7, group="")

    # ------------------------------------------------------------ Administration

    def admin(self) -> None:
        def grow(label: str, topic: str, count: int) -> None:
            rows = [{"name": topic, "count": count, "assignments": None}]
            self.step(label, "create_partitions", 3, topics=rows, timeout=9_000, validate_only=False)

        grow("more partitions", "default", 4)
        grow("fewer partitions", "default", 2)
        grow("as many partitions", "default", 4)
        grow("partitions of an unknown topic", "valid", 4)
        for kind, name in ((2, "t"), (2, "valid"), (77, "t")):
            rows = [
                {"resource_type": kind, "resource_name": name, "configuration_keys": ["cleanup.policy"]}
            ]
            described = self.wire.ask(
                *("describe_configs", 4),
                resources=rows,
                include_synonyms=False,
                include_documentation=False,
            )
            values = [(each.name, each.value) for one in described.results for each in one.configs]
            (code,) = {one.error_code for one in described.results}
            self.answers[f"configs of {kind} {name}"] = [code.name, values]
        self.step("the cluster", "describe_cluster", 0, include_cluster_authorized_operations=False)
        self.step("a handshake without users", "sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        self.step("delete groups", "delete_groups", 2, groups_names=["simple", "nosuch"])
        self.step("delete an unknown topic", "delete_topics", 5, topic_names=["valid"], timeout=9_000)
        self.step("delete a topic", "delete_topics", 5, topic_names=["default"], timeout=9_000)
        ids = [{"name": None, "topic_id": UUID(int=5)}]
        self.step("delete an unknown id", "delete_topics", 6, topics=ids, timeout=9_000)
        eventually(lambda: "default" not in self.topic_names())
        self.send("produce to a deleted topic", made_batch([b"a"], **Now), topic="default")


def differences(ours: Answers, theirs: Answers) -> dict[str, tuple[Any, Any]]:
    assert list(ours) == list(theirs)
    return {label: (ours[label], theirs[label]) for label in ours if ours[label] != theirs[label]}
