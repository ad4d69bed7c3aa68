"""Where an export takes entries from: a running cluster, or a stopped member's directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.cli.output import note
from quorumlog.cli.use.reach import refuse_dead_servers
from quorumlog.client import connect, leader_of
from quorumlog.errors import ConfigError
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk


class Source(NamedTuple):
    """What is committed, as of now: entries of [begin_index, stop_index)."""

    group: str
    """"" if nobody tells: Java's directories do not."""
    begin_index: int
    stop_index: int
    batches: Callable[[int, int], Iterator[EntryBatch]]
    """Of a range within."""


@contextmanager
def served(servers: str, group: str, timeout_s: float) -> Iterator[Source]:
    with connect(servers, group=group, timeout_ms=int(timeout_s * 1000)) as log:
        refuse_dead_servers(log, timeout_s)
        stop_index = log.end_index() + 1
        leader = leader_of(log.status())
        begin_index = max(leader.ledger_begin_index, 0) if leader is not None else 0
        yield Source(group, begin_index, stop_index, log.read_batches)


@contextmanager
def stored(path: str, group: str | None, stop_index: int | None) -> Iterator[Source]:
    """Raises DirectoryDamaged if committed entries are missing that the export should hold."""
    with DirectoryReader(OsDisk(), path) as reader:
        if group is not None and reader.group and group != reader.group:
            raise ConfigError(f"{path} is of group {reader.group}, not {group}; change --group")
        missing, readable = reader.missing, reader.readable_index + 1
        if missing is not None and (stop_index is None or missing.index < stop_index):
            raise reader.refusal(missing)
        if stop_index is None and readable <= reader.ledger_end_index:
            note(
                f"entries {readable} to {reader.ledger_end_index} are not known to be committed and are"
                " left out; a running cluster knows"
            )
        yield Source(reader.group, max(reader.ledger_begin_index, 0), readable, reader.batches)
