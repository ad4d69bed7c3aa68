"""quorumlog inspect: what lies in a data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Directory, Json, check_directory
from quorumlog.cli.output import entry_progress, out, print_json, say

if TYPE_CHECKING:
    from quorumlog.store.verification import Inspection


def inspect(
    directory: Directory,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read every entry; most damage stays unseen.")
    ] = False,
    json: Json = False,
) -> None:
    """Show segments, index ranges, terms, hard state, checkpoint, what is damaged where and what waits
    to be repaired.

    Takes directories of quorumlog and of Java DLedger members and changes nothing in them. Status 0 also
    when there is damage: it was shown. `verify` ends with status 1 then.

    Example: quorumlog inspect /var/lib/quorumlog/n0
    """
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.verification import inspect_directory

    path = check_directory(directory)
    with entry_progress(path) as progress:
        found = inspect_directory(OsDisk(), path, verify_entries=not quick, progress=progress)
    if json:
        print_json(found.to_json())
    else:
        _print_facts(found)
        _print_segments(found)
        _print_damage(found, quick=quick)


def _print_facts(found: Inspection) -> None:
    from rich.table import Table

    founding = ", ".join(voter.member_id for voter in found.formation.founding)
    voted_for = found.voted_for.member_id if found.voted_for else "nobody"
    hard_state = f"term {found.current_term}, voted for {voted_for}"
    facts: list[tuple[str, object]] = [("directory", found.directory)]
    if found.is_java:
        facts.append(("written by", "a Java DLedger member"))
    elif found.backup is not None:
        cut = found.backup.cut
        complete = "never complete" if cut is None else f"complete up to index {cut.index}"
        facts.append(
            ("backup", f"of group {found.group}, cluster {found.backup.cluster_id}; {complete}")
        )
    else:
        facts += [
            ("member", f"{found.member_id} of group {found.group}, directory id {found.directory_id}"),
            ("formed", f"with {founding}" if founding else "not yet"),
        ]
    if found.in_use:
        facts.append(("in use", "a running member holds it; what is shown may be out of date"))
    facts += [
        ("log", f"index {found.ledger_begin_index} to {found.ledger_end_index}"),
        *_start_and_states(found),
        ("last term", found.ledger_end_term),
        ("hard state", "unreadable" if found.current_term < 0 else hard_state),
        ("checkpoint", f"committed up to index {found.committed_index}"),
    ]
    if not found.is_java:
        facts.append(("durable point", f"index {found.durable_index}"))
    facts.append(("segment sizes", f"data {found.segment_bytes} B, index {found.index_segment_bytes} B"))
    space = found.space
    facts.append(("space", f"{space.disk_bytes:,} B on disk, {space.apparent_bytes:,} B apparent"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, str(value))
    out().print(table)


def _start_and_states(found: Inspection) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = []
    start = found.start
    if start is not None:
        said = f"behind entry {start.before_index} (term {start.term}), state of {start.record_bytes} B"
        if start.replaces:
            said += "; the next start of the process removes the log that this one replaces"
        if start.good_slots < 2:
            said += "; one of two slots is not good, the next start of the process writes it again"
        facts.append(("start", said))
    if found.states:
        firsts = [str(state.first_index) for state in found.states if not state.problem]
        facts.append(
            ("saved states", f"in front of {', '.join(firsts)}" if firsts else "none that counts")
        )
        facts += [("", f"{state.file} {state.problem}") for state in found.states if state.problem]
    return facts


def _print_segments(found: Inspection) -> None:
    from rich.table import Table

    if not found.segments:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("segment")
    for heading in ("first index", "last index", "first term", "last term", "bytes used"):
        table.add_column(heading, justify="right")
    for segment in found.segments:
        table.add_row(
            segment.file,
            str(segment.first_index),
            str(segment.last_index),
            str(segment.first_term),
            "?" if segment.last_term < 0 else str(segment.last_term),
            str(segment.bytes_used),
        )
    console = out()
    console.print()
    console.print(table)


def _print_damage(found: Inspection, *, quick: bool) -> None:
    from quorumlog.store.verification import describe_damaged

    say("")
    for damage in found.damage:
        say(f"damage  {damage.path}: {damage.problem} ({damage.place})", style="red")
    for damaged in found.damaged:
        say(f"damaged {describe_damaged(damaged)}; it waits for another member's copy", style="red")
    if found.tail:
        say(f"tail    {found.tail}: the next start cuts it")
    if not found.damage and not found.damaged:
        say("no damage seen (entries were not read)" if quick else "no damage")
