"""Produce, and the ids of idempotent producers: batches into entries, their results into answers."""

from __future__ import annotations

import secrets
from typing import Any

from kio.schema.errors import ErrorCode

from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError
from quorumlog.kafka.machine import Produced, entries_of
from quorumlog.kafka.records import RecordsRefused, split_records
from quorumlog.kafka.service import Call, KafkaService, code_of
from quorumlog.log_state.users import Kind, Right


def produce(service: KafkaService, call: Call) -> None:
    fields = call.fields
    entries: list[tuple[bytes, int, Buffer]] = []
    written: list[tuple[dict[str, Any], int]] = []
    """The answer for a partition, and how many entries it has."""
    responses, code = [], 0
    for topic in fields.topic_data:
        refused, topic_id = _refusal(service, call, topic.name)
        rows = []
        for each in topic.partition_data:
            row: dict[str, Any] = {"index": each.index, "error_code": refused, "base_offset": -1}
            rows.append(row)
            if refused:
                pass
            elif service.machine.partition(topic_id, each.index) is None:
                row["error_code"] = ErrorCode.unknown_topic_or_partition
            else:
                try:
                    batches = split_records(each.records or b"", most_bytes=service.most_batch_bytes)
                except RecordsRefused as error:
                    row["error_code"], row["error_message"] = error.code, str(error)
                else:
                    entries += [(topic_id, each.index, batch.data) for batch in batches]
                    written.append((row, len(batches)))
            code = code or row["error_code"]
        responses.append({"name": topic.name, "partition_responses": rows})

    def done(results: tuple[bytes | None, ...] | LedgerError) -> None:
        first_code, start = code, 0
        for row, count in written:
            if isinstance(results, LedgerError):
                row["error_code"], row["error_message"] = code_of(results), str(results)
            else:
                produced = [Produced.of(each) for each in results[start : start + count]]
                start += count
                row["error_code"] = next((each.code for each in produced if each.code), 0)
                row["base_offset"] = -1 if row["error_code"] else produced[0].base_offset
            first_code = first_code or row["error_code"]
        call.answer({"responses": responses} if fields.acks else None, first_code)

    if entries:
        service.append(entries_of(entries), fields.timeout, call.client, done)
    else:
        done(())


def _refusal(service: KafkaService, call: Call, name: str) -> tuple[int, bytes]:
    """An error code or 0, and the topic's id."""
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


def init_producer_id(service: KafkaService, call: Call) -> None:
    """Of whatever member is asked. An id is drawn, and no two are the same; a producer that had one gets
    another, and its new batches belong to no sequence of before."""
    code = call.denied(Right.WRITE, Kind.TOPIC, is_any=True)
    if call.fields.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed
    producer_id = -1 if code else secrets.randbits(63)
    call.answer(
        {"error_code": code, "producer_id": producer_id, "producer_epoch": -1 if code else 0}, code
    )
