"""quorumlog why-kept: what keeps each segment of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quorumlog.cli.options import LogPlace, check_directory
from quorumlog.cli.output import print_table, say, spoken_size, tell_each

if TYPE_CHECKING:
    from quorumlog.wire.client_messages import SegmentInfo


def why_kept(at: LogPlace) -> None:
    """Show for each segment what keeps it: age, the size of the log, a reader, a follower, an archive.

    With --servers the leader tells, who decides what goes. The directory of a stopped member knows what
    its log says: readers that hold, and from where on nothing may be deleted.

    Example: quorumlog why-kept --servers 127.0.0.1:20911
    """
    if at.path is not None:
        from quorumlog.cli.log.kept_offline import kept_in

        segments, facts = kept_in(check_directory(at.path))
    else:
        with at.log.connected() as log:
            why = log.why_kept()
        segments = why.segments
        facts = f"keep_from_index {why.keep_from_index}, disk {100 * why.used_ratio:.0f} % full"
    names = ("first_index", "stop_index", "size_bytes", "time_ms", "reasons")
    rows = ({name: getattr(segment, name) for name in names} for segment in segments)
    tell_each(rows, lambda: _print(segments, facts))


def _print(segments: tuple[SegmentInfo, ...], facts: str) -> None:
    print_table(
        "first index #, entries #, size #, until, kept by",
        [
            (
                each.first_index,
                each.stop_index - each.first_index,
                spoken_size(each.size_bytes),
                None if each.time_ms < 0 else f"{_time(each.time_ms):%Y-%m-%d %H:%M:%SZ}",
                "; ".join(each.reasons),
            )
            for each in segments
        ],
    )
    say(facts)


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
