"""What the store promises, compared with what its clients saw."""

from __future__ import annotations

from itertools import pairwise

from quorumlog.kv.requests.operations import decode_key_value
from quorumlog.kv.simulated.histories import MISSING, Deleted, Histories, Looked, Wrote, values_only
from quorumlog.kv.simulated.linearizability import UNKNOWN, Happened, is_linearizable
from quorumlog.kv.store.engine import CHANGE, CHANGES
from quorumlog.kv.store.keyspace import Keyspace
from quorumlog.sim.checkers.checker import Violation

MOST_STEPS = 300_000


def check_all(histories: Histories, keyspace: Keyspace) -> list[bytes]:
    """`keyspace`: of a member that has applied everything. Gives the keys that could not be decided.
    Raises Violation."""
    undecided = check_keys(histories)
    check_watches(histories, keyspace)
    check_leases(histories)
    check_locks(histories)
    return undecided


def check_keys(histories: Histories) -> list[bytes]:
    """Operations on each key happened one after the other, between call and return. Gives the keys of
    which that could not be told in `MOST_STEPS`."""
    undecided = []
    for key, history in histories.of_key.items():
        told = settled(history)
        # What nobody saw may never have happened: without it there is less to search.
        certain = [each for each in told if each.outcome is not UNKNOWN]
        deleted = [e for e in told if e.outcome is not UNKNOWN or isinstance(e.asked, Deleted)]
        found: bool | None = None
        for each in (certain, deleted, told):
            found = is_linearizable(each, MISSING, values_only, MOST_STEPS)
            if found:
                break
        if found is False:
            raise Violation(f"the {len(history)} operations on {key!r} are not linearizable")
        if found is None:
            undecided.append(key)
    return undecided


def settled(history: list[Happened]) -> list[Happened]:
    """Values are written once: who read the value of a write without an outcome saw its revision, and
    that it had happened."""
    read: dict[bytes, Happened] = {}
    for each in sorted(history, key=lambda each: each.returned, reverse=True):
        if isinstance(each.asked, Looked) and isinstance(each.outcome, tuple):
            read[each.outcome[0]] = each
    found = []
    for each in history:
        seen = read.get(each.asked.value) if isinstance(each.asked, Wrote) else None
        if each.outcome is UNKNOWN and seen is not None and isinstance(seen.outcome, tuple):
            each = each._replace(returned=seen.returned, outcome=seen.outcome[1])
        found.append(each)
    return found


def check_watches(histories: Histories, keyspace: Keyspace) -> None:
    """Every change once, in order."""
    for watch in histories.watches:
        if not watch.next_revision:
            continue
        first = max(watch.first_revision, keyspace.compacted)
        truth = []
        for place, key in keyspace.engine.scan(
            CHANGES, CHANGE.pack(first, 0), CHANGE.pack(watch.next_revision, 0)
        ):
            if key.startswith(watch.prefix):
                revision = int(CHANGE.unpack(place)[0])
                version = decode_key_value(keyspace.changed_at(key, revision)).version
                truth.append((revision, key, version))
        seen = [change for change in watch.changes if change[0] >= first]
        if seen != truth:
            at = next(
                (n for n, pair in enumerate(zip(seen, truth, strict=False)) if pair[0] != pair[1]), -1
            )
            raise Violation(
                f"a watch from {first} to {watch.next_revision} saw {len(seen)} changes of"
                f" {len(truth)}; they part at {at}: {seen[at : at + 3]} for {truth[at : at + 3]}"
            )


def check_leases(histories: Histories) -> None:
    """None ends before its time, counted from when its last answered keep-alive was sent."""
    for lease in histories.leases:
        ended_ms = histories.ended_ms.get(lease.lease)
        until_ms = max(at for at in lease.sent_ms) + lease.ttl_ms
        if ended_ms is not None and not lease.revoked_by_client and ended_ms < until_ms:
            raise Violation(
                f"the lease {lease.lease} ended at {ended_ms:.1f} ms, and was promised until"
                f" {until_ms:.1f} ms"
            )


def check_locks(histories: Histories) -> None:
    """No two hold one at a time; tokens rise."""
    locks = sorted(histories.locks, key=lambda lock: lock.token)
    for earlier, later in pairwise(locks):
        if earlier.token == later.token or earlier.until_ms > later.from_ms:
            raise Violation(f"two held a lock at a time: {earlier} and {later}")
