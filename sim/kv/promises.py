"""What the store promises, compared with what its clients saw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from quorumlog.kv.requests import decode_key_value
from quorumlog.kv.store.engine import CHANGE, CHANGES
from quorumlog.kv.store.keyspace import Keyspace
from quorumlog.testing.promises import Violation
from sim.kv.histories import (
    ABSENT,
    Histories,
    Looked,
    SeenChange,
    SeenWatch,
    Wrote,
    revision_of,
    step,
)
from sim.kv.linearizability import UNKNOWN, TimedOperation, is_linearizable

MOST_STEPS = 300_000
UNSEEN = b"nobody saw it"


def check_all(histories: Histories, keyspace: Keyspace) -> None:
    """`keyspace`: of a member that has applied everything. Raises Violation."""
    check_keys(histories)
    check_watches(histories, keyspace)
    check_leases(histories)
    check_locks(histories)


def check_keys(histories: Histories) -> None:
    """Operations on each key happened one after the other, between call and return. What cannot be told
    in `MOST_STEPS` is a failure, too: a check that tells nothing is none."""
    for key, history in histories.of_key.items():
        found = is_linearizable(settled(history), ABSENT, step, MOST_STEPS, revision_of)
        if not found:
            what = "are not linearizable" if found is False else "have too many orders to try"
            raise Violation(f"the {len(history)} operations on {key!r} {what}")


def settled(history: list[TimedOperation]) -> list[TimedOperation]:
    """Values are written once: who read the value of a write without an outcome saw its revision, and
    that it had happened. Those that nobody saw are alike."""
    read: dict[bytes, TimedOperation] = {}
    for each in sorted(history, key=lambda each: each.returned, reverse=True):
        if isinstance(each.operation, Looked) and isinstance(each.outcome, tuple):
            read[each.outcome[0]] = each
    found = []
    for each in history:
        if isinstance(each.operation, Wrote) and each.outcome is UNKNOWN:
            seen = read.get(each.operation.value)
            if seen is None:
                each = each._replace(operation=Wrote(UNSEEN, each.operation.expected))
            elif isinstance(seen.outcome, tuple):
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
            revision = int(CHANGE.unpack(place)[0])
            version = decode_key_value(keyspace.changed_at(key, revision)).version
            truth.append((revision, key, version))
        check_watch(watch, first, truth)


def check_watch(watch: SeenWatch, first: int, truth: Sequence[SeenChange]) -> None:
    """From `first` on. `truth`: all changes of the store that lie between, and perhaps more."""

    seen = [each for each in watch.changes if each[0] >= first]
    there = [
        each
        for each in truth
        if first <= each[0] < watch.next_revision and each[1].startswith(watch.prefix)
    ]
    if seen != there:
        at = next((n for n, pair in enumerate(zip(seen, there, strict=False)) if pair[0] != pair[1]), -1)
        raise Violation(
            f"a watch from {first} to {watch.next_revision} saw {len(seen)} changes of {len(there)};"
            f" they part at {at}: {seen[at : at + 3]} for {there[at : at + 3]}"
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
