"""What clients and servers say of the readers that the cluster keeps by name."""

from __future__ import annotations

import msgspec

from quorumlog.wire.client_message import ClientMessage, Int, Text


class ReaderInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One reader that the cluster keeps by name, as of a committed entry."""

    name: Text
    position: Int
    """Index of the next entry that it wants."""
    hold: Int
    """`log_state.control_entries.Hold`."""
    last_index: Int = -1
    """Of the entry that named it last."""
    lag_ms: Int = -1
    """From the time of the entry at `position` to that of the newest; -1: the log does not say."""
    lost_ranges: tuple[tuple[Int, Int], ...] = ()
    """(first_index, stop_index) of what it wanted to be held and that was given up by force."""
    lag_entries: Int = -1
    """Data from `position` to what is committed; -1: an older server, which does not say."""
    skipped_entries: Int = 0
    """That it went on without, since they were gone when it came to them."""
    skipped_ranges: tuple[tuple[Int, Int], ...] = ()
    """(first_index, stop_index) of the newest of them."""


class MoveReaderRequest(ClientMessage, frozen=True, kw_only=True, tag=64):
    """Move a reader, make it or end it; answered once that is committed. It may be repeated."""

    reader: Text
    position: Int | None = None
    """Of the next entry that it wants; without `seeks_from` it only goes forward. None: where it stands,
    and a new one begins with the first entry that may not be deleted."""
    hold: Int | None = None
    """None: as it is, and a new one holds nothing."""
    seeks_from: Int | None = None
    """Where it stands, for one that is to go back."""
    ends: bool = False
    opens: bool = False
    """Make it if there is none; UnknownReader otherwise."""
    last_index: Int | None = None
    """Of a seek: the entry that named the reader last, as its answer said. A late copy of the seek meets
    the same position again, and not the same entry. None: whoever asks was not told."""
    seen_index: Int | None = None
    """What this says was meant for the log up to here, as an answer has told: ReaderMoved if a reader
    was ended, led back or held otherwise since, so that no late copy of it comes in behind that. -1: no
    answer yet. None: an older client, whose late copies count."""
    last_chain: Int | None = None
    """Of an archive: the `chain_crc` of its last entry, the one in front of `position`."""
    skipped: tuple[Int, Int] | None = None
    """(first_index, stop_index) of entries that it goes on without, since they were gone when it came to
    them. Said again, they are not counted again."""


class MoveReaderResponse(ClientMessage, frozen=True, kw_only=True, tag=65):
    position: Int
    hold: Int
    last_index: Int = -1
    """Of the entry that named it last; -1: an older server, which does not say."""
    seen_index: Int = -1
    """Up to where the log is that says so; for the next request."""


class ReadersRequest(ClientMessage, frozen=True, kw_only=True, tag=66):
    """Answered by the leader, once a majority has confirmed it."""


class ReadersResponse(ClientMessage, frozen=True, kw_only=True, tag=67):
    committed_index: Int
    keep_from_index: Int
    """Nothing from here on may be deleted; committed."""
    readers: tuple[ReaderInfo, ...] = ()
