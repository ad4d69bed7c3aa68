"""The two groups through clients. Every call may raise a LedgerError."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, connect
from quorumlog.config import staging_name
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ConfigError, ProducerExpired, UnknownGroup, UnknownReader
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls
from quorumlog.staging.manifests import RowRange

WINDOW = 5
"""Batches of a session on their way: of so many the log remembers where they lie."""
READ_BYTES = 2 * 1024 * 1024


class ProducerState(NamedTuple):
    last_sequence: int
    """-1: nothing of it is in the log."""
    last_index: int
    """Where that one lies."""


class LogSession:
    """Connected as a producer, which has fenced the process before. The next that connects fences this
    one: its appends then raise ProducerFenced, and nothing of them is written."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self.last_sequence = client.last_sequence()

    def append(self, sequence: int, batches: Iterable[EntryBatch], machine: str = "") -> int:
        """In order, the first entry under this number; returns the index of the last. `machine`: the
        state machine that takes them; empty: none. The client continues its numbers by itself; only
        once."""
        assert sequence == self.last_sequence + 1, (sequence, self.last_sequence)
        last_index = -1
        receipts: Iterable[AppendReceipt]
        if machine:
            receipts = (self._client.append_batch(batch, machine=machine) for batch in batches)
        else:
            receipts = self._client.append_stream(batches, window=WINDOW)
        for receipt in receipts:
            self.last_sequence += receipt.count
            last_index = receipt.last_index
        return last_index


class ClientLog:
    def __init__(
        self,
        servers: str,
        group: str,
        timeout_ms: int,
        known: Sequence[str] = (),
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`known`: further addresses of members, found elsewhere."""
        self._connect = partial(connect, servers, group=group, timeout_ms=timeout_ms, tls=tls, user=user)
        self.client = self._connect()
        if known:
            self.client.add_servers(known)

    @contextmanager
    def session(self, producer: str) -> Generator[LogSession]:
        with self._connect(producer_id=producer) as client:
            client.add_servers(self.client.known_servers)
            yield LogSession(client)

    def producer(self, producer: str) -> ProducerState | None:
        """As it is committed; None: it was never connected here."""
        try:
            known = self.client.producer(producer)
        except ProducerExpired:
            return None
        return ProducerState(known.last_sequence, known.last_index)

    def body_at(self, index: int) -> bytes:
        return self.client.get(index).body

    def batches(self, ranges: Iterable[RowRange]) -> Iterator[EntryBatch]:
        """The entries of these ranges, one range after the other."""
        for each in ranges:
            yield from self.client.read_batches(
                each.first_index, each.stop_index, batch_bytes=READ_BYTES
            )

    def hold(self, name: str) -> int | None:
        """From where on this reader holds the log; None: it holds nothing."""
        rows = self.client.readers()
        return next((row.position for row in rows if (row.name, row.hold) == (name, "archive")), None)

    def take_hold(self, name: str) -> int:
        """Take the hold at its position, or at the log's begin; returns that index. As an archive's: a
        disk that fills up does not take it either, but refuses appends."""
        return self.client.reader(name, hold="archive").position

    def move_hold(self, name: str, index: int) -> None:
        """Forward; entries before `index` may be deleted. Takes it again if it was ended."""
        self.client.reader(name, hold="archive", first_index=index)

    def end_hold(self, name: str) -> None:
        with suppress(UnknownReader):
            self.client.reader(name).end()

    def forget(self, producer: str) -> None:
        with suppress(ProducerExpired):
            self.client.forget_producer(producer)

    def close(self) -> None:
        self.client.close()


class SinkLogs(NamedTuple):
    log: ClientLog
    staging: ClientLog

    @property
    def servers(self) -> tuple[str, ...]:
        """Where members of both groups are, as far as their clients have learned it by now."""
        return tuple(dict.fromkeys(address for log in self for address in log.client.known_servers))


@contextmanager
def open_sink_logs(
    servers: str,
    group: str,
    timeout_ms: int,
    known: Sequence[str] = (),
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> Generator[SinkLogs]:
    """Within it, UnknownGroup becomes a ConfigError that says how to get a staging group. `known`:
    addresses of members found elsewhere, besides `servers`."""
    with ExitStack() as opened:
        names = group, staging_name(group)
        logs = [ClientLog(servers, name, timeout_ms, known, tls, user) for name in names]
        for log in logs:
            opened.callback(log.close)
        try:
            yield SinkLogs(*logs)
        except UnknownGroup as error:
            raise no_staging(group, error) from None


def no_staging(group: str, error: UnknownGroup) -> ConfigError:
    return ConfigError(
        f"{error}. A sink writes to group {group!r} through a staging group beside it: set staging ="
        " true for the group in the configuration of every member, and start them again"
    )
