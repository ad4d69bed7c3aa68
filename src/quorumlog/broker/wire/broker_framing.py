"""Frames with a broker's messages, and errors as messages and back."""

from __future__ import annotations

from typing import cast

import msgspec

from quorumlog import errors as log_errors
from quorumlog.batch import EntryBatch
from quorumlog.broker import errors as broker_errors
from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage, BrokerErrorResponse
from quorumlog.config import FRAME_LIMIT_BYTES
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.net.frame import Frame, FrameDecoder, encode_frame
from quorumlog.state_machine import words_of

GROUP = "broker"
_DECODER: msgspec.msgpack.Decoder[tuple[str, AnyBrokerMessage]] = msgspec.msgpack.Decoder(
    tuple[str, AnyBrokerMessage]
)
MOST_FRAME_RECORDS_BYTES = FRAME_LIMIT_BYTES // 2
"""Of the records of one answer."""

_ERROR_OF_CODE: dict[int, type[LedgerError]] = {
    kind.code: kind
    for module in (log_errors, broker_errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, LedgerError) and kind.code >= 0
}


def broker_decoder() -> FrameDecoder:
    return FrameDecoder(control=_DECODER)


def message_of(frame: Frame) -> AnyBrokerMessage:
    return cast(AnyBrokerMessage, frame.message)


def records_of(frame: Frame) -> RecordBatch:
    """What came with a frame; sizes fill the buffer, and nothing else is known of it."""
    if frame.batch is None:
        return RecordBatch.contiguous(b"", [])
    return RecordBatch.contiguous(frame.batch.buffer, frame.batch.sizes)


def batch_of(records: RecordBatch) -> EntryBatch | None:
    """As the batch of a frame, which asks for nothing but sizes."""
    return EntryBatch(records.buffer, records.sizes) if len(records) else None


def encode(message: AnyBrokerMessage, records: RecordBatch | None = None) -> list[Buffer]:
    return encode_frame(GROUP, message, None if records is None else batch_of(records))


def error_response(request_id: int, error: LedgerError) -> BrokerErrorResponse:
    return BrokerErrorResponse(
        request_id=request_id,
        code=error.code,
        message=words_of(error),
        retry_after_ms=error.retry_after_ms,
        min_offset=getattr(error, "min_offset", -1),
        max_offset=getattr(error, "max_offset", -1),
        leader_id=error.leader_id or "",
        leader_address=error.leader_address or "",
    )


def error_of(response: BrokerErrorResponse) -> LedgerError:
    """A code of a newer broker counts as OutcomeUnknown: only that is safe for every request."""
    kind = _ERROR_OF_CODE.get(response.code)
    if kind is None:
        return OutcomeUnknown(f"the broker answered with the unknown code {response.code}")
    if issubclass(kind, QueueOffsetOutOfRange):
        return kind(response.message, min_offset=response.min_offset, max_offset=response.max_offset)
    if not response.leader_address:
        return kind(response.message, retry_after_ms=response.retry_after_ms)
    return kind(
        response.message,
        leader_id=response.leader_id,
        leader_address=response.leader_address,
        retry_after_ms=response.retry_after_ms,
    )
