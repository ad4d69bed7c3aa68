"""quorumlog import: a file of an export into a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from quorumlog.cli.options import LogServers, argument, option, refuse_crossed
from quorumlog.cli.output import describe, entry_progress, note, tell
from quorumlog.errors import ConfigError, LedgerError, Refused

if TYPE_CHECKING:
    from quorumlog.cli.carry.export_format import Extent, Record
    from quorumlog.cli.carry.importer import Importer


def import_file(
    file: Annotated[Path, argument("File that `export` wrote.", "FILE")],
    at: LogServers,
    first_index: Annotated[
        int, option("First index, by the indices in the file.", name="--from", min=0)
    ] = 0,
    stop_index: Annotated[
        int | None,
        option(
            "Stop before this index, by the indices in the file. (default: the end of FILE)",
            name="--to",
            min=0,
        ),
    ] = None,
    expected_last: Annotated[
        int,
        option(
            "Append after this index, the last data entry when the import first began; -1:"
            " the log was empty.",
            "INDEX",
            min=-1,
        ),
    ] = -1,
) -> None:
    """Append the entries of a file to a log, in order, each once.

    The whole file is checked first; nothing is appended from a damaged file. After any failure repeat
    the same command: entries that are in the log already are compared with the file and not written
    twice. It stops if another client appends meanwhile. The log assigns new indices.

    Example: quorumlog import --servers 127.0.0.1:20911 orders.export
    """
    from quorumlog.cli.carry.export_format import ExportReader
    from quorumlog.cli.carry.importer import Importer, ImportStopped, batched

    refuse_crossed(first_index, stop_index)
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(file.open("rb"))
        except OSError as error:
            raise ConfigError(f"FILE {file}: {error.strerror}; name a file that export wrote") from None
        extent, wanted = _survey(file, opened, first_index, stop_index)
        log = stack.enter_context(at.connected())
        importer = Importer(log, expected_last, note)
        try:
            with entry_progress(f"importing {file}") as report:
                opened.seek(0)
                records = islice(ExportReader(opened).records(), extent.records)
                for batch in batched(_within(records, first_index, stop_index)):
                    importer.put(batch)
                    report(importer.records, wanted)
        except ImportStopped as stopped:
            raise Refused(str(stopped)) from None
        except LedgerError as error:
            raise Refused(f"{describe(error)}; {_account(importer, wanted)}") from None
        except KeyboardInterrupt:
            note(f"interrupted: {_account(importer, wanted)}")
            raise
    place = f"first index {importer.first_index}, last index {importer.last_index}"
    if not importer.records:
        spoken = "nothing to import"
    elif not importer.appended:
        spoken = f"nothing to append: all {importer.found} entries are in the log already ({place})"
    else:
        twice = f"; {importer.found} of them were there already and were not written twice"
        spoken = f"imported {importer.records} entries: {place}{twice * bool(importer.found)}"
    names = ("records", "appended", "found", "first_index", "last_index")
    tell({name: getattr(importer, name) for name in names}, spoken)


def _survey(path: Path, file: BinaryIO, first_index: int, stop_index: int | None) -> tuple[Extent, int]:
    """The file read through, and how many of its records are wanted. A broken one ends the command."""
    from quorumlog.cli.carry.export_format import FileBroken, is_export, scan_export

    if not file.seekable():
        raise ConfigError(f"FILE {path} is not a regular file, and must be read twice; name one")
    wanted = 0

    def count(record: Record) -> None:
        nonlocal wanted
        wanted += first_index <= record.index < (sys.maxsize if stop_index is None else stop_index)

    if not is_export(file):
        raise ConfigError(
            f"FILE {path} is not an export; name a file that export wrote (JSON lines of an earlier"
            " release: export again, or run `import` of that release)"
        )
    try:
        with entry_progress(f"reading {path}") as report:
            extent = scan_export(file, report, count)
        if extent.torn is not None:
            raise extent.torn
    except FileBroken as error:
        raise Refused(
            f"FILE {path}: {error}; nothing was appended; export again (which completes a truncated"
            " file) or copy it again"
        ) from None
    return extent, wanted


def _within(records: Iterator[Record], first_index: int, stop_index: int | None) -> Iterator[Record]:
    for record in records:
        if stop_index is not None and record.index >= stop_index:
            return
        if record.index >= first_index:
            yield record


def _account(importer: Importer, wanted: int) -> str:
    where = f", up to its index {importer.last_index}" if importer.records else ""
    return (
        f"{importer.records} of {wanted} entries are known to be in the log{where}; the same command"
        " continues after them"
    )
