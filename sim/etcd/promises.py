"""What etcd promises, compared with what its clients saw."""

from __future__ import annotations

from collections import Counter

from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.testing.promises import Violation
from sim.etcd.sim_clients import LEASED, Answer, EtcdHistory, EtcdWatch
from sim.etcd.truth import Item, Truth, within
from sim.kv.promises import check_keys, check_leases


def check_all(history: EtcdHistory) -> None:
    """Once all members have applied everything. Raises Violation."""
    truth = history.truth
    for each in history.answers:
        truth.check(each.request, each.response)
    check_keys(history)
    check_order(history.answers)
    check_once(history)
    for watch in history.seen:
        check_watch(watch, truth, max(history.compactions, default=0))
    history.ended_ms = truth.ended_ms
    check_leases(history)
    check_leased_keys(truth)
    if len(history.cluster_ids) > 1:
        raise Violation(f"one cluster has the ids {history.cluster_ids}")


def check_order(answers: list[Answer]) -> None:
    """An answer has the revision of all that was answered before it was asked for, and a change has a
    revision of its own; `serializable` alone may be older."""
    revision = 0
    returned = sorted(answers, key=lambda each: each.returned_ms)
    place = 0
    for each in sorted(answers, key=lambda each: each.called_ms):
        while returned[place].returned_ms < each.called_ms:
            revision = max(revision, returned[place].response.header.revision)
            place += 1
        found = each.response.header.revision
        if not getattr(each.request, "serializable", False) and found < revision + _changes(each):
            raise Violation(f"{each} is answered at {found} after {revision} was")


def _changes(answer: Answer) -> bool:
    response = answer.response
    return (
        isinstance(response, pb.PutResponse)
        or (isinstance(response, pb.DeleteRangeResponse) and response.deleted > 0)
        or (isinstance(response, pb.TxnResponse) and response.succeeded)
    )


def check_once(history: EtcdHistory) -> None:
    """Each value is written once, whatever its client was told, and never if that was a refusal."""
    changes = history.truth.changes.values()
    written = Counter(value for items in changes for _, _, _, version, value, _ in items if version)
    again = {value: times for value, times in written.items() if times > 1}
    if again or history.refused & written.keys():
        raise Violation(f"written again: {again}, though refused: {history.refused & written.keys()}")


def check_watch(watch: EtcdWatch, truth: Truth, compacted: int) -> None:
    """Each change of its range once, in order, but what it was told to be compacted; `compacted`: below
    it a watch need not know what was there before."""

    def is_told(revision: int) -> bool:
        return watch.first_revision <= revision < watch.next_revision and not any(
            first <= revision < stop for first, stop in watch.compacted
        )

    there: list[tuple[Item, Item | None]] = [
        (item, truth.item(item[0], revision - 1) if watch.prev_kv else None)
        for revision, items in truth.changes.items()
        if is_told(revision)
        for item in items
        if within(item[0], watch.key, watch.end)
    ]
    if len(there) != len(watch.events) or any(
        seen[0] != known[0] or (seen[1] != known[1] and (seen[1] is not None or seen[0][2] > compacted))
        for seen, known in zip(watch.events, there, strict=False)
    ):
        at = next((n for n, (a, b) in enumerate(zip(watch.events, there, strict=False)) if a != b), -1)
        raise Violation(
            f"a watch of {watch.key!r} from {watch.first_revision} to {watch.next_revision}, without"
            f" {watch.compacted}, saw {len(watch.events)} changes of {len(there)}; they part at {at}:"
            f" {watch.events[at : at + 3]} for {there[at : at + 3]}"
        )


def check_leased_keys(truth: Truth) -> None:
    """They go with their lease, all of them, and by nothing else."""
    for revision, items in truth.changes.items():
        for item in items:
            before = truth.item(item[0], revision - 1)
            if not item[3] and before is not None and item[0].startswith(LEASED):
                ended_ms = truth.ended_ms.get(before[5])
                if ended_ms != truth.applied_ms[revision]:
                    raise Violation(f"{before} is gone, and its lease has ended at {ended_ms}")
    for item in truth.items(LEASED, b"l0", truth.newest):
        if item[5] in truth.ended_ms:
            raise Violation(f"{item} is there, and its lease is not")
