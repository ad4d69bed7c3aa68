"""Messages between members about leadership and the log: frozen values, no bodies.

The transport fills in `sender` from the connection, so that no message can claim to come from another
directory. Entry bytes never appear here: `PushEntryRequest.batch` is an opaque handle that the core
passes through.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, get_args

import msgspec

from quorumlog.consensus.membership import Membership
from quorumlog.entry import NO_ENTRY, EntryId, Replica, SetBack, SnapshotId

NOBODY = Replica("", "")


class VoteResult(IntEnum):
    """DLedger's answers to a vote request (docs/divergence.md says which are no longer needed)."""

    UNKNOWN = 0
    ACCEPT = 1
    REJECT_UNKNOWN_LEADER = 2
    """Not used: the sender may be a voter by an entry that is missing here."""
    REJECT_UNEXPECTED_LEADER = 3
    """The request claims to come from the voter itself."""
    REJECT_EXPIRED_VOTE_TERM = 4
    """The term asked for is below the voter's own."""
    REJECT_ALREADY_VOTED = 5
    REJECT_ALREADY_HAS_LEADER = 6
    """Stickiness: the voter heard its leader too recently, or is a leader with a live quorum."""
    REJECT_TERM_SMALL_THAN_LEDGER = 8
    REJECT_EXPIRED_LEDGER_TERM = 9
    """The candidate's last entry is of an older term than the voter's."""
    REJECT_SMALL_LEDGER_END_INDEX = 10
    """Same last term, shorter log."""
    REJECT_TAKING_LEADERSHIP = 11
    """The voter was itself asked to take over and is as far as the candidate."""
    REJECT_NOT_A_VOTER = 12
    """The replier has not formed: its answer counts in nothing."""


class PushType(IntEnum):
    COMPARE = 1
    TRUNCATE = 2
    APPEND = 3
    COMMIT = 4


class PushResult(IntEnum):
    """Answers to a push; the numbers are DLedger's response codes where it has one."""

    SUCCESS = 200
    EXPIRED_TERM = 403
    """The request is of an older term; `term` of the answer is the replier's."""
    INCONSISTENT_STATE = 406
    """The previous entry is missing or of another term: see the conflict fields; COMPARE again."""
    INCONSISTENT_LEADER = 409
    DISK_FULL = 415
    PUSH_REQUEST_IS_FULL = 421
    """Too many pushes wait ahead of the log; resend after the match index."""
    DIVERGED_BELOW_COMMIT = 600
    """A cut at or below the committed index was asked for and refused; shown in `status`."""
    NOT_FORMED = 601
    RECEIVED = 602
    """To a COMMIT that asks: everything up to `index` and from `first_index` on, on disk or not."""


class InstallResult(IntEnum):
    """Answers to a piece of an installation."""

    MORE = 1
    """Continue at `offset`."""
    HELD = 2
    """The log holds the entry after which the start begins: there is nothing to install."""
    DIVERGED_BELOW_COMMIT = 3
    """Another entry is committed there; refused, and shown in `status`."""
    REFUSED = 4
    """It cannot be taken now: no space, or inconsistent content."""


class PeerMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="type", kw_only=True):
    sender: Replica = NOBODY
    term: int
    """The sender's own stored term when it spoke."""


class VoteRequest(PeerMessage, frozen=True, kw_only=True, tag=1):
    """A campaign: first as pre-vote for `vote_term` = term + 1, then as the vote itself."""

    vote_term: int
    pre_vote: bool
    """True: nothing is stored or changed at the voter."""
    ledger_end: EntryId
    transfer_mark: tuple[Replica, int] | None = None
    """(leader, term) that asked the candidate to take over; overrides stickiness towards that leader."""


class VoteResponse(PeerMessage, frozen=True, kw_only=True, tag=2):
    vote_term: int
    """Echo of the request, with `pre_vote`: an answer counts for that campaign only."""
    pre_vote: bool
    result: VoteResult
    membership_index: int = -1
    membership: Membership | None = None
    """With a refusal: the newest membership that the replier knows to be committed, and its entry. So a
    removed member learns that it was removed. None: it is the founding list, or unknown."""


class HeartbeatRequest(PeerMessage, frozen=True, kw_only=True, tag=3):
    round: int
    committed_index: int
    answered_round: int = -1
    """The newest round that the receiver had answered when this one was sent, 0: none; -1: the round was
    sent before and is only repeated, or the sender is of an earlier release."""
    confirmed_round: int = -1
    """A quorum has answered it, and `committed_index` covers all that was acknowledged before it was
    sent; 0: none yet, -1: an earlier release, which answers no ReadIndexRequest."""
    set_back: SetBack | None = None
    """The receiving directory was set back: it is to be another one from now on. Earlier releases do not
    read it; their answers are ignored."""


class HeartbeatResponse(PeerMessage, frozen=True, kw_only=True, tag=4):
    round: int
    accepted: bool
    takes_over: bool = True
    """False: it holds damaged entries, has no space or a disk that hangs, and lets a hand-over of
    leadership pass."""
    clock_ms: int = -1
    """The sender's wall clock, in milliseconds since 1970; -1: an earlier release."""
    runs_machines: bool = True
    """False: a state machine of the group has stopped there, or lacks entries for its state."""


class PushEntryRequest(PeerMessage, frozen=True, kw_only=True, tag=5):
    """From a dispatcher to an entry handler. Fields by type:

    COMPARE   `previous`: does the follower hold this entry?
    TRUNCATE  `previous`: the last entry that may stay; `first_index` and `term_runs` name the leader's
              entry above it: a follower that holds it too cuts nothing
    APPEND    `previous`: the entry before the first; `first_index`, `count`, `term_runs`, `batch`
    COMMIT    `previous`: an entry that the follower has acknowledged, so that one with nothing left to
              fetch can verify its log; `committed_index`, as every push carries it; `first_index`:
              in a query, the entry due next if all pushes have arrived
    """

    push: PushType
    committed_index: int
    number: int = 0
    """Of a query (COMPARE, TRUNCATE, and a COMMIT that `asks_what_arrived`) within the leader's term;
    echoed. 0: no answer is expected."""
    previous: EntryId = NO_ENTRY
    first_index: int = -1
    count: int = 0
    term_runs: tuple[tuple[int, int], ...] = ()
    """((first_index, term), ...) of the entries."""
    previous_chain: int = 0
    """chain_crc of `previous` in the leader's log; the core ignores it."""
    cold: bool = False
    """The bytes were read from a file, not pushed from memory: the receiver checks every body."""
    batch: Any = None
    """Opaque handle of the bytes, an `EntryBatch`; never encoded with the message."""

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def asks_what_arrived(self) -> bool:
        """Is `previous` still held, and has all below `first_index` arrived? It is answered at once, and
        goes between the pushes that it is about."""
        return self.push is PushType.COMMIT and self.number > 0 and self.first_index >= 0


class PushEntryResponse(PeerMessage, frozen=True, kw_only=True, tag=6):
    push: PushType
    result: PushResult
    number: int = 0
    index: int = -1
    """APPEND: the last index of the push. COMPARE, TRUNCATE: the index of `previous` that matched.
    COMMIT: the last entry that has arrived."""
    first_index: int = -1
    """APPEND: echo, so that a refused push is recognised. COMMIT: nothing is missing from here on."""
    conflict_term: int = -1
    """COMPARE and APPEND refused: the follower's term at `previous.index`; -1 if its log is shorter."""
    conflict_first_index: int = -1
    """First index of `conflict_term` in the follower's log."""
    ledger_end_index: int = -1
    """Of the follower."""
    committed_index: int = -1
    begin: EntryId = NO_ENTRY
    """The entry before the follower's first, if the request named one below."""


class TakeLeadershipRequest(PeerMessage, frozen=True, kw_only=True, tag=7):
    """From a leader to the member that it hands over to, once that member's match index is the log
    end."""

    ledger_end: EntryId


class FormRequest(PeerMessage, frozen=True, kw_only=True, tag=8):
    """The sender has stored this list as pending and asks for the receiver's."""

    number: int
    """A fresh number: answers to older ones count for nothing."""
    pending: tuple[Replica, ...]
    founding: tuple[Replica, ...] = ()
    """Set by a formed sender: informs, without a request."""
    cluster_id: str = ""
    """Of a formed sender's cluster; before, that of `pending`. Not sent by earlier releases."""
    level: int = 0
    """Of the log's format, up to which the sender knows it; of a formed one, up to which all founders
    did."""


class FormResponse(PeerMessage, frozen=True, kw_only=True, tag=9):
    number: int
    pending: tuple[Replica, ...]
    founding: tuple[Replica, ...] = ()
    cluster_id: str = ""
    level: int = 0


class RangeRequest(PeerMessage, frozen=True, kw_only=True, tag=10):
    """Repair: send entries that the sender's disk has lost. It and its answer never enter the core."""

    number: int
    first_index: int
    last: EntryId
    """The last entry of the damaged range. A member with another entry there cannot help."""
    limit_bytes: int
    anywhere: bool = False
    """Entries from any place of the range will do, where those at its front are not held."""
    durable_index: int = -1
    """The sender's; up to there `proofs` can be compared."""


class RangeResponse(PeerMessage, frozen=True, kw_only=True, tag=11):
    number: int
    count: int = 0
    """0: not held, or damaged here as well."""
    batch: Any = None
    """As in PushEntryRequest."""
    proofs: tuple[tuple[int, int], ...] = ()
    """(index, chain_crc) of entries of the sender's log after these: one that is the same on both sides
    shows that everything before it is."""
    start: bytes = b""
    """Where the sender's log begins, as in the file `start`, if the first entry lies below. Earlier
    releases do not say it."""


class InstallRequest(PeerMessage, frozen=True, kw_only=True, tag=12):
    """A piece of the state for a member whose log ends before the leader's begins. The core sees neither
    this nor its answer; it judges by `begin`."""

    begin: EntryId
    """The entry before the leader's first one; identifies the installed start."""
    committed_index: int
    """The leader's."""
    file: str
    """`start`: where the log begins, as in the file of that name."""
    offset: int
    total_bytes: int
    """Of the whole file."""
    data: bytes
    last: bool
    """Nothing comes after this piece."""
    snapshots: tuple[SnapshotId, ...] = ()
    """Of the leader's state machines, none older than `begin`. A member that runs such a machine
    requests missing ones (SnapshotRequest), and takes the start once it has all. Earlier releases name
    none."""


class InstallResponse(PeerMessage, frozen=True, kw_only=True, tag=13):
    begin: EntryId
    """Echo."""
    result: InstallResult
    file: str = ""
    offset: int = 0
    """Where to continue: so much of the file has arrived, on any connection."""


class ReadIndexRequest(PeerMessage, frozen=True, kw_only=True, tag=14):
    """From a member that follows: how far does the log go, of which reads that wait here must miss
    nothing? Answered once a quorum has answered a round that begins later."""

    number: int
    """Of the question, in the asking process; echoed."""


class ReadIndexResponse(PeerMessage, frozen=True, kw_only=True, tag=15):
    number: int
    index: int
    """Everything that was acknowledged before the question came is at or below."""


class SnapshotRequest(PeerMessage, frozen=True, kw_only=True, tag=16):
    """Asks any member for a piece of a snapshot of one of its state machines. Neither it nor its answer
    enters the core: a snapshot counts only where the log holds the entry that it names."""

    name: str
    """Of the machine."""
    least_index: int
    """An older one is of no use: the log begins after this entry."""
    wanted: SnapshotId | None
    """None: the newest good one."""
    offset: int


class SnapshotResponse(PeerMessage, frozen=True, kw_only=True, tag=17):
    name: str
    """Echo."""
    found: SnapshotId | None
    """None: the sender has none such, or not yet."""
    offset: int = 0
    data: bytes = b""
    """None where the request did not name the very snapshot."""


class MachinesRequest(PeerMessage, frozen=True, kw_only=True, tag=18):
    """Asks which state machines run on a member and how far they have applied. Sent by a leader on which
    one does not run, or that is to have one skip an entry."""


class MachinesResponse(PeerMessage, frozen=True, kw_only=True, tag=19):
    applied: tuple[tuple[str, int], ...]
    """(name, index of the last entry that it has applied) of those that run."""
    holds: tuple[tuple[str, int], ...] = ()
    """(name, index of the last entry whose effects this member ever held), of all that it knows by its
    files. Not sent by earlier releases."""
    begin_index: int = -1
    """The entry before the first of its log."""


class FirstAdminRequest(PeerMessage, frozen=True, kw_only=True, tag=20):
    """To the leader, from a member in whose directory an administrator was written while it was stopped.
    Repeated, and not answered."""

    order: bytes
    """msgpack of a `UserOrder`."""


AnyMessage = (
    VoteRequest
    | VoteResponse
    | HeartbeatRequest
    | HeartbeatResponse
    | PushEntryRequest
    | PushEntryResponse
    | TakeLeadershipRequest
    | FormRequest
    | FormResponse
    | ReadIndexRequest
    | ReadIndexResponse
)
"""Messages for the core."""
NodeMessage = (
    RangeRequest
    | RangeResponse
    | InstallRequest
    | InstallResponse
    | SnapshotRequest
    | SnapshotResponse
    | MachinesRequest
    | MachinesResponse
    | FirstAdminRequest
)
"""Messages that the core never sees."""
NODE_MESSAGES = frozenset(get_args(NodeMessage))
"""The same, to look a type up."""
AnyPeerMessage = AnyMessage | NodeMessage
"""Messages between members."""


def carries_push(message: AnyPeerMessage) -> bool:
    """It has entries, and its dispatcher is notified if it did not leave."""
    return isinstance(message, PushEntryRequest) and message.batch is not None


def goes_with_data(message: AnyPeerMessage) -> bool:
    """On the data connection; everything else is small, and goes with the heartbeats."""
    if isinstance(message, PushEntryRequest):
        return message.push is not PushType.COMMIT or message.number > 0
    return type(message) is PushEntryResponse or type(message) in NODE_MESSAGES
