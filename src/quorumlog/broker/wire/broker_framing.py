"""Frames with a broker's messages."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage, AnyBrokerRequest
from quorumlog.config import FRAME_LIMIT_BYTES, MIB
from quorumlog.entry_header import Buffer
from quorumlog.net.frame import Frame, FrameDecoder, encode_frame
from quorumlog.net.limits import GREETING_BYTES

GROUP = "broker"
_DECODER: msgspec.msgpack.Decoder[tuple[str, AnyBrokerMessage]] = msgspec.msgpack.Decoder(
    tuple[str, AnyBrokerMessage]
)
_OF_CLIENT: Any = msgspec.msgpack.Decoder(tuple[str, AnyBrokerRequest])
FROM_CLIENT_BYTES = MIB + GREETING_BYTES
"""Of the control part of what a client says, beside the records: a command of topics and groups has the
most."""
MOST_FRAME_RECORDS_BYTES = FRAME_LIMIT_BYTES // 2
"""Of the records of one answer."""


def broker_decoder() -> FrameDecoder:
    return FrameDecoder(control=_DECODER, greeting_bytes=GREETING_BYTES)


def broker_request_decoder() -> FrameDecoder:
    """Of the broker: what only it says is not decoded."""
    return FrameDecoder(
        control=_OF_CLIENT, greeting_bytes=GREETING_BYTES, control_limit_bytes=FROM_CLIENT_BYTES
    )


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
