"""What a directory proves to be committed, when it is opened."""

from __future__ import annotations

from quorumlog.errors import DirectoryDamaged, RangeDamaged
from quorumlog.store.disk import Disk
from quorumlog.store.file_ledger_store import FileLedgerStore
from quorumlog.store.files.checkpoint_file import load_checkpoint


def proven_commit(disk: Disk, path: str, store: FileLedgerStore) -> int:
    """The committed index of the checkpoint, or the newest border whose state is saved, if the log holds
    exactly that entry; else what lies before the log's begin, which was committed when it went. Raises
    StoreFailure."""
    saved = next(store.borders.saved(), None)
    return max(_checkpointed(disk, path, store), -1 if saved is None else saved.point.index)


def _checkpointed(disk: Disk, path: str, store: FileLedgerStore) -> int:
    proven = store.begin.index
    checkpoint = load_checkpoint(disk, path)
    if checkpoint is None or not proven <= checkpoint.committed_index <= store.end.index:
        return proven
    index = checkpoint.committed_index
    for _ in range(2):
        try:
            held = store.id_at(index).term == checkpoint.committed_term
            return index if held and store.chain_at(index) == checkpoint.committed_chain else proven
        except RangeDamaged:
            return proven  # nothing here shows that it is this entry
        except DirectoryDamaged as damage:
            store.settle_now(damage)
    return proven
