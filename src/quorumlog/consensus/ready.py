"""Ready: the effects that the core asks for, each field with the order it imposes.

`node/ledger_node.py` carries a Ready out, always in this order:

    1  hard_state, formation   written and synced: everything below may depend on them
    2  truncate_from           synced step by step by the store
    3  append                  written, not yet synced
    4  messages, pushes        may leave now: step 1 made the state they depend on durable
    5  a sync is asked for     when it ends, `on_durable(number)`; of `messages_after_durable` those
                               leave that still may (`EntryHandler.may_leave`)
    6  complete appends up to `committed_index`; grant reads

Every positive answer to APPEND (also a repeated one), COMPARE and TRUNCATE is in
`messages_after_durable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import AnyPeerMessage
from quorumlog.entry import EntryId, EntryKind, Formation, HardState, Replica


class Role(Enum):
    """The role of a member in its group; `status` prints the values."""

    UNFORMED = "unformed"
    """Has no founding list yet: neither votes, campaigns nor acknowledges."""
    OBSERVER = "observer"
    """Fed with the log and never leads: no membership from its committed index on names its
    directory."""
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Envelope(NamedTuple):
    """A message and the one directory that may receive it."""

    to: Replica
    message: AnyPeerMessage


class AppendOrder(msgspec.Struct, frozen=True):
    """Append entries `first_index` .. `first_index + count - 1` to the store.

    On the leader `batch` is None: the bytes are those that `propose` promised, in the same order (a NOOP
    is made by the code that carries the order out). On a follower it is the handle of the push that
    brought them, which may begin below `first_index`.
    """

    first_index: int
    count: int
    term: int
    """Leader only: the term to stamp."""
    kind: EntryKind
    batch: Any
    push_first_index: int
    """Index of the first entry in `batch`."""
    push_previous_chain: int = 0


class PushOrder(NamedTuple):
    """Send entries from `first_index` on to one directory, at most `limit_bytes` (at least one entry),
    never at or above `stop_index`; then report `on_pushed(to, last_index, size_bytes)`.

    No second order for it is given before that report.
    """

    to: Replica
    term: int
    previous: EntryId
    first_index: int
    stop_index: int
    limit_bytes: int
    committed_index: int


class RoleChange(NamedTuple):
    role: Role
    term: int
    leader_id: str | None
    because: str = ""
    """Of a transfer: from, to and the reason, in words."""


class ReadGrant(msgspec.Struct, frozen=True):
    """The read of this number may be served: everything acknowledged before it was asked for is at or
    below `index`, which is committed."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    number: int
    """1, 2, 3, ..., for `on_durable`."""
    committed_index: int
    hard_state: HardState | None = None
    formation: Formation | None = None
    truncate_from: int | None = None
    """First index to drop; always above the committed index, except in async mode (see
    `loses_committed`)."""
    loses_committed: bool = False
    """Async mode only: after a power loss a leader of a higher term orders a cut at or below the
    committed index."""
    append: tuple[AppendOrder, ...] = ()
    messages: tuple[Envelope, ...] = ()
    messages_after_durable: tuple[Envelope, ...] = ()
    pushes: tuple[PushOrder, ...] = ()
    read_grants: tuple[ReadGrant, ...] = ()
    role_change: RoleChange | None = None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The leader's view of another member."""

    replica: Replica
    is_voter: bool
    state: str
    """`DispatcherState`."""
    compare_index: int
    match_index: int
    """Highest index that it has acknowledged in this term; -1: none."""
    stalled_since_ms: float | None = None
    """Connected, and since then without progress of its missing entries (on the core's clock); None
    while there is some."""
    has_arrived: bool = False
    """It received more than it has acknowledged."""
    lacks_nothing: bool = False
    """It holds all of the leader's entries; otherwise it is being fed, or gets the start of the log."""
    lacks_space: bool = False
    """It could take neither entries nor the start of the log when it was given some last."""

    @property
    def is_installing(self) -> bool:
        """The entries it lacks are deleted: it receives the start of the leader's log."""
        return self.state == "INSTALL"

    @property
    def held_index(self) -> int:
        """Up to here it is known to hold the leader's log; -1 also while nothing is known."""
        return max(self.compare_index, self.match_index)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    replica: Replica
    role: Role
    term: int
    voted_for: Replica | None
    leader: Replica | None
    ledger_begin_index: int
    ledger_end: EntryId
    durable_index: int
    committed_index: int
    membership: Membership
    """The one at the log's end."""
    membership_index: int = -1
    """Of the entry that says so; -1: the founding list."""
    transferring_to: str | None = None
    waits_for: str = ""
    """Why the member is not a working voter, empty if it is."""
    problems: tuple[str, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    answered_ms_ago: Mapping[Replica, float] = field(default_factory=dict)
    """Of a leader: time since each member's last answer; without members that never answered."""

    @property
    def voters(self) -> tuple[Replica, ...]:
        return self.membership.voters()
