"""A node's interface to its host, and to its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.config import GroupConfig
from quorumlog.consensus.messages import AnyPeerMessage
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope, RoleChange
from quorumlog.entry import Durability, EntryId, Replica
from quorumlog.errors import DirectoryDamaged, LedgerError, StoreFailure
from quorumlog.header_array import Int64Array
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.log_state.log_state import LostRange
from quorumlog.node.housekeeping import Housekeeping
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import ColdRange, LogStart
from quorumlog.store.member_directory import MemberDirectory

T = TypeVar("T")


class BeginsAnew(Exception):
    """The node is of no use any more, and says why: its host makes another one on the directory opened
    anew, as after the death of the process, once all that was asked of its threads has ended."""


class DirectorySetBack(BeginsAnew):
    """This directory was found older than it was, and says so in its file `member`."""

    def __init__(self) -> None:
        super().__init__("the directory of this member was rolled back to an older state")


class LogReplaced(BeginsAnew):
    """By the file `start` the log of this directory was replaced and begins after `start`."""

    def __init__(self, start: LogStart) -> None:
        super().__init__("the log of this member was replaced by the leader's")
        self.start = start


class Host(Protocol):
    """Real: sockets and threads of the server. Simulated: virtual time."""

    def send(self, envelope: Envelope) -> bool:
        """Send to one directory of one member; may be lost, is never delivered to another directory.
        False: it is connected but has no room for the message, which is dropped."""

    def replicas_with_moving_data(self) -> Iterable[Replica]:
        """Replicas whose machine has acknowledged more than a few bytes on their data connection since
        the last call, up to the end of their newest push; later bytes say nothing of a push. Called with
        each heartbeat of a leader."""

    def flush_later(self, work: Callable[[], T], done: Callable[[T | StoreFailure], None]) -> None:
        """Run `work` outside the loop, one at a time in the order given, then `done` on the loop,
        through `LedgerNode.finish`.

        Any exception of `work` reaches `done` as a StoreFailure; a LedgerError as itself.
        """

    def promise_later(
        self, work: Callable[[], None], done: Callable[[StoreFailure | LedgerError | None], None]
    ) -> None:
        """As `flush_later`, concurrently with it: term, vote, founding list and the file `member` wait
        for no sync of entries. `done` is not called through `LedgerNode.finish`, which waits for
        this."""

    def read_later(
        self, work: Callable[[], T], done: Callable[[T | StoreFailure | LedgerError], None]
    ) -> None:
        """As `flush_later`, beside it: a read never waits for a sync."""

    def apply_later(
        self, work: Callable[[], T], done: Callable[[T | StoreFailure | LedgerError], None]
    ) -> None:
        """As `read_later`, concurrently with it: work of state machines of any duration."""

    def role_changed(self, change: RoleChange) -> None: ...

    def committed(self, committed_index: int) -> None:
        """The committed index rose: wake readers that wait for entries."""

    def lost_committed(self, first_index: int) -> None:
        """Async mode: acknowledged entries from here on were cut by order of a later leader."""

    def reader_lost(self, lost: LostRange) -> None:
        """Entries that a reader wanted to be held may be deleted by now: the disk was nearly full."""

    def wall_clock_ms(self) -> int:
        """Milliseconds since 1970 as this machine has it: it may be wrong, jump, and go backwards."""

    def replacing_log(self, start: LogStart) -> None:
        """A leader's log begins above this member's, and is about to take its place; then LogReplaced is
        raised."""

    @property
    def level(self) -> int:
        """The newest level of the log's format that this member reports to know."""

    def members_below(self, level: int) -> list[str]:
        """Ids of the other members not known to know this level of the log's format: by the newest
        greeting, or for want of one to this process."""

    def syncs(self, replica: Replica) -> bool:
        """By its newest greeting a connected member acknowledges only synced entries."""

    def weakest_durability(self, own: Durability) -> Durability:
        """The weakest of this member's and the connected voters' flush modes."""


class Member(Protocol):
    """The interface of `LedgerNode` to its parts."""

    config: GroupConfig
    directory: MemberDirectory
    store: LedgerStore
    replica: Replica
    host: Host
    raft: RaftNode
    housekeeping: Housekeeping
    committed_index: int
    durable_committed_index: int

    def carry_out_all(self) -> None:
        """Bring the store, and the state of the log, to where the core is."""

    def hold(self, save: Callable[[], None], then: Callable[[LedgerError | None], None]) -> None: ...

    def receive(self, message: AnyPeerMessage) -> None: ...

    def found(self, damage: DirectoryDamaged) -> None:
        """A read has met damage."""

    def readable_range(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> EntryBatch | ColdRange: ...

    def propose_control(self, body: ControlBody) -> EntryId: ...

    def confirm_leadership(
        self, done: Callable[[LedgerError | None], None], owner: object = None
    ) -> None: ...

    def refusal_unless_leading(self) -> LedgerError | None: ...


def raise_failure(result: object) -> None:
    """`done` of work without a waiter."""
    if isinstance(result, StoreFailure | LedgerError):
        raise result


# ----------------------------------------------------------------
# EntryFiller: what only the leader can know of an application's entries is written into their bodies as
# it proposes them, a batch at a time, before the digests are made. It belongs to a state machine, whose
# factory names it as `filler`.
#
# A filler numbers by all that its leader has proposed, committed or not. That is right only while this
# member leads, and only if the filler began with a state that holds every earlier entry: until it knows
# so, and as soon as the member leads no more, it refuses.


class EntryStamper(Protocol):
    def check(self, batch: EntryBatch) -> None:
        """Entries to be appended. Raises the LedgerError that refuses them."""

    def fill(self, batch: EntryBatch, first: EntryId, positions: Int64Array, time_ms: int) -> object:
        """Entries that were checked, in the order and at the positions that they have in the log from
        now on. Only their bodies may change. The return value goes to the requester. `time_ms`: of this
        machine's clock, as far as the log believes it, since 1970."""
