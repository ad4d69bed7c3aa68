"""Produce and InitProducerId: batches become entries, their results become answers."""

from __future__ import annotations

from secrets import randbits
from typing import Any

from kio.schema.errors import ErrorCode

from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError
from quorumlog.kafka.machine import Produced, entries_of
from quorumlog.kafka.records import RecordsRefused, check_records
from quorumlog.kafka.service import KafkaCall, KafkaService, code_of
from quorumlog.log_state.users import Kind, Right


def produce(service: KafkaService, call: KafkaCall) -> None:
    fields = call.fields
    entries: list[tuple[bytes, int, Buffer]] = []
    written: list[dict[str, Any]] = []
    """The answer for each partition."""
    responses, code = [], 0
    for topic in fields.topic_data:
        refused, topic_id = _refusal(service, call, topic.name)
        rows = []
        for each in topic.partition_data:
            row: dict[str, Any] = {"index": each.index, "error_code": refused, "base_offset": -1}
            rows.append(row)
            if refused:
                pass
            elif (partition := service.machine.partition(topic_id, each.index)) is None:
                row["error_code"] = ErrorCode.unknown_topic_or_partition
            else:
                try:
                    batch = check_records(each.records or b"", most_bytes=service.most_batch_bytes)
                except RecordsRefused as error:
                    row["error_code"], row["error_message"] = error.code, str(error)
                else:
                    row["log_start_offset"] = partition.start_offset(service.log_begin)
                    entries.append((topic_id, each.index, batch.data))
                    written.append(row)
            code = code or row["error_code"]
        responses.append({"name": topic.name, "partition_responses": rows})

    def done(results: tuple[bytes | None, ...] | LedgerError) -> None:
        first_code = code
        for number, row in enumerate(written):
            if isinstance(results, LedgerError):
                row["error_code"], row["error_message"] = code_of(results), str(results)
            else:
                produced = Produced.of(results[number])
                row["error_code"] = produced.code
                row["base_offset"] = -1 if produced.code else produced.base_offset
            first_code = first_code or row["error_code"]
        call.answer({"responses": responses} if fields.acks else None, first_code)

    if entries:
        service.append(entries_of(entries), fields.timeout, call.client, done)
    else:
        done(())


def _refusal(service: KafkaService, call: KafkaCall, name: str) -> tuple[int, bytes]:
    """(error code or 0, topic id)."""
    fields = call.fields
    if fields.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks, b""
    if fields.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed, b""
    if denied := call.denied(Right.WRITE, Kind.TOPIC, name):
        return denied, b""
    if not service.leads:
        return ErrorCode.not_leader_or_follower, b""
    topic = service.machine.topics.get(name)
    return (ErrorCode.unknown_topic_or_partition, b"") if topic is None else (0, topic.topic_id)


def init_producer_id(service: KafkaService, call: KafkaCall) -> None:
    """Clients send this to any member and retry there, so it needs no leader: the id is drawn at
    random. A producer that had an id gets another, so its new batches do not continue the earlier
    sequence."""
    code = call.denied(Right.WRITE, Kind.TOPIC, is_any=True)
    if call.fields.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed
    if code:
        call.answer({"error_code": code, "producer_id": -1, "producer_epoch": -1}, code)
    else:
        call.answer({"producer_id": randbits(63), "producer_epoch": 0})
