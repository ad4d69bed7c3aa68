"""Consumer groups: their members, in the leader's memory, and their offsets, which are entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from quorumlog.client_guard import guarded
from quorumlog.errors import LedgerError
from quorumlog.kafka.codec import Values
from quorumlog.kafka.commands import Row, change, first_code
from quorumlog.kafka.groups import (
    GroupCoordinator,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from quorumlog.kafka.machine import (
    CommitKafkaOffsets,
    CommittedOffset,
    DeleteKafkaGroup,
    Offsets,
    decode_numbers,
    entry_of,
)
from quorumlog.kafka.service import MOST_TIMEOUT_MS, KafkaCall, KafkaService, code_of
from quorumlog.log_state.users import Kind, Right

MOST_NAME = 1000
"""Most characters of a group's name."""
MOST_METADATA_BYTES = 4096
"""Most bytes of an offset's metadata."""


def _coordinator(
    service: KafkaService, call: KafkaCall, group: str, right: Right = Right.READ
) -> GroupCoordinator | ErrorCode:
    """The coordinator, or an error code."""
    return call.denied(right, Kind.CONSUMER_GROUP, group) or service.coordinator


def _instance(fields: Any) -> str | None:
    """`group.instance.id` of a static member, in versions that have it."""
    instance: str | None = getattr(fields, "group_instance_id", None)
    return instance


# ---------------------------------------------------------------- Who coordinates


def find_coordinator(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    key_type = getattr(fields, "key_type", 0)
    place = service.nodes.get(service.leader)

    def row_of(key: str) -> Row:
        code = ErrorCode.none
        if key_type != 0:
            code, message = (
                ErrorCode.transactional_id_authorization_failed,
                "transactions are not supported",
            )
        elif denied := call.denied(Right.READ, Kind.CONSUMER_GROUP, key):
            code, message = denied, None
        elif place is None:
            code, message = ErrorCode.coordinator_not_available, "there is no leader yet"
        if code or place is None:
            return {"key": key, "node_id": -1, "port": -1, "error_code": code, "error_message": message}
        host, port = place
        return {"key": key, "node_id": service.leader, "host": host, "port": port, "error_code": code}

    keys = getattr(fields, "coordinator_keys", None)
    rows = [row_of(key) for key in ([fields.key] if keys is None else keys)]
    call.answer(rows[0] if keys is None else {"coordinators": rows}, first_code(rows))


# ---------------------------------------------------------------- Members


A = TypeVar("A", JoinAnswer, SyncAnswer)


def _wait(
    service: KafkaService,
    call: KafkaCall,
    ask: Callable[[GroupCoordinator, Callable[[A], None]], None],
    refused: Callable[[ErrorCode], A],
    values_of: Callable[[A], Values],
) -> None:
    """Ask what may wait for other members; a member whose right to the group is revoked meanwhile waits
    no longer."""
    group = call.fields.group_id

    def done(answer: A) -> None:
        service.rechecks.discard(recheck)
        call.answer(values_of(answer), answer.error)

    def look() -> None:
        code = call.denied(Right.READ, Kind.CONSUMER_GROUP, group)
        coordinator = service.coordinator
        if code is ErrorCode.group_authorization_failed and isinstance(coordinator, GroupCoordinator):
            coordinator.expel(group, done, code)

    recheck: Callable[[], None] = guarded(look, call.client)
    coordinator = _coordinator(service, call, group)
    if isinstance(coordinator, ErrorCode):
        done(refused(coordinator))
    else:
        service.rechecks.add(recheck)
        ask(coordinator, done)


def join_group(service: KafkaService, call: KafkaCall) -> None:
    fields, version = call.fields, call.request.version
    request = JoinRequest(
        group=fields.group_id,
        member=fields.member_id,
        instance=_instance(fields),
        client_id=call.request.client_id,
        client_host=f"/{call.client.host}",
        session_timeout_ms=fields.session_timeout,
        rebalance_timeout_ms=getattr(fields, "rebalance_timeout", -1),
        protocol_type=fields.protocol_type,
        protocols=tuple((each.name, each.metadata) for each in fields.protocols),
        needs_member_id=version >= 4,
        may_skip_assignment=version >= 9,
    )

    def values_of(answer: JoinAnswer) -> Values:
        protocol = answer.protocol
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            "protocol_name": protocol or "" if version < 7 else protocol,
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member,
            "members": [
                {"member_id": member, "group_instance_id": instance, "metadata": metadata}
                for member, instance, metadata in answer.members
            ],
        }

    _wait(
        service,
        call,
        lambda coordinator, done: coordinator.join(request, done),
        lambda code: JoinAnswer(code, fields.member_id),
        values_of,
    )


def sync_group(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    request = SyncRequest(
        group=fields.group_id,
        member=fields.member_id,
        instance=_instance(fields),
        generation=fields.generation_id,
        protocol_type=getattr(fields, "protocol_type", None),
        protocol=getattr(fields, "protocol_name", None),
        assignments=tuple((each.member_id, each.assignment) for each in fields.assignments),
    )

    def values_of(answer: SyncAnswer) -> Values:
        return {
            "error_code": answer.error,
            "protocol_type": answer.protocol_type,
            "protocol_name": answer.protocol,
            "assignment": answer.assignment,
        }

    _wait(
        service, call, lambda coordinator, done: coordinator.sync(request, done), SyncAnswer, values_of
    )


def heartbeat(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    found = _coordinator(service, call, fields.group_id)
    if not isinstance(found, ErrorCode):
        found = found.heartbeat(
            fields.group_id, fields.member_id, _instance(fields), fields.generation_id
        )
    if found is ErrorCode.coordinator_load_in_progress:
        found = ErrorCode.none  # as Kafka has it: some clients end on a heartbeat that gets this
    call.answer({"error_code": found}, found)


def leave_group(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    members = getattr(fields, "members", None)
    leaving = (
        [(fields.member_id, None)] if members is None else [(m.member_id, _instance(m)) for m in members]
    )
    code, codes = _coordinator(service, call, fields.group_id), tuple[ErrorCode, ...]()
    if not isinstance(code, ErrorCode):
        code, codes = code.leave(fields.group_id, tuple(leaving))
    if members is None and codes:
        code = codes[0]
    rows = [
        {"member_id": member, "group_instance_id": instance, "error_code": each}
        for (member, instance), each in zip(leaving, codes, strict=False)
    ]
    call.answer({"error_code": code, "members": rows}, code)


# ---------------------------------------------------------------- Offsets


def offset_commit(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    coordinator = _coordinator(service, call, fields.group_id)
    if isinstance(coordinator, ErrorCode):
        code = coordinator
    elif not 0 < len(fields.group_id) <= MOST_NAME:
        code = ErrorCode.invalid_group_id
    else:
        code = coordinator.check_commit(
            fields.group_id,
            fields.member_id,
            _instance(fields),
            fields.generation_id_or_member_epoch,
        )
    offsets: list[tuple[bytes, int, CommittedOffset]] = []
    rows: list[Row] = []
    topics = []
    for topic in fields.topics:
        known = service.machine.topics.get(topic.name)
        denied = code or call.denied(Right.READ, Kind.TOPIC, topic.name)
        answers = []
        for each in topic.partitions:
            metadata = each.committed_metadata or ""
            row: Row = {"partition_index": each.partition_index, "error_code": denied}
            if denied:
                pass
            elif known is None:
                row["error_code"] = ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > MOST_METADATA_BYTES:
                row["error_code"] = ErrorCode.offset_metadata_too_large
            else:
                epoch = getattr(each, "committed_leader_epoch", -1)
                offset = CommittedOffset(each.committed_offset, epoch, metadata)
                offsets.append((known.topic_id, each.partition_index, offset))
                rows.append(row)
            answers.append(row)
        topics.append({"name": topic.name, "partitions": answers})

    def committed(results: tuple[bytes | None, ...] | LedgerError) -> None:
        service.commits -= Counter([fields.group_id])
        done(results)

    def done(results: tuple[bytes | None, ...] | LedgerError) -> None:
        if isinstance(results, LedgerError):
            codes: list[int] = [code_of(results, Kind.CONSUMER_GROUP)] * len(rows)
        else:
            codes = decode_numbers(results[0]) if rows else []
        for row, each in zip(rows, codes, strict=True):
            row["error_code"] = each
        answered = (row for topic in topics for row in topic["partitions"])
        call.answer({"topics": topics}, first_code(answered))

    if rows:
        command = CommitKafkaOffsets(fields.group_id, offsets)
        service.commits[fields.group_id] += 1
        service.append(entry_of(command), MOST_TIMEOUT_MS, call.client, committed)
    else:
        done(())


def offset_fetch(service: KafkaService, call: KafkaCall) -> None:
    """Answered once a majority has confirmed the leader, so no committed offset is missed. If a
    commit is in flight, perhaps of a member of an earlier generation, the answer waits for an entry
    after it: otherwise the consumer might start from, and later commit, a lower offset."""
    fields = call.fields
    asked = getattr(fields, "groups", None)
    groups = [fields] if asked is None else list({each.group_id: each for each in asked}.values())

    def confirmed(refusal: LedgerError | None) -> None:
        code = ErrorCode.none if refusal is None else code_of(refusal, Kind.CONSUMER_GROUP)
        rows = [_offsets_of(service, call, each, code) for each in groups]
        call.answer(rows[0] if asked is None else {"groups": rows}, first_code(rows))

    def applied(results: tuple[bytes | None, ...] | LedgerError) -> None:
        confirmed(results if isinstance(results, LedgerError) else None)

    under_way = next((each.group_id for each in groups if service.commits[each.group_id]), None)
    if under_way is None:
        service.confirm(call.client, confirmed)
    else:
        nothing = CommitKafkaOffsets(under_way, [])
        service.append(entry_of(nothing), MOST_TIMEOUT_MS, call.client, applied)


def _offsets_of(service: KafkaService, call: KafkaCall, asked: Any, code: ErrorCode) -> Row:
    found = code or _coordinator(service, call, asked.group_id)
    if isinstance(found, ErrorCode):
        # Old versions have a code for each partition only.
        topics = _offset_rows(service, call, asked, {}, found)
        return {"group_id": asked.group_id, "error_code": found, "topics": topics}
    offsets = dict(service.machine.groups.get(asked.group_id, {}))
    return {
        "group_id": asked.group_id,
        "topics": _offset_rows(service, call, asked, offsets),
        "error_code": 0,
    }


def _offset_rows(
    service: KafkaService,
    call: KafkaCall,
    asked: Any,
    offsets: Offsets,
    code: ErrorCode = ErrorCode.none,
) -> list[Row]:
    machine = service.machine
    wanted: dict[str, list[int]] = {}
    if asked.topics is not None:
        wanted = {topic.name: topic.partition_indexes for topic in asked.topics}
    else:
        for topic_id, number in offsets:
            topic = machine.by_id.get(topic_id)
            if topic is not None and not call.denied(Right.READ, Kind.TOPIC, topic.name):
                wanted.setdefault(topic.name, []).append(number)
    rows = []
    for name, numbers in wanted.items():
        topic = machine.topics.get(name)
        refused = code or call.denied(Right.READ, Kind.TOPIC, name)
        partitions = []
        for number in numbers:
            found = None if topic is None or refused else offsets.get((topic.topic_id, number))
            partitions.append(
                {
                    "partition_index": number,
                    "committed_offset": -1 if found is None else found.offset,
                    "committed_leader_epoch": -1 if found is None else found.leader_epoch,
                    "metadata": "" if found is None else found.metadata,
                    "error_code": refused,
                }
            )
        rows.append({"name": name, "partitions": partitions})
    return rows


# ---------------------------------------------------------------- What there is


def list_groups(service: KafkaService, call: KafkaCall) -> None:
    """Clients ask all members and combine the answers; a follower answers none."""
    coordinator = service.coordinator
    if isinstance(coordinator, ErrorCode):
        code = ErrorCode.none if coordinator == ErrorCode.not_coordinator else coordinator
        call.answer({"error_code": code}, code)
        return
    states = {row.group: (row.protocol_type, row.state) for row in coordinator.list_groups()}
    for group in list(service.machine.groups):
        states.setdefault(group, ("consumer", "Empty"))
    wanted = {state.lower() for state in getattr(call.fields, "states_filter", ())}
    rows = [
        {"group_id": group, "protocol_type": protocol_type, "group_state": state}
        for group, (protocol_type, state) in states.items()
        if (not wanted or state.lower() in wanted)
        and not call.denied(Right.READ, Kind.CONSUMER_GROUP, group)
    ]
    call.answer({"groups": rows})


def describe_groups(service: KafkaService, call: KafkaCall) -> None:
    rows = [_described(service, call, group) for group in dict.fromkeys(call.fields.groups)]
    call.answer({"groups": rows}, first_code(rows))


def _described(service: KafkaService, call: KafkaCall, group: str) -> Row:
    coordinator = _coordinator(service, call, group)
    if isinstance(coordinator, ErrorCode):
        return {"group_id": group, "error_code": coordinator}
    found = coordinator.describe(group)
    if found is None:
        state = "Empty" if group in service.machine.groups else "Dead"
        return {"group_id": group, "error_code": 0, "group_state": state}
    return {
        "group_id": group,
        "error_code": 0,
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": each.member,
                "group_instance_id": each.instance,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in found.members
        ],
    }


def delete_groups(service: KafkaService, call: KafkaCall) -> None:
    """Delete the groups' offsets; a group with members is refused."""
    wanted = [_deletion(service, call, group) for group in call.fields.groups_names]
    change(service, call, wanted, "results", Kind.CONSUMER_GROUP)


def _deletion(service: KafkaService, call: KafkaCall, group: str) -> tuple[Row, DeleteKafkaGroup | None]:
    coordinator, code = _coordinator(service, call, group, Right.ADMIN), ErrorCode.none
    if isinstance(coordinator, ErrorCode):
        code = coordinator
    elif (found := coordinator.describe(group)) is not None and found.members:
        code = ErrorCode.non_empty_group
    row = {"group_id": group, "error_code": code}
    return row, None if code else DeleteKafkaGroup(group)
