"""Named readers kept by the cluster: their rows, and requests to the leader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from quorumlog.client.sending import Sender, request_of
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    IndexOutOfRange,
    OutcomeUnknown,
    ReaderMoved,
    Refused,
    UnknownReader,
)
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.net.system import now_ms
from quorumlog.wire.client_messages import (
    MoveReaderRequest,
    MoveReaderResponse,
    ReadersRequest,
    ReadersResponse,
)

GivenHold: TypeAlias = bool | Literal["archive"]
_HOLDS: tuple[GivenHold, ...] = (False, True, "archive")
"""By `log_state.control_entries.Hold`."""


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    position: int
    """Index of the next entry to read."""
    hold: GivenHold
    """Unread entries are kept: True, unless forced; "archive", always."""
    lag_entries: int
    """Data entries from `position` to the committed index. For a reader that lags more than a million
    entries, and with a server of an older release, the few control entries in between count as well."""
    lag_ms: int
    """From the time of the first remaining data entry at or after `position` to that of the newest; -1:
    unknown."""
    lost_ranges: tuple[tuple[int, int], ...]
    """(first_index, stop_index) of held entries that were deleted by force."""
    skipped_entries: int = 0
    """Entries deleted before the reader reached them: `NamedReader.note_skipped`."""
    skipped_ranges: tuple[tuple[int, int], ...] = ()
    """(first_index, stop_index) of the newest of them."""


def hold_of(number: int) -> GivenHold:
    """A newer server may know more of them, which all hold at least as much."""
    return _HOLDS[min(number, len(_HOLDS) - 1)]


def number_of(hold: GivenHold | None) -> int | None:
    """Raises BadRequest."""
    if hold is None:
        return None
    for number, known in enumerate(_HOLDS):
        if hold is known or (isinstance(hold, str) and hold == known):
            return number
    raise BadRequest(f'hold must be True, False or "archive", not {hold!r}')


def refuse_consumer(readers: Iterable[ReaderRow], name: str, what: str) -> None:
    """Moved by `what`, which uses the reader otherwise, a consumer would never see the entries skipped.
    Raises ConfigError."""
    for reader in readers:
        if reader.name == name and reader.hold != "archive":
            raise ConfigError(
                f"hold: {name} is already a reader of the log, at position {reader.position}, and"
                f" {what} would move it past unread entries: choose another name"
            )


def rows_of(response: ReadersResponse) -> list[ReaderRow]:
    return [
        ReaderRow(
            name=reader.name,
            position=reader.position,
            hold=hold_of(reader.hold),
            lag_entries=reader.lag_entries
            if reader.lag_entries >= 0
            else max(0, response.committed_index + 1 - reader.position),
            lag_ms=reader.lag_ms,
            lost_ranges=reader.lost_ranges,
            skipped_entries=reader.skipped_entries,
            skipped_ranges=reader.skipped_ranges,
        )
        for reader in response.readers
    ]


# ----------------------------------------------------------------
# What the leader is asked of the readers that the cluster keeps.


class ReaderState(NamedTuple):
    position: int
    hold: int
    last_index: int = -1
    """Of the entry that named it last; -1: the server did not say."""
    seen_index: int = -1
    """Up to where the log is that says so; -1: the server did not say."""

    @property
    def known_index(self) -> int | None:
        """For the next request."""
        return self.seen_index if self.seen_index >= 0 else None


async def open_reader(
    sender: Sender, message: MoveReaderRequest, timeout_ms: float | None
) -> ReaderState:
    """`message` is for the log as it is when this begins: repeated after an unknown outcome, it must not
    recreate a reader that was ended meanwhile."""
    deadline_ms = now_ms() + sender.timeout_ms_of(timeout_ms)
    response = await sender.ask(ReadersRequest(), ReadersResponse, timeout_ms)
    message = replace(message, seen_index=response.committed_index)
    return await move(sender, message, deadline_ms - now_ms())


async def move(sender: Sender, message: MoveReaderRequest, timeout_ms: float | None) -> ReaderState:
    """Repeated if its outcome is unknown: a second time it changes nothing. Also repeated if it was
    meant for an older log; but not an open or end with an unknown outcome, since the reader may have
    been ended or created by others meanwhile, and a commit only if the reader cannot have been moved
    back below it."""
    deadline_ms = now_ms() + sender.timeout_ms_of(timeout_ms)
    unknown: OutcomeUnknown | None = None
    while True:
        request = await sender.call(request_of(message, LEADER, deadline_ms - now_ms()))
        error = request.error
        if message.ends and unknown is not None and isinstance(error, UnknownReader):
            return ReaderState(-1, 0)
        if (
            isinstance(error, ReaderMoved)
            and message.seen_index is not None
            and error.committed_index > message.seen_index
            and not ((message.ends or message.opens) and unknown is not None)
            and now_ms() < deadline_ms
        ):
            if unknown is not None:
                await _check_not_led_back(sender, message, unknown, deadline_ms)
            message = replace(message, seen_index=error.committed_index)
        elif isinstance(error, OutcomeUnknown) and now_ms() < deadline_ms:
            unknown = error
        elif unknown is not None and isinstance(error, Refused) and error.retriable:
            raise unknown  # no time was left to make it again
        elif unknown is not None and isinstance(error, ReaderMoved | IndexOutOfRange):
            raise unknown  # it may have been done before the reader, or the log, went on
        else:
            response = response_of(request, MoveReaderResponse)
            return ReaderState(
                response.position, response.hold, response.last_index, response.seen_index
            )


async def _check_not_led_back(
    sender: Sender, message: MoveReaderRequest, unknown: OutcomeUnknown, deadline_ms: float
) -> None:
    """A commit with an unknown outcome was refused, as meant for an older log. Raises `unknown` if it
    may have been done, and the reader been led back since: once more, it would undo that."""
    assert message.position is not None
    assert message.seen_index is not None
    request = await sender.call(request_of(ReadersRequest(), LEADER, deadline_ms - now_ms()))
    if request.error is not None:
        raise unknown
    found = response_of(request, ReadersResponse).readers
    reader = next((each for each in found if each.name == message.reader), None)
    if reader is None:
        raise unknown
    is_as_it_was = 0 <= reader.last_index <= message.seen_index
    if not is_as_it_was and reader.position < message.position:
        raise unknown


def checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise BadRequest(f"the name of a reader is a text, not {name!r}")
    return "".join(name)
