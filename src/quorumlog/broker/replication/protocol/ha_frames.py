"""What a master and a slave say in the dialect `quorumlog`: frames of the one wire, a Hello first.

The slave connects and says Hello (role `replica`) and what its log is, SlaveLog; WELCOME and START agree
on where it goes on, in one run of the master; from then on DATA and HEARTBEAT go one way, REPORT the
other. Bytes of the commit log are the batch of a DATA frame, never over the end of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Protocol, cast

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from quorumlog.batch import EntryBatch
from quorumlog.broker.epochs.epoch_history import (
    CopyList,
    Epoch,
    EpochHistory,
    Peer,
    Run,
    RunKey,
)
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.frame import MAGIC, FrameDecoder, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.wire.client_message import ClientMessage, Int, Text

GREETING_BYTES = len(MAGIC)
GROUP = "replica"
ROLE = "replica"


class SlaveLog(ClientMessage, frozen=True, kw_only=True, tag=110):
    """Behind the Hello."""

    slave: Peer
    promised: Epoch
    runs: list[Run]
    max_offset: Int
    file_bytes: Int
    release: Text = ""
    """An earlier one does not say it. So in `Welcome`."""


class Welcome(ClientMessage, frozen=True, kw_only=True, tag=111):
    master: Peer
    runs: Annotated[list[Run], Meta(min_length=1)]
    """The last is the one that this connection is of."""
    min_offset: Int
    max_offset: Int
    release: Text = ""
    queues: dict[Text, dict[Int, Int]] | None = None
    """To one that begins at `min_offset`: of each queue of a topic the number of its first message from
    there on, or of its next one. None: it goes on, or a master of an older release does not say it."""
    alive_from: dict[Text, dict[Int, Int]] = msgspec.field(default_factory=dict)
    """As `ConsumeQueues.alive_from`, by topic."""

    @property
    def epoch(self) -> Epoch:
        return self.runs[-1].epoch

    @property
    def run(self) -> RunKey:
        return self.runs[-1].key


class Start(ClientMessage, frozen=True, kw_only=True, tag=112):
    offset: Int


class State(ClientMessage, frozen=True, kw_only=True, tag=113):
    """What a slave stores beside the log."""

    topics: dict[Text, Int]
    is_run_confirmed: bool
    copy_list: CopyList | None = None
    """Of a master of the release before, whose history has none."""


class Refuse(ClientMessage, frozen=True, kw_only=True, tag=114):
    message: Text
    promised: Epoch = Epoch()
    is_for_now: bool = False
    """It is of use to try again soon: the broker that is asked may be about to lead."""


class Data(ClientMessage, frozen=True, kw_only=True, tag=115):
    offset: Int
    confirm_offset: Int
    body: bytes = b""
    """Here where it is smaller than what a frame has for a batch."""


class Heartbeat(ClientMessage, frozen=True, kw_only=True, tag=116):
    max_offset: Int
    confirm_offset: Int


class Report(ClientMessage, frozen=True, kw_only=True, tag=117):
    written_offset: Int
    flushed_offset: Int


HaMessage = SlaveLog | Welcome | Start | State | Refuse | Data | Heartbeat | Report
AnyHaMessage = HaMessage | Hello | HelloResponse
_DECODER: msgspec.msgpack.Decoder[tuple[str, AnyHaMessage]] = msgspec.msgpack.Decoder(
    tuple[str, AnyHaMessage]
)


class Codec(Protocol):
    """Either release's."""

    is_old: bool
    """It is that of the release before."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        """So many bytes were put there. Raises ProtocolViolation, after which nothing more may be."""

    def encode(self, message: AnyHaMessage) -> list[Buffer]: ...


def fed(codec: Codec, data: Buffer) -> Iterable[AnyHaMessage]:
    """Bytes that lie elsewhere."""
    rest = memoryview(data).cast("B")
    while rest:
        into = codec.get_buffer()
        count = min(len(into), len(rest))
        into[:count] = rest[:count]
        yield from codec.buffer_updated(count)
        rest = rest[count:]


class HaCodec:
    is_old = False

    def __init__(self) -> None:
        self._decoder = FrameDecoder(control=_DECODER)
        self._first = b""
        self._given = memoryview(b"")

    def get_buffer(self) -> memoryview:
        self._given = self._decoder.get_buffer()
        return self._given

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        if len(self._first) < GREETING_BYTES:
            self._first += bytes(self._given[: min(count, GREETING_BYTES)])
            if not (self._first.startswith(MAGIC) or MAGIC.startswith(self._first)):
                raise ProtocolViolation(
                    "these are no frames of the HA dialect quorumlog; a Java broker needs"
                    " --ha-dialect rocketmq"
                )
        for frame in self._decoder.buffer_updated(count):
            message: Any = frame.message
            if frame.batch is not None and isinstance(message, Data):
                message = replace(message, body=cast(bytes, frame.batch.buffer))
            yield message

    def encode(self, message: AnyHaMessage) -> list[Buffer]:
        if isinstance(message, Data) and len(message.body) >= HEADER_BYTES:
            batch = EntryBatch(message.body, None)
            return encode_frame(GROUP, replace(message, body=b""), batch)
        return encode_frame(GROUP, message)


def history_of(runs: list[Run]) -> EpochHistory:
    """As it was said. Raises ProtocolViolation."""
    for before, behind in pairwise(runs):
        if not (before.key < behind.key and before.start_offset <= behind.start_offset):
            raise ProtocolViolation("a history that is not in order")
    return EpochHistory(runs)


def is_old_greeting(first: Buffer) -> bool:
    """`first`: what came first, as many bytes as are needed to tell."""
    return bytes(first[: len(MAGIC)]) != MAGIC
