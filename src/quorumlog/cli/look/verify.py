"""quorumlog verify: every entry of a directory checked, and directories compared."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Json, check_directory, named_path
from quorumlog.cli.output import EXIT_REFUSED, entry_progress, note, out, print_json, say
from quorumlog.errors import DirectoryDamaged

if TYPE_CHECKING:
    from quorumlog.store.directory_reader import DirectoryReader
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.verification import Verification


def verify(
    directories: Annotated[
        list[Path],
        typer.Argument(
            help="Data directories of stopped members; several are compared.",
            metavar="DIR [DIR ...]",
            show_default=False,
            parser=named_path,
        ),
    ],
    json: Json = False,
) -> None:
    """Check structure, CRC and chain of every entry; of several directories also that they agree.

    Status 1 on damage or on a difference. A log that is merely shorter, or begins later, differs in
    nothing: logs are compared from the highest begin on.

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
            note(f"{path}: a running member holds it; what it writes now may show as damage")
    if len(paths) > 1:
        results = _compared(disk, results)
    for result in results:
        if json:
            print_json(result.to_json())
        else:
            _print_result(result)
    if not json and len(paths) > 1 and all(result.ok for result in results):
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
