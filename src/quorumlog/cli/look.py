"""quorumlog inspect, verify, recover: contents and integrity of directories of stopped members, and
recovery of a cluster without a majority."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Directory, argument, check_directory, option, start_command
from quorumlog.cli.output import EXIT_REFUSED, entry_progress, is_json, note, out, print_table, say, tell
from quorumlog.errors import ConfigError, DirectoryDamaged

if TYPE_CHECKING:
    from quorumlog.backups import Recovered, RecoveryPlan, Survivor
    from quorumlog.store.directory_reader import DirectoryReader
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.verification import Inspection, Verification


def inspect(
    directory: Directory,
    quick: Annotated[bool, option("Do not read every entry; most damage stays unseen.")] = False,
) -> None:
    """Show segments, index ranges, terms, hard state, checkpoint, damage and pending repairs.

    Takes directories of quorumlog and of Java DLedger members and changes nothing in them. Status 0 also
    if there is damage; `verify` ends with status 1 then.

    Example: quorumlog inspect /var/lib/quorumlog/n0
    """
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.verification import inspect_directory

    path = check_directory(directory)
    with entry_progress(path) as progress:
        found = inspect_directory(OsDisk(), path, verify_entries=not quick, progress=progress)

    def show() -> None:
        _print_facts(found)
        _print_segments(found)
        _print_damage(found, quick=quick)

    tell(found.to_json(), show)


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
        facts.append(("in use", "a running member holds it; the output may be out of date"))
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
        description = (
            f"after entry {start.before_index} (term {start.term}), state of {start.record_bytes} B"
        )
        if start.replaces:
            description += "; the next start of the process removes the log that this one replaces"
        if start.good_slots < 2:
            description += (
                "; one of two slots is not good, the next start of the process writes it again"
            )
        facts.append(("start", description))
    if found.states:
        firsts = [str(state.first_index) for state in found.states if not state.problem]
        facts.append(("saved states", f"before {', '.join(firsts)}" if firsts else "none that counts"))
        facts += [("", f"{state.file} {state.problem}") for state in found.states if state.problem]
    return facts


def _print_segments(found: Inspection) -> None:
    if not found.segments:
        return
    rows = [
        (each.file, each.first_index, each.last_index, each.first_term, each.last_term, each.bytes_used)
        for each in found.segments
    ]
    say("")
    print_table(
        "segment, first index #, last index #, first term #, last term #, bytes used #",
        [(*row[:4], "?" if row[4] < 0 else row[4], row[5]) for row in rows],
    )


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


def verify(
    directories: Annotated[
        list[Path],
        argument("Data directories of stopped members; several are compared.", "DIR [DIR ...]"),
    ],
) -> None:
    """Check structure, CRC and chain of every entry; of several directories also that they agree.

    Status 1 on damage or on a difference. A log that is only shorter, or begins later, is no
    difference: logs are compared from the highest first index on.

    Example: quorumlog verify dev-data/n0 dev-data/n1 dev-data/n2
    """
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.verification import verify_directory

    paths = [check_directory(directory) for directory in directories]
    disk = OsDisk()
    results = []
    for path in paths:
        with entry_progress(path) as progress:
            results.append(verify_directory(disk, path, progress))
        if disk.is_locked(f"{path}/lock"):
            note(f"{path}: a running member holds it; its current writes may show as damage")
    if len(paths) > 1:
        results = _compared(disk, results)
    for result in results:
        tell(result.to_json(), partial(_print_result, result))
    if not is_json() and len(paths) > 1 and all(result.ok for result in results):
        say(_agreement(results))
    if not all(result.ok for result in results):
        raise typer.Exit(EXIT_REFUSED)


def _compared(disk: OsDisk, results: list[Verification]) -> list[Verification]:
    """Each with the first: where it differs, that is its problem, unless it has a worse one."""
    first, *others = results
    if not first.ok and first.entries == 0:
        return results
    compared = [first]
    for other in others:
        problem = "" if not other.ok and other.entries == 0 else _difference(disk, first, other)
        compared.append(other if other.problem or not problem else replace(other, problem=problem))
    return compared


def _difference(disk: OsDisk, first: Verification, other: Verification) -> str:
    from quorumlog.store.directory_reader import DirectoryReader
    from quorumlog.store.verification import compare_directories

    with ExitStack() as stack:
        readers = [
            stack.enter_context(DirectoryReader(disk, result.directory)) for result in (first, other)
        ]
        of_another = _identity_problem(first, readers)
        try:
            comparison = compare_directories(readers)
        except DirectoryDamaged:
            return ""  # said by the directory that is damaged
    index = comparison.first_difference
    if index is None:
        return of_another
    committed = index <= comparison.committed_index
    known = "a committed entry" if committed else "not known to be committed"
    return f"differs from {first.directory}; first differing index: {index} ({known})"


def _identity_problem(first: Verification, readers: list[DirectoryReader]) -> str:
    """Why logs that agree so far can never be one."""
    ours, theirs = (reader.group for reader in readers)
    if ours and theirs and ours != theirs:
        return f"is of group {theirs}, and {first.directory} of group {ours}"
    clusters = {reader.formation.cluster_id for reader in readers} - {""}
    if len(clusters) > 1:
        return f"is of another cluster than {first.directory}: they were formed apart"
    return ""


def _print_result(result: Verification) -> None:
    from quorumlog.store.verification import describe_damaged

    covered = f"{result.checked} checked"
    if result.unchecked:
        covered += f", {result.unchecked} without digests (structure checked only)"
    span = (
        f"indices {result.ledger_begin_index} to {result.ledger_end_index}"
        if result.entries
        else "empty"
    )
    verdict = "[green]ok[/green]" if result.ok else "[red]not ok[/red]"
    out().print(f"{verdict}  ", end="")
    say(f"{result.directory}: {result.entries} entries, {span}, {covered}, chain {result.chain_crc:08x}")
    for damage in result.damage:
        say(f"        {damage.path}: {damage.problem} ({damage.place})")
    if result.problem and not result.damage and not result.damaged:
        say(f"        {result.problem}")
    for damaged in result.damaged:
        say(f"        damaged: {describe_damaged(damaged)}")


def _agreement(results: list[Verification]) -> str:
    begins = [result.ledger_begin_index for result in results if result.ledger_begin_index >= 0]
    ends = [result.ledger_end_index for result in results]
    many, first, last = f"the {len(results)} directories", max(begins, default=0), min(ends)
    if first > last >= 0:
        return f"{many} have no entry in common: one begins at index {first}, one ends at {last}"
    since = f" from index {first} on, where the last of them begins" if len(set(begins)) > 1 else ""
    if len(set(ends)) == 1:
        return f"{many} hold the same log{since}"
    return f"{many} agree{since}{',' * bool(since)} up to index {last}, where the shortest ends"


def recover(
    directories: Annotated[
        list[Path], argument("Data directories of the remaining members, all stopped.", "DIR...")
    ],
    unsafe: Annotated[bool, option("Do it; without this option the plan is only shown.")] = False,
    yes: Annotated[
        str | None,
        option(
            "Confirm with the name of the group instead of at a prompt.",
            "NAME",
            name="--yes-i-know",
        ),
    ] = None,
    dry_run: Annotated[bool, option("Show what would be done; change nothing.")] = False,
) -> None:
    """Make a new cluster of one voter from the rest of a cluster that has lost its majority for good.

    The best log is kept. Acknowledged entries that only lost members have are lost; use it if these
    cannot return. A member of a larger group that still works does not need this: its leader replaces
    it. A group of one that lost its term and vote does.

    Example: quorumlog recover --unsafe /data/n1 /data/n2
    """
    from quorumlog.backups import plan_recovery, recover_cluster

    plan = plan_recovery([check_directory(directory) for directory in directories])
    if yes is not None and yes != plan.group:
        raise ConfigError(f"--yes-i-know {yes} is not the name of this group, which is {plan.group}")
    if not is_json():
        _print_plan(plan)
    if not plan.is_needed or dry_run or not unsafe:
        tell(_row(plan), lambda: None)
        if plan.is_needed and not dry_run:
            raise ConfigError(
                "nothing was changed: add --unsafe to recover, or --dry-run to end with status 0"
            )
        return
    if yes is None:
        note(
            "Entries that cannot be read here are given up for good, and no member of the old cluster"
            " can join."
        )
        typed = typer.prompt(f"The name of the group, to recover {plan.best.directory}", err=True)
        if typed != plan.group:
            raise ConfigError(f"{typed} is not the name of this group; nothing was changed")
    recovered = recover_cluster(plan)
    tell(_row(plan, recovered), lambda: _print_recovered(plan, recovered))


def _row(plan: RecoveryPlan, recovered: Recovered | None = None) -> dict[str, object]:
    import msgspec

    return {
        **msgspec.to_builtins(plan),
        "uncertain": plan.uncertain,
        "lost": plan.lost,
        "may_miss_from_index": plan.committed_index + 1 if plan.is_needed else None,
        "recovered": msgspec.to_builtins(recovered),
    }


def _print_plan(plan: RecoveryPlan) -> None:
    for survivor in plan.survivors:
        say(f"{survivor.member_id} in {survivor.directory}: {_log_of(survivor)}")
        for problem in (*survivor.forgotten, *survivor.damage, *survivor.snapshots_ahead):
            say(f"  {problem}")
    voters = ", ".join(sorted({voter.member_id for voter in plan.voters}))
    if not plan.is_needed:
        alive = sorted({v.member_id for v in plan.voters if v not in plan.missing})
        say(
            f"nothing to do: {', '.join(alive)} can elect a leader among {voters}. Start them;"
            " replace lost members with quorumlog member"
        )
        return
    forgetful = {each.member_id for each in plan.survivors}
    words = {True: " (this directory does not vote)", False: ""}
    missing = ", ".join(f"{v.member_id}{words[v.member_id in forgetful]}" for v in plan.missing)
    say(f"voters of group {plan.group}: {voters}; not here: {missing}")
    say(f"the best log: that of {plan.best.member_id}, in {plan.best.directory}")
    if plan.uncertain is None:
        say("every entry that would be kept is known to have been committed")
    else:
        first, last = plan.uncertain
        say(f"entries {first} to {last} would be kept, and may never have been committed")
    if plan.lost is not None:
        first, last = plan.lost
        say(
            f"entries {first} to {last} were committed, and no directory named here would give them back"
        )
    say(f"acknowledged entries may be missing from index {plan.committed_index + 1} on")


def _log_of(survivor: Survivor) -> str:
    if survivor.last_index < survivor.first_index or survivor.first_index < 0:
        return "no entries"
    return (
        f"entries {survivor.first_index} to {survivor.last_index}, the last of term"
        f" {survivor.last_term}; known to be committed: up to {survivor.committed_index}"
    )


def _print_recovered(plan: RecoveryPlan, recovered: Recovered) -> None:
    from quorumlog.config import STAGING_FOLDER, is_staging_name

    member = recovered.member_id
    say(
        f"recovered: {member} is the only voter of cluster {recovered.cluster_id}, with entries up to"
        f" {recovered.last_index}"
    )
    if is_staging_name(recovered.group):
        say("it starts, and gets its members, with its main group")
        return
    staging = [
        str(beside)
        for each in plan.survivors
        if (beside := Path(each.directory) / STAGING_FOLDER).is_dir()
    ]
    if staging:
        say("its staging group is recovered by itself, before it starts:")
        say(f"  quorumlog recover --unsafe {' '.join(staging)}")
    address = plan.address or "HOST:PORT"
    say("start it:")
    say(f"  {start_command(recovered.directory, recovered.group, member, f'{member}={address}')}")
    say(
        "start each other member on an empty directory, by the same command with its address added to"
        " --members, and:"
    )
    say(f"  quorumlog member add ID HOST:PORT --group {recovered.group} --servers {address}")
