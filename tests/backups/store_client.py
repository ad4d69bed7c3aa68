"""What a backup asks of a cluster, answered from stores: no sockets, and a disk may stop at any step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from quorumlog.backups.taking import BackupTaken, BackupTaking
from quorumlog.batch import EntryBatch
from quorumlog.client.status_rows import UNKNOWN, MemberStatusRow
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryKind, HardState
from quorumlog.errors import IndexOutOfRange, LedgerError
from quorumlog.log_state.control_entries import ControlBody, encode_body, kind_of
from quorumlog.store.disk import Disk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.member_directory import MemberDirectory, open_member_directory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.wire.client_messages import LayoutResponse
from tests.store.made_logs import append, append_batch, append_noop, sync

SMALL = StoreConfig(segment_bytes=1024, index_segment_bytes=320, reserve_step_bytes=4096)


class StoreClient:
    """The first of `stores` leads; what a member has is committed. `refuse`: by member id, the index
    from which on it raises the error."""

    group = "g"
    timeout_ms = 30_000.0

    def __init__(self, stores: Mapping[str, LedgerStore], *, cluster_id: str = "c1") -> None:
        self.stores = dict(stores)
        self.cluster_id = cluster_id
        self.config = SMALL
        self.refuse: dict[str, tuple[int, LedgerError]] = {}
        self.asked: list[str] = []
        """Who gave entries, of more than one."""

    def status(self) -> list[MemberStatusRow]:
        return [
            MemberStatusRow(
                **UNKNOWN
                | {
                    "id": member_id,
                    "role": "leader" if number == 0 else "follower",
                    "ledger_begin_index": store.begin.index + 1,
                    "committed_index": store.end.index,
                },
                reachable=True,
            )
            for number, (member_id, store) in enumerate(self.stores.items())
        ]

    def end_index(self) -> int:
        return next(iter(self.stores.values())).end.index

    def layout(self, from_member: str) -> LayoutResponse:
        store = self.stores[from_member]
        begin = store.begin
        return LayoutResponse(
            member_id=from_member,
            cluster_id=self.cluster_id,
            segment_bytes=self.config.segment_bytes,
            index_segment_bytes=self.config.index_segment_bytes,
            begin_index=begin.index,
            begin_term=begin.term,
            begin_chain=begin.chain,
            begin_position=begin.position,
            begin_record=b"" if store.start is None else store.start.record,
        )

    def read_batches(
        self,
        first_index: int,
        stop_index: int,
        *,
        from_member: str | None = None,
        batch_bytes: int = 1 << 20,
    ) -> Iterator[EntryBatch]:
        member_id = from_member or next(iter(self.stores))
        store = self.stores[member_id]
        refused_from, error = self.refuse.get(member_id, (stop_index, None))
        if stop_index - first_index > 1:
            self.asked.append(member_id)
        while first_index < stop_index:
            if error is not None and first_index >= refused_from:
                raise error
            if not store.begin.index < first_index <= store.end.index:
                raise IndexOutOfRange(
                    f"index {first_index}",
                    ledger_begin_index=store.begin.index + 1,
                    committed_index=store.end.index,
                )
            stop = min(stop_index, max(refused_from, first_index + 1), store.end.index + 1)
            log_range, batch = store.read_from(first_index, stop, 700)
            yield batch
            first_index = log_range.stop_index


def taken(client: StoreClient, path: Path | str, disk: Disk, **options: object) -> BackupTaken:
    with BackupTaking(client, str(path), disk=disk, **options) as taking:  # type: ignore[arg-type]
        taking.prepare()
        taking.copy()
        taking.verify()
        return taking.complete()


def a_member(disk: Disk | None = None, path: str = "n0", config: StoreConfig = SMALL) -> MemberDirectory:
    directory = open_member_directory(
        disk or MemoryDisk(), path, group="g", member_id="n0", config=config, group_size=3
    )
    directory.save_hard_state(HardState(99, None))
    directory.allow_control_entries()
    return directory


def write(store: LedgerStore, entries: list[ControlBody | bytes | None], term: int = 1) -> None:
    """Data, control entries, or no-ops; synced."""
    for entry in entries:
        if entry is None:
            append_noop(store, term)
        elif isinstance(entry, bytes):
            append(store, [entry], term)
        else:
            kind: EntryKind = kind_of(entry)
            append_batch(store, EntryBatch.control(kind, encode_body(entry)), term)
    sync(store)
