"""What many runs must have met, so that "no failure" means something.

Counts are those of `Trace.counts`.
"""

from __future__ import annotations

from collections import Counter

from quorumlog.consensus.dispatcher import TRANSITIONS
from quorumlog.consensus.messages import PushResult, VoteResult
from quorumlog.testing.profile import FAULT_KINDS, HANGING_DISK, LINK_KINDS
from sim.log.profile import EDGES

EXPECTED_ABSENT: dict[str, str] = {
    "vote result: UNKNOWN": "stands for an answer that never came; nobody sends it",
    "vote result: REJECT_UNKNOWN_LEADER": "not used: an older list than the candidate's refuses nobody",
    "vote result: REJECT_UNEXPECTED_LEADER": "answers a member that speaks in the name of another",
    "vote result: REJECT_TERM_SMALL_THAN_LEDGER": "DLedger's; such a hard state is refused at a start",
    "vote result: REJECT_TAKING_LEADERSHIP": "a rival at the very take-over; a unit test",
    "push result: INCONSISTENT_LEADER": "answers a second leader of one term, which may not be",
    "push result: DIVERGED_BELOW_COMMIT": "answers a cut of what is committed, which may not be",
    "dispatcher: TRUNCATE INCONSISTENT": "a follower that forgets within a question; a unit test",
    "dispatcher: APPEND INCONSISTENT": "a follower that forgets within a push; a unit test",
}
"""And why."""

UNNAMED_FAULT_KINDS = (
    "full disks",
    "clean stop of a leader",
    "reset of one connection",
    "greedy neighbour",
    "lost index file on a full disk",
    "unreadable page",
    "unreadable page after a power loss",
    "unreadable page behind the end",
    "an old directory is back",
)
"""Kinds that no simulation profile names."""

OTHER_EVENTS = (
    "link: full",
    "members: add done",
    "members: promote done",
    "members: remove done",
    "members: a directory is replaced",
    "members: replace done",
    "members: a change that the lost ones do not allow",
    "members: remove NotLeader",
    "members: promote MembershipRefused",
    "leader: steps down because its entries do not arrive",
    "fault: another flush mode",
    "dial: refused",
    "recovery: torn tail",
    "recovery: the index was rebuilt",
    "recovery: no space for the index from entry",
    "end of the log: told",
    "end of the log: refused",
    "fresh read: leader granted",
    "fresh read: follower granted",
    "drop: segments",
    "install: a log is replaced",
    "install: a piece of a snapshot",
    "machines: a snapshot compared",
    "step over: done",
    "producer: killed",
    "producer: the same receipt again",
    "exactly once: checked",
    "users: a change done",
    "users: an administrator that was left in a directory",
    "users: append let through",
    "users: read let through",
    "users: Forbidden",
    "users: LeaderNotReady",
    "users: NotAuthenticated",
    "async: a power loss took entries",
    "async: an acknowledged append is lost",
)


def expected() -> list[str]:
    names = [
        f"fault: {kind}" for kind in (*FAULT_KINDS, *UNNAMED_FAULT_KINDS, HANGING_DISK, *LINK_KINDS)
    ]
    names += ["connections: a frame came early"]
    names += [f"vote result: {result.name}" for result in VoteResult]
    names += [f"push result: {result.name}" for result in PushResult]
    names += [f"dispatcher: {state.value} {event.name}" for state, event in TRANSITIONS]
    names += [f"option at its edge: {edge}" for edge in EDGES]
    return [*names, *OTHER_EVENTS]


def missing(counts: Counter[str]) -> list[str]:
    """What never happened and was expected to."""
    return [
        name
        for name in expected()
        if name not in EXPECTED_ABSENT and not any(key.startswith(name) for key in counts)
    ]
