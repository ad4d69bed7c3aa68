"""What compaction has made invisible is deleted a little at a time. How far that is differs between
members, and nobody can tell by any answer or snapshot."""

from __future__ import annotations

from quorumlog.kv.requests.operations import decode_key_value
from quorumlog.kv.store.engine import CHANGE, CHANGES, NUMBER, OLDER, escaped, older_key
from quorumlog.kv.store.keyspace import Keyspace

SLICE_CHANGES = 500
"""Looked at once."""


def sweep(keyspace: Keyspace, changes: int = SLICE_CHANGES) -> bool:
    """A slice of the work; True if more is left. A change below the compacted revision goes, with the
    versions of its key before it, and itself if it is a deletion. What stands at the revision stays."""
    engine, compacted = keyspace.engine, keyspace.compacted
    if keyspace.swept_to >= compacted:
        return False
    found = []
    for place, key in engine.scan(
        CHANGES, CHANGE.pack(keyspace.swept_to, 0), CHANGE.pack(compacted + 1, 0)
    ):
        found.append((place, key))
        if len(found) > changes:
            break
    for place, key in found[:changes]:
        revision = int(CHANGE.unpack(place)[0])
        prefix = escaped(key)
        older = engine.scan(OLDER, prefix, prefix + NUMBER.pack(revision))
        for name in [name for name, _ in older]:
            engine.delete(OLDER, name)
        if revision < compacted:
            gone = engine.get(OLDER, older_key(key, revision))
            if gone is not None and decode_key_value(gone).version == 0:
                engine.delete(OLDER, older_key(key, revision))
            engine.delete(CHANGES, place)
    if len(found) > changes:
        # Within a revision that is not done the work begins anew: what is done is gone.
        keyspace.swept_to = int(CHANGE.unpack(found[changes][0])[0])
    else:
        keyspace.swept_to = compacted
    keyspace.save_stand()
    return keyspace.swept_to < compacted
