"""Nothing leaves before what it depends on is on the platter: term, vote, acknowledged entries, and what
a member would form with.

The word of the code that wrote is not taken for it: the simulated disk says what is synced.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorumlog.consensus.messages import (
    FormRequest,
    FormResponse,
    PushEntryResponse,
    PushResult,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.consensus.ready import Envelope, Ready
from quorumlog.entry import Formation, HardState, Replica
from quorumlog.errors import DirectoryDamaged, RangeDamaged
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.segments import DATA_NAME, segment_name
from quorumlog.store.slot_file import SECTOR_BYTES, SLOT_BYTES, decode_sector
from quorumlog.store.state_files import (
    HARD_STATE_MAGIC,
    HARD_STATE_NAME,
    MEMBER_NAME,
    decode_hard_state,
    decode_member,
)
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation

NOTHING = HardState(-1, None)


class PromisesOnDisk(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._hard_states: dict[Replica, HardState] = {}
        """The newest that was seen on each directory's platter."""
        self._votes: dict[tuple[Replica, int], Replica] = {}
        self._synced: dict[Replica, tuple[int, int]] = {}
        """(index, position just after it): the data up to there was seen on the platter."""

    # ---------------------------------------------------------------- hooks

    def started(self, member: CheckedMember) -> None:
        self._synced.pop(member.replica, None)
        known = self._hard_states.get(member.replica, NOTHING)
        status = member.node.status()
        own = HardState(status.term, status.voted_for)
        same_vote = own.term > known.term or known.voted_for in (None, own.voted_for)
        if own.term < known.term or not same_vote:
            raise Violation(f"{member.replica} starts with {own}; on its platter was {known}")
        self._require_term(member, own.term, "starts")

    def put_back(self, member: CheckedMember) -> None:
        """Another history begins: of whichever directory of this member the copy is."""
        for known in (self._hard_states, self._synced):
            for replica in [replica for replica in known if replica.member_id == member.member_id]:
                del known[replica]
        self._votes = {
            key: candidate
            for key, candidate in self._votes.items()
            if key[0].member_id != member.member_id
        }

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        if ready.truncate_from is not None:
            self._synced.pop(member.replica, None)  # other bytes will come there

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        self._require_term(member, message.term, f"sends {type(message).__name__}")
        if isinstance(message, PushEntryResponse):
            if message.result is PushResult.SUCCESS:
                self._require_entry(member, message)
        elif isinstance(message, VoteResponse):
            if message.result is VoteResult.ACCEPT and not message.pre_vote:
                self._require_vote(member, message.vote_term, envelope.to)
        elif isinstance(message, VoteRequest) and not message.pre_vote:
            self._require_vote(member, message.vote_term, member.replica)
        elif isinstance(message, FormRequest | FormResponse) and message.cluster_id:
            self._require_formation(member, message)

    def turned(self, member: CheckedMember) -> None:
        # A group of one leads, commits and answers without sending anything.
        if not member.node.is_held:
            self._require_term(member, member.node.raft.term, "ends a turn")
        durable = member.node.store.durable
        if durable.index > self._synced_of(member)[0]:
            self._require_data(member, durable.index, durable.position, "counts as durable")

    # ---------------------------------------------------------------- term and vote

    def _require_term(self, member: CheckedMember, term: int, what: str) -> None:
        if term > self._hard_states.get(member.replica, NOTHING).term:
            state = self._look_at_platter(member)
            if term > state.term:
                raise Violation(f"{member.replica} {what} in term {term}; on its platter is {state}")

    def _require_vote(self, member: CheckedMember, term: int, candidate: Replica) -> None:
        earlier = self._votes.setdefault((member.replica, term), candidate)
        if earlier != candidate:
            raise Violation(
                f"{member.replica} votes twice in term {term}: for {earlier}, for {candidate}"
            )
        state = self._hard_states[member.replica]
        if state != (term, candidate) and state.term <= term:
            state = self._look_at_platter(member)
            # A higher term keeps the promise as well: no other vote in the lower one can follow.
            if state != (term, candidate) and state.term <= term:
                raise Violation(
                    f"{member.replica} gives its vote in term {term} to {candidate}; on its platter is"
                    f" {state}"
                )

    def _look_at_platter(self, member: CheckedMember) -> HardState:
        """The better one of the slots that are good and synced."""
        path = f"{member.path}/{HARD_STATE_NAME}"
        known = self._hard_states.get(member.replica, NOTHING)
        if not member.disk.is_name_synced(path):
            return known
        content = member.disk.content(path)
        slots = []
        for position in (0, SLOT_BYTES):
            slot = decode_sector(HARD_STATE_MAGIC, content[position : position + SECTOR_BYTES])
            if slot is not None and member.disk.is_synced(path, position, position + SECTOR_BYTES):
                slots.append(slot)
        if not slots:
            return known
        state = decode_hard_state(max(slots)[1])
        if state.term < known.term:
            raise Violation(f"the term on the platter of {member.replica} fell from {known} to {state}")
        self._hard_states[member.replica] = state
        return state

    # ---------------------------------------------------------------- forming

    def _require_formation(self, member: CheckedMember, message: FormRequest | FormResponse) -> None:
        path = f"{member.path}/{MEMBER_NAME}"
        content = member.disk.content(path)
        found = Formation()
        if member.disk.is_name_synced(path) and member.disk.is_synced(path, 0, len(content)):
            found = decode_member(content).formation
        if message.founding:
            keeps = (found.founding, found.cluster_id) == (message.founding, message.cluster_id)
        elif found.founding or found.pending not in ((), message.pending):
            keeps = True  # it has formed, or another list has come, in the turn in which it spoke
        else:
            keeps = (found.pending, found.pending_id) == (message.pending, message.cluster_id)
        if not keeps:
            what = f"{message.founding or message.pending} as {message.cluster_id}"
            raise Violation(f"{member.replica} speaks of {what}; on its platter is {found}")

    # ---------------------------------------------------------------- entries

    def _require_entry(self, member: CheckedMember, message: PushEntryResponse) -> None:
        index, store = message.index, member.node.store
        if index > store.end.index:
            raise Violation(
                f"{member.replica} acknowledges entry {index} ({message.push.name}, term"
                f" {message.term}); its log ends at {store.end.index}"
            )
        if message.push is PushType.APPEND:
            self._require_sound(member, message)
        if self.cluster.profile.is_async or index <= self._synced_of(member)[0]:
            return
        position = _position_behind(store, index)
        if position is not None:
            what = f"is acknowledged ({message.push.name}, term {message.term})"
            self._require_data(member, index, position, what)

    def _require_sound(self, member: CheckedMember, message: PushEntryResponse) -> None:
        """What is damaged is not on the disk, whatever is synced there; where the group has
        committed it without this member, nobody counts on it."""
        committed_index = member.node.raft.committed_index
        for damaged in member.node.store.damaged:
            if damaged.first_index <= message.index and damaged.last.index > committed_index:
                raise Violation(
                    f"{member.replica} acknowledges entry {message.index} in term {message.term};"
                    f" damaged is {damaged}, and it knows of commits up to {committed_index} only"
                )

    def _synced_of(self, member: CheckedMember) -> tuple[int, int]:
        """At least where the log begins: below nothing is left to be looked at."""
        begin = member.node.store.begin
        return max(self._synced.get(member.replica, (-1, 0)), (begin.index, begin.position))

    def _require_data(self, member: CheckedMember, index: int, stop_position: int, what: str) -> None:
        """Entry `index` ends at `stop_position`: everything up to there is on the platter."""
        segment_bytes = member.node.config.storage.segment_bytes
        position = self._synced_of(member)[1]
        while position < stop_position:
            base = position // segment_bytes * segment_bytes
            stop = min(stop_position, base + segment_bytes)
            path = f"{member.path}/{DATA_NAME}/{segment_name(base)}"
            # A name once synced stays so; entries follow each other, so each segment is entered here.
            if position == base and not member.disk.is_name_synced(path):
                raise Violation(
                    f"entry {index} of {member.replica} {what}; the name {path} is not synced"
                )
            for first, behind in _but_damaged(member.node.store, position, stop):
                if not member.disk.is_synced(path, first - base, behind - base):
                    raise Violation(
                        f"entry {index} of {member.replica} {what}; bytes {first - base} .."
                        f" {behind - base} of {path} are not all on the platter"
                    )
            position = stop
        if not member.node.store.damaged:  # what is repaired has to be looked at again
            self._synced[member.replica] = (index, stop_position)


def _but_damaged(store: LedgerStore, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """A range of positions without what is damaged: a piece that was to repair it may be in the
    cache alone, its sync having failed."""
    for damaged in store.damaged:
        low, high = damaged.before.position, damaged.last.position
        if low < stop and high > first:
            if first < low:
                yield first, low
            first = min(high, stop)
    if first < stop:
        yield first, stop


def _position_behind(store: LedgerStore, index: int) -> int | None:
    """None if the disk cannot say."""
    if index <= store.begin.index:
        return store.begin.position
    if index == store.end.index:
        return store.end.position
    try:
        entry = store.range_of(index, index + 1, 1)
    except (DirectoryDamaged, RangeDamaged):
        return None
    return entry.position + entry.size_bytes
