"""quorumlog export: a log into a file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from quorumlog.cli.options import (
    FirstIndex,
    LogPlace,
    StopIndex,
    argument,
    check_directory,
    refuse_crossed,
)
from quorumlog.cli.output import entry_progress, note, spoken_size, tell
from quorumlog.errors import ConfigError, LedgerError, Refused

if TYPE_CHECKING:
    from quorumlog.cli.carry.export_file import ExportFile, ExportSource


def export(
    at: LogPlace,
    file: Annotated[
        Path,
        argument("File to write; if it has a part of the export already, the rest is added.", "FILE"),
    ],
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
) -> None:
    """Write committed entries into a file, byte for byte, which `import` appends to another log.

    It can be interrupted, and repeated when the log has grown: it continues after the last complete
    record of the file. No-ops and other control entries are left out. `read --json` writes JSON lines.

    Example: quorumlog export --servers 127.0.0.1:20911 orders.export
    """
    from quorumlog.cli.carry.export_file import ExportFile, served, stored
    from quorumlog.cli.carry.export_format import FileDamaged

    refuse_crossed(first_index, stop_index)
    with ExitStack() as stack:
        if at.path is not None:
            opened = stored(check_directory(at.path), at.group, stop_index)
        else:
            opened = served(at.log)
        source = stack.enter_context(opened)
        if stop_index is not None and stop_index > source.stop_index:
            raise Refused(
                f"--to {stop_index} is above the end of the committed log, index"
                f" {source.stop_index - 1}; nothing was exported"
            )
        if first_index is not None and not source.begin_index <= first_index <= source.stop_index:
            raise Refused(
                f"--from {first_index} is not in the committed log, indices {source.begin_index} to"
                f" {source.stop_index - 1}; nothing was exported"
            )
        try:
            with entry_progress(f"reading {file}") as report:
                target = stack.enter_context(ExportFile(file, report))
        except FileDamaged as error:
            raise Refused(
                f"FILE {file}: {error}; delete it and export again, or name another file"
            ) from None
        _export(source, target, first_index, stop_index)


def _export(
    source: ExportSource, target: ExportFile, first_index: int | None, stop_index: int | None
) -> None:
    from quorumlog.cli.carry.export_format import Ending

    extent = target.extent
    is_new = extent.stop_position == 0
    stop = source.stop_index if stop_index is None else stop_index
    if is_new:
        next_index = source.begin_index if first_index is None else first_index
    else:
        _refuse_another_log(source, target, first_index, stop_index)
        next_index = extent.last_index + 1
    first, records = next_index, extent.records
    if target.torn_bytes:
        note(f"{target.path}: cut {target.torn_bytes} bytes after the last complete record")
    with entry_progress(f"exporting to {target.path}") as report:
        target.begin(source.group, first)
        try:
            for batch in source.batches(first, stop) if first < stop else ():
                entries = list(batch.entries())
                target.add(entries)
                records += len(entries)
                next_index = batch.last_index + 1
                report(next_index - first, stop - first)
        except (KeyboardInterrupt, LedgerError):
            note(f"stopped before index {next_index}; repeat the command to continue there")
            raise
        size_bytes = target.end(Ending(records, next_index - 1))
    new = records - target.extent.records
    row = {
        "file": str(target.path),
        "records": records,
        "new_records": new,
        "last_index": next_index - 1,
        "size_bytes": size_bytes,
    }
    before = f", {new} of them new" if target.extent.records else ""
    tell(
        row,
        f"exported {records} entries{before}, up to index {next_index - 1}, to {target.path}"
        f" ({spoken_size(size_bytes)})",
    )


def _refuse_another_log(
    source: ExportSource, target: ExportFile, first_index: int | None, stop_index: int | None
) -> None:
    """Whether the file is the beginning of just this export."""
    extent, file = target.extent, target.path
    if source.group and extent.group != source.group:
        raise ConfigError(
            f"FILE {file} is of group {extent.group}, not {source.group}; name another file"
        )
    if first_index is not None and extent.first_index != first_index:
        raise ConfigError(
            f"--from {first_index}: {file} begins at index {extent.first_index}; leave --from out, or"
            " name another file"
        )
    if stop_index is not None and extent.last_index >= stop_index:
        raise ConfigError(
            f"--to {stop_index}: {file} goes up to index {extent.last_index} already; name another file"
        )
    if extent.last_index >= source.stop_index:
        raise ConfigError(
            f"FILE {file} goes up to index {extent.last_index}, but only entries up to"
            f" {source.stop_index - 1} are committed here: it is of another log, or of a member that"
            " was ahead; name another file"
        )
    last = extent.last
    if last is None:
        return
    if last.index < source.begin_index:
        raise ConfigError(
            f"FILE {file} ends at index {last.index}, and the log now begins at {source.begin_index};"
            " name another file"
        )
    for batch in source.batches(last.index, last.index + 1):
        held = [(entry.index, entry.term, entry.body) for entry in batch.entries()]
        if held[:1] != [(last.index, last.term, last.body)]:
            raise ConfigError(
                f"FILE {file} is of another log: its last record, index {last.index}, is a different"
                " entry there; name another file"
            )
