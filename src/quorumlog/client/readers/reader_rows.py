"""`readers()`: one row a reader that the cluster keeps by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from quorumlog.errors import BadRequest, ConfigError
from quorumlog.wire.reader_messages import ReadersResponse

GivenHold: TypeAlias = bool | Literal["archive"]
_HOLDS: tuple[GivenHold, ...] = (False, True, "archive")
"""By `log_state.control_entries.Hold`."""


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    position: int
    """Index of the next entry that it wants."""
    hold: GivenHold
    """What it has not read is kept: True, unless somebody forces it; "archive", always."""
    lag_entries: int
    """Data from `position` to what is committed. Of a reader that is a million entries behind, and of a
    server of an older release, the few control entries between count as well."""
    lag_ms: int
    """From the time of the first data at or behind `position` that is still there to that of the newest;
    -1: the log does not say."""
    lost_ranges: tuple[tuple[int, int], ...]
    """(first_index, stop_index) of what it wanted to be held and that was given up by force."""
    skipped_entries: int = 0
    """That it went on without, since they were gone when it came to them: `NamedReader.note_skipped`."""
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
    """Led on by `what`, which has another use for it, a consumer would never see what it had not read by
    then. Raises ConfigError."""
    for reader in readers:
        if reader.name == name and reader.hold != "archive":
            raise ConfigError(
                f"hold: {name} is a reader of the log, which stands at {reader.position}, and {what}"
                " would lead it past what it has not read: choose another name"
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
