"""quorumlog why: recent events of leaders, refusals and lagging members; why segments are kept."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quorumlog.cli.options import App, LogPlace, LogServers, check_directory
from quorumlog.cli.output import note, print_table, say, spoken_size, tell_each, tell_rows

if TYPE_CHECKING:
    from quorumlog.client import MemberStatusRow
    from quorumlog.wire.client_messages import SegmentInfo

why_app = App(
    "Show why leadership moved, a follower lags, appends are refused, a segment is kept.\n\n"
    "Members remember the last 256 events of each group since they were started.",
    "quorumlog why leader --servers 127.0.0.1:20911",
)


def _rows(at: LogServers) -> list[MemberStatusRow]:
    with at.connected() as log:
        return log.status(events=True)


def _tell(rows: Iterable[MemberStatusRow], kinds: tuple[str, ...], words: str = "") -> None:
    """Events of all members, in the order of their times. `words`: that are in their text."""
    events = sorted(
        (event.time_ms, row.id, event.kind, event.text, event.times)
        for row in rows
        for event in row.events
        if event.kind in kinds and words in event.text
    )
    names = ("time_ms", "member", "kind", "text", "times")
    tell_rows(
        [dict(zip(names, event, strict=True)) for event in events],
        "time, member, times #, what",
        [(_time(ms), member, times, text) for ms, member, _, text, times in events],
        if_none="the members that answer have recorded nothing of the kind since they started",
    )


@why_app.command()
def leader(at: LogServers) -> None:
    """Show the leaders and their times, as each member saw them, and why leadership was handed over.

    Example: quorumlog why leader --servers 127.0.0.1:20911
    """
    _tell(_rows(at), ("leader",))


@why_app.command()
def behind(at: LogServers) -> None:
    """Show the lag of each follower, as the leader sees it, and recent events that explain it.

    Example: quorumlog why behind --servers 127.0.0.1:20911
    """
    from quorumlog.cli.log.status_table import spoken_answer, spoken_feeding
    from quorumlog.client import leader_of

    rows = _rows(at)
    leading = leader_of(rows)
    members, end_index = ((), -1) if leading is None else (leading.members, leading.ledger_end_index)
    for member in members:
        lag = end_index - member.water_mark
        if lag <= 0 and member.reachable:
            continue
        parts = ["not connected" if not member.reachable else f"{lag} entries behind"]
        parts += [spoken_feeding(member)] if member.behind_bytes >= 0 else []
        note(f"{member.id}: {', '.join([*parts, *filter(None, [spoken_answer(member)])])}")
    _tell(rows, ("peer", "problem"))


@why_app.command()
def refused(at: LogServers) -> None:
    """Show why appends were refused: each error with its count, since when, and its newest message.

    Example: quorumlog why refused --servers 127.0.0.1:20911
    """
    _tell(_rows(at), ("refused",))


@why_app.command()
def kept(at: LogPlace) -> None:
    """Show for each segment why it is kept: age, the size of the log, a reader, a follower, an archive.

    With --servers the leader answers, which decides on deletions. The directory of a stopped member has
    only the state of its log: readers with a hold, and the index from which nothing may be deleted.

    Example: quorumlog why kept --servers 127.0.0.1:20911
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
                None if each.time_ms < 0 else _time(each.time_ms),
                "; ".join(each.reasons),
            )
            for each in segments
        ],
    )
    say(facts)


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
