"""Members of consumer groups: Kafka's classic rebalance protocol, in a leader's memory.

Nothing here is written to the log. A new leader knows no members: each gets UNKNOWN_MEMBER_ID and joins
again, so a change of leaders is a rebalance. Committed offsets are entries, kept in the state machine;
`check_commit` decides whether a commit becomes one.

Join and sync wait for other members. They are answered through a callback, exactly once and possibly
within the call; a callback must not call the coordinator. The time is that of the last `tick`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple

from kio.schema.errors import ErrorCode

# ---------------------------------------------------------------- Requests and answers


class JoinRequest(NamedTuple):
    group: str
    member: str
    """The member id; "" for a new member."""
    instance: str | None
    """The `group.instance.id` of a static member."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Below 0 (version 0 has no such field): the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) of each protocol, the preferred one first."""
    needs_member_id: bool = False
    """Version 4 and later: a new dynamic member receives an id and joins again with it."""
    may_skip_assignment: bool = False
    """Version 9 and later: the answer may tell the leader to skip the assignment."""


class JoinedMember(NamedTuple):
    member: str
    instance: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    error: ErrorCode
    member: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members for the group's leader; empty for the others."""
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    group: str
    member: str
    instance: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """By member id; only from the group's leader."""


class SyncAnswer(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class DescribedMember(NamedTuple):
    member: str
    instance: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: str


JoinDone = Callable[[JoinAnswer], None]
SyncDone = Callable[[SyncAnswer], None]


class GroupLimits(NamedTuple):
    """Limits of a coordinator; a request above one is refused."""

    least_session_timeout_ms: int = 6_000
    most_session_timeout_ms: int = 1_800_000
    most_rebalance_timeout_ms: int = 86_400_000
    """A longer timeout is reduced to this one."""
    initial_rebalance_delay_ms: int = 3_000
    """An empty group waits this long for more members after each join, so that many members that
    start together cause one rebalance. In all it waits for the rebalance timeout at most."""
    most_groups: int = 10_000
    most_members: int = 1_000
    """Members of one group, including ids that were given and not used yet."""
    most_metadata_bytes: int = 1 << 20
    """Bytes of one member's protocols, and of one member's assignment."""
    most_bytes: int = 64 << 20
    """Bytes of metadata, assignments and other state of the members of all groups."""


DEFAULT_LIMITS = GroupLimits()

_NEW_MEMBER_MS = 300_000
"""A new member that waits longer for a rebalance is removed: its client may have joined again."""
_MOST_NAME = 1_000
"""Most characters of a group's name or an instance id. A longer client id is cut."""
_MEMBER_BYTES = 1_000
"""Bytes counted for a member besides its metadata and names."""
_NEVER = 1 << 62


# ---------------------------------------------------------------- Groups


class GroupPhase(StrEnum):
    """States of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class _GroupMember:
    member: str
    request: JoinRequest
    """The latest request."""
    deadline_ms: int
    """The member is removed if it sends nothing until then."""
    is_new: bool = True
    """The member has not been in a generation yet."""
    has_synced: bool = False
    assignment: bytes = b""
    join_done: JoinDone | None = None
    sync_done: SyncDone | None = None

    @property
    def stored_bytes(self) -> int:
        names_bytes = len(self.member) + len(self.request.client_id)
        return _MEMBER_BYTES + names_bytes + _protocol_bytes(self.request) + len(self.assignment)

    @property
    def expires_ms(self) -> int:
        """A member that waits for the others does not expire, unless it is new."""
        is_waiting = self.join_done is not None or self.sync_done is not None
        return _NEVER if is_waiting and not self.is_new else self.deadline_ms

    def answer_join(self, answer: JoinAnswer) -> None:
        done, self.join_done = self.join_done, None
        if done is not None:
            done(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        done, self.sync_done = self.sync_done, None
        if done is not None:
            done(answer)

    def end(self, error: ErrorCode) -> None:
        self.answer_join(JoinAnswer(error, ""))
        self.answer_sync(SyncAnswer(error))


@dataclass(slots=True)
class _Group:
    name: str
    phase: GroupPhase = GroupPhase.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str = ""
    members: dict[str, _GroupMember] = field(default_factory=dict)
    """In the order of joining."""
    static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance."""
    pending: dict[str, int] = field(default_factory=dict)
    """Ids that were given and not used yet, with their deadlines."""
    rebalance_deadline_ms: int = _NEVER
    """Members that have not joined, or later not synced, by then are removed."""
    is_initial: bool = False
    """The first generation is being prepared: all members are new, and more may join."""
    initial_left_ms: int = 0
    has_new_member: bool = False
    due_ms: int = _NEVER
    """Time of the next check."""

    @property
    def size(self) -> int:
        return len(self.members) + len(self.pending)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((each.request.rebalance_timeout_ms for each in self.members.values()), default=0)

    def supports(self, request: JoinRequest) -> bool:
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        common = self.common_protocols()
        return self.protocol_type == request.protocol_type and any(
            name in common for name, _ in request.protocols
        )

    def common_protocols(self) -> set[str]:
        names = Counter(
            name
            for each in self.members.values()
            for name in {name for name, _ in each.request.protocols}
        )
        return {name for name, count in names.items() if count == len(self.members)}

    def choose_protocol(self) -> str:
        """Choose the protocol with most votes: each member votes for the first of its protocols that
        all members support."""
        common = self.common_protocols()
        votes = Counter(
            next(name for name, _ in each.request.protocols if name in common)
            for each in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def metadata_of(self, member: _GroupMember) -> bytes:
        return next((data for name, data in member.request.protocols if name == self.protocol), b"")

    def joined(
        self, member: _GroupMember, *, leader: str | None = None, skip: bool = False
    ) -> JoinAnswer:
        leader = self.leader if leader is None else leader
        members = tuple(
            JoinedMember(each.member, each.request.instance, self.metadata_of(each))
            for each in (self.members.values() if leader == member.member else ())
        )
        return JoinAnswer(
            ErrorCode.none,
            member.member,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            members,
            skip,
        )

    def synced(self, member: _GroupMember) -> SyncAnswer:
        return SyncAnswer(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)


def _protocol_bytes(request: JoinRequest) -> int:
    return sum(len(name) + len(metadata) for name, metadata in request.protocols)


class GroupCoordinator:
    """All groups that this leader coordinates. Used on the loop only."""

    def __init__(self, new_id: Callable[[], str], limits: GroupLimits = DEFAULT_LIMITS) -> None:
        """`new_id` returns text that no coordinator has returned before."""
        self._new_id = new_id
        self._limits = limits
        self._now_ms = 0
        self._groups: dict[str, _Group] = {}
        self._empty: dict[str, None] = {}
        """Groups without members, the longest empty first: the first ones are removed to make room
        for new groups."""
        self._bytes = 0
        self._due: list[tuple[int, str]] = []
        self._is_closed = False

    # ------------------------------------------------------------ Requests

    def join(self, request: JoinRequest, done: JoinDone) -> None:
        limits = self._limits
        session_ms = request.session_timeout_ms
        rebalance_ms = request.rebalance_timeout_ms
        rebalance_ms = min(
            rebalance_ms if rebalance_ms >= 0 else session_ms, limits.most_rebalance_timeout_ms
        )
        request = request._replace(
            rebalance_timeout_ms=rebalance_ms, client_id=request.client_id[:_MOST_NAME]
        )
        error = ErrorCode.none
        group = self._groups.get(request.group)
        if self._is_closed:
            error = ErrorCode.not_coordinator
        elif not 0 < len(request.group) <= _MOST_NAME:
            error = ErrorCode.invalid_group_id
        elif not limits.least_session_timeout_ms <= session_ms <= limits.most_session_timeout_ms:
            error = ErrorCode.invalid_session_timeout
        elif (
            _protocol_bytes(request) > limits.most_metadata_bytes
            or len(request.instance or "") > _MOST_NAME
        ):
            error = ErrorCode.invalid_request
        elif group is None and request.member:
            error = ErrorCode.unknown_member_id
        else:
            group = group or self._new_group(request)
            if group is None:
                error = ErrorCode.coordinator_not_available
            elif not group.supports(request):
                error = ErrorCode.inconsistent_group_protocol
            elif request.member:
                error = self._join_again(group, request, done)
            else:
                error = self._join_anew(group, request, done)
        if error is not ErrorCode.none:
            done(JoinAnswer(error, request.member))
        if group is not None:
            self._tidy(group)

    def sync(self, request: SyncRequest, done: SyncDone) -> None:
        group, member, error = self._find(request.group, request.member, request.instance)
        if group is None or member is None:
            done(SyncAnswer(error))
            return
        if request.generation != group.generation:
            error = ErrorCode.illegal_generation
        elif (request.protocol_type or group.protocol_type) != group.protocol_type or (
            request.protocol or group.protocol
        ) != group.protocol:
            error = ErrorCode.inconsistent_group_protocol
        elif group.phase is GroupPhase.PREPARING:
            error = ErrorCode.rebalance_in_progress
        elif request.member == group.leader and group.phase is GroupPhase.COMPLETING:
            error = self._check_assignments(request)
        if error is not ErrorCode.none:
            done(SyncAnswer(error))
            return
        member.has_synced = True
        self._heard(member)
        if group.phase is GroupPhase.STABLE:
            done(group.synced(member))
            return
        member.answer_sync(SyncAnswer(ErrorCode.rebalance_in_progress))
        member.sync_done = done
        if request.member == group.leader:
            assignments = dict(request.assignments)
            for each in group.members.values():
                self._bytes -= len(each.assignment)
                each.assignment = assignments.get(each.member, b"")
                self._bytes += len(each.assignment)
            group.phase = GroupPhase.STABLE
            for each in list(group.members.values()):
                if each.sync_done is not None:
                    self._heard(each)
                    each.answer_sync(group.synced(each))
        self._tidy(group)

    def heartbeat(
        self, group_name: str, member_id: str, instance: str | None, generation: int
    ) -> ErrorCode:
        group, member, error = self._find(group_name, member_id, instance)
        if group is None or member is None:
            return error
        if generation != group.generation:
            return ErrorCode.illegal_generation
        self._heard(member)
        if group.phase is GroupPhase.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(
        self, group_name: str, leaving: tuple[tuple[str, str | None], ...]
    ) -> tuple[ErrorCode, tuple[ErrorCode, ...]]:
        """`leaving`: member id and instance of each; a static member may be named by its instance
        alone. Returns (error of the request, error of each member). A client of version 2 or before
        gets the latter."""
        if self._is_closed:
            return ErrorCode.not_coordinator, ()
        group = self._groups.get(group_name)
        if group is None:
            return ErrorCode.none, (ErrorCode.unknown_member_id,) * len(leaving)
        errors = []
        before = len(group.members)
        for member_id, instance in leaving:
            if instance is not None and not member_id:
                member_id = group.static.get(instance, "")
            if instance is None and self._take_pending(group, member_id):
                errors.append(ErrorCode.none)
                continue
            _, member, error = self._find(group_name, member_id, instance)
            if member is not None:
                self._remove(group, member, ErrorCode.unknown_member_id)
            errors.append(error)
        self._after_removals(group, before)
        self._tidy(group)
        return ErrorCode.none, tuple(errors)

    def expel(self, group_name: str, done: JoinDone | SyncDone, error: ErrorCode) -> None:
        """Remove the member whose waiting request is answered by `done`, with an error."""
        group = self._groups.get(group_name)
        members = [] if group is None else list(group.members.values())
        member = next((each for each in members if done in (each.join_done, each.sync_done)), None)
        if group is not None and member is not None:
            self._remove(group, member, error)
            self._after_removals(group, len(members))
            self._tidy(group)

    def check_commit(
        self, group_name: str, member_id: str, instance: str | None, generation: int
    ) -> ErrorCode:
        """Whether offsets may be committed: by a member in its generation, or (`generation` below 0) by
        a consumer that assigns itself, while the group has no members."""
        if self._is_closed:
            return ErrorCode.not_coordinator
        group = self._groups.get(group_name)
        if generation < 0 and (group is None or not group.members):
            return ErrorCode.none
        group, member, error = self._find(group_name, member_id, instance)
        if group is None or member is None:
            return error
        if generation != group.generation:
            return ErrorCode.illegal_generation
        self._heard(member)
        if group.phase is GroupPhase.COMPLETING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def describe(self, group_name: str) -> GroupDescription | None:
        """None: the group has had no members here; it may have committed offsets."""
        group = self._groups.get(group_name)
        if group is None:
            return None
        is_stable = group.phase is GroupPhase.STABLE
        members = tuple(
            DescribedMember(
                each.member,
                each.request.instance,
                each.request.client_id,
                each.request.client_host,
                group.metadata_of(each) if is_stable else b"",
                each.assignment if is_stable else b"",
            )
            for each in group.members.values()
        )
        protocol = (group.protocol or "") if is_stable else ""
        return GroupDescription(group.phase, group.protocol_type, protocol, members)

    def list_groups(self) -> list[ListedGroup]:
        """The groups that have had members here."""
        return [ListedGroup(each.name, each.protocol_type, each.phase) for each in self._groups.values()]

    def tick(self, now_ms: int) -> None:
        """Advance the time to `now_ms`, of a monotonic clock."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._due and self._due[0][0] <= self._now_ms:
            due_ms, name = heappop(self._due)
            group = self._groups.get(name)
            if group is not None and group.due_ms == due_ms:
                group.due_ms = _NEVER
                self._expire(group)
                self._tidy(group)

    def close(self) -> None:
        """Leadership is lost: waiting and later requests get NOT_COORDINATOR."""
        self._is_closed = True
        groups, self._groups = self._groups, {}
        self._empty.clear()
        self._due.clear()
        self._bytes = 0
        for group in groups.values():
            for member in group.members.values():
                member.end(ErrorCode.not_coordinator)

    # ------------------------------------------------------------ Joining

    def _new_group(self, request: JoinRequest) -> _Group | None:
        if len(self._groups) >= self._limits.most_groups:
            if not self._empty:
                return None
            del self._groups[next(iter(self._empty))]
            del self._empty[next(iter(self._empty))]
        return self._groups.setdefault(request.group, _Group(request.group))

    def _join_anew(self, group: _Group, request: JoinRequest, done: JoinDone) -> ErrorCode:
        instance = request.instance
        former = None if instance is None else group.static.get(instance)
        if former is not None:
            return self._replace_static(group, group.members[former], request, done)
        if group.size >= self._limits.most_members:
            return ErrorCode.group_max_size_reached
        member_id = f"{request.client_id if instance is None else instance}-{self._new_id()}"
        if request.needs_member_id and instance is None:
            if self._bytes + _MEMBER_BYTES > self._limits.most_bytes:
                return ErrorCode.coordinator_not_available
            self._bytes += _MEMBER_BYTES
            group.pending[member_id] = self._now_ms + request.session_timeout_ms
            done(JoinAnswer(ErrorCode.member_id_required, member_id))
            return ErrorCode.none
        return self._add(group, member_id, request, done)

    def _join_again(self, group: _Group, request: JoinRequest, done: JoinDone) -> ErrorCode:
        if request.instance is None and self._take_pending(group, request.member):
            return self._add(group, request.member, request, done)
        _, member, error = self._find(request.group, request.member, request.instance)
        if member is None:
            return error
        is_same = member.request.protocols == request.protocols
        may_stay = group.phase is GroupPhase.COMPLETING or (
            group.phase is GroupPhase.STABLE and request.member != group.leader
        )
        if is_same and may_stay:
            # It has missed the answer to its join: that is given once more.
            self._heard(member)
            done(group.joined(member))
            return ErrorCode.none
        if not self._store(member, request):
            return ErrorCode.coordinator_not_available
        self._await_join(group, member, done)
        return ErrorCode.none

    def _take_pending(self, group: _Group, member_id: str) -> bool:
        if group.pending.pop(member_id, None) is None:
            return False
        self._bytes -= _MEMBER_BYTES
        return True

    def _replace_static(
        self, group: _Group, former: _GroupMember, request: JoinRequest, done: JoinDone
    ) -> ErrorCode:
        """A static member has restarted. It replaces its previous member id, which is fenced. If its
        subscription is unchanged, there is no rebalance."""
        if not self._store(former, request):
            return ErrorCode.coordinator_not_available
        former_id = former.member
        former.end(ErrorCode.fenced_instance_id)
        self._bytes -= former.stored_bytes
        former.member = f"{request.instance}-{self._new_id()}"
        self._bytes += former.stored_bytes
        # In its old place: who joined first is the next leader.
        group.members = {each.member: each for each in group.members.values()}
        group.static[request.instance or ""] = former.member
        was_leader = group.leader == former_id
        if was_leader:
            group.leader = former.member
        if group.phase is GroupPhase.STABLE and group.choose_protocol() == group.protocol:
            self._heard(former)
            # An older client that is told that it leads would assign anew: it is shown its former self
            # as the leader, and so takes what was assigned to it.
            skips = was_leader and request.may_skip_assignment
            done(
                group.joined(
                    former, leader=group.leader if skips or not was_leader else former_id, skip=skips
                )
            )
            return ErrorCode.none
        self._await_join(group, former, done)
        return ErrorCode.none

    def _add(self, group: _Group, member_id: str, request: JoinRequest, done: JoinDone) -> ErrorCode:
        member = _GroupMember(member_id, request, 0)
        if self._bytes + member.stored_bytes > self._limits.most_bytes:
            return ErrorCode.coordinator_not_available
        self._bytes += member.stored_bytes
        if not group.members:
            group.protocol_type = request.protocol_type
            group.leader = member_id
        group.members[member_id] = member
        if request.instance is not None:
            group.static[request.instance] = member_id
        group.has_new_member = True
        self._await_join(group, member, done)
        return ErrorCode.none

    def _store(self, member: _GroupMember, request: JoinRequest) -> bool:
        """Store the member's latest request, if there is room."""
        before, stored = member.request, member.stored_bytes
        member.request = request
        self._bytes += member.stored_bytes - stored
        if self._bytes <= self._limits.most_bytes:
            return True
        self._bytes -= member.stored_bytes - stored
        member.request = before
        return False

    def _await_join(self, group: _Group, member: _GroupMember, done: JoinDone) -> None:
        # An earlier request of the member, on a connection that it has given up.
        member.answer_join(JoinAnswer(ErrorCode.rebalance_in_progress, member.member))
        member.join_done = done
        member.deadline_ms = self._now_ms + (
            _NEW_MEMBER_MS if member.is_new else member.request.session_timeout_ms
        )
        self._prepare(group)
        self._complete_if_all_joined(group)

    # ------------------------------------------------------------ Rebalances

    def _prepare(self, group: _Group) -> None:
        """Begin a rebalance, unless one is under way."""
        if group.phase is GroupPhase.PREPARING:
            return
        for each in group.members.values():
            each.answer_sync(SyncAnswer(ErrorCode.rebalance_in_progress))
        delay_ms = group.rebalance_timeout_ms
        group.is_initial = group.phase is GroupPhase.EMPTY
        if group.is_initial:
            initial_ms = self._limits.initial_rebalance_delay_ms
            group.initial_left_ms = max(delay_ms - initial_ms, 0)
            group.has_new_member = False
            delay_ms = initial_ms
        group.phase = GroupPhase.PREPARING
        group.rebalance_deadline_ms = self._now_ms + delay_ms

    def _complete_if_all_joined(self, group: _Group) -> None:
        if group.phase is not GroupPhase.PREPARING:
            return
        if group.is_initial and self._now_ms < group.rebalance_deadline_ms and group.members:
            return
        if group.pending or any(each.join_done is None for each in group.members.values()):
            return
        self._complete(group)

    def _complete(self, group: _Group) -> None:
        """Begin the next generation, with the members that have joined, and static members that have
        not."""
        for each in [each for each in group.members.values() if each.join_done is None]:
            if each.request.instance is None:
                self._remove(group, each, ErrorCode.unknown_member_id)
        joined = [each for each in group.members.values() if each.join_done is not None]
        if group.members and not joined:
            group.rebalance_deadline_ms = self._now_ms + group.rebalance_timeout_ms
            return
        group.is_initial = False
        group.generation = group.generation % 0x7FFF_FFFF + 1
        group.rebalance_deadline_ms = _NEVER
        if not joined:
            group.phase = GroupPhase.EMPTY
            group.protocol = None
            return
        if group.members[group.leader].join_done is None:
            group.leader = joined[0].member
        group.protocol = group.choose_protocol()
        group.phase = GroupPhase.COMPLETING
        group.rebalance_deadline_ms = self._now_ms + group.rebalance_timeout_ms
        for each in joined:
            each.is_new = False
            each.has_synced = False
            self._heard(each)
            each.answer_join(group.joined(each))

    def _remove(self, group: _Group, member: _GroupMember, error: ErrorCode) -> None:
        del group.members[member.member]
        if member.request.instance is not None:
            del group.static[member.request.instance]
        self._bytes -= member.stored_bytes
        if group.leader == member.member:
            group.leader = next(iter(group.members), "")
        member.end(error)

    def _after_removals(self, group: _Group, before: int) -> None:
        """After members were removed: begin a rebalance, or complete the one that waited for them."""
        if len(group.members) < before:
            self._prepare(group)
        self._complete_if_all_joined(group)

    # ------------------------------------------------------------ Time

    def _heard(self, member: _GroupMember) -> None:
        member.deadline_ms = self._now_ms + member.request.session_timeout_ms

    def _expire(self, group: _Group) -> None:
        now_ms = self._now_ms
        for each_id in [each for each, at in group.pending.items() if at <= now_ms]:
            self._take_pending(group, each_id)
        is_late = group.rebalance_deadline_ms <= now_ms
        before = len(group.members)
        out = [
            each
            for each in group.members.values()
            if each.expires_ms <= now_ms
            or (is_late and group.phase is not GroupPhase.PREPARING and not each.has_synced)
        ]
        for each in out:
            self._remove(group, each, ErrorCode.unknown_member_id)
        if not is_late:
            self._after_removals(group, before)
        elif group.phase is not GroupPhase.PREPARING:
            group.rebalance_deadline_ms = _NEVER
            self._after_removals(group, before)
        elif group.is_initial and group.has_new_member and group.initial_left_ms:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms -= delay_ms
            group.has_new_member = False
            group.rebalance_deadline_ms = now_ms + delay_ms
        else:
            self._complete(group)

    def _tidy(self, group: _Group) -> None:
        """After a change: set the time of the group's next check, and whether it is empty."""
        if self._is_closed or self._groups.get(group.name) is not group:
            return
        if group.size:
            self._empty.pop(group.name, None)
        elif group.generation:
            self._empty.setdefault(group.name)
        else:
            del self._groups[group.name]
            self._empty.pop(group.name, None)
            return
        due_ms = min(
            group.rebalance_deadline_ms,
            min(group.pending.values(), default=_NEVER),
            min((each.expires_ms for each in group.members.values()), default=_NEVER),
        )
        if due_ms < group.due_ms:
            group.due_ms = due_ms
            heappush(self._due, (due_ms, group.name))
        if len(self._due) > 2 * len(self._groups) + 100:  # most of them were moved since
            self._due = sorted((each.due_ms, each.name) for each in self._groups.values())

    # ------------------------------------------------------------ Looking things up

    def _find(
        self, group_name: str, member_id: str, instance: str | None
    ) -> tuple[_Group | None, _GroupMember | None, ErrorCode]:
        """The member, or an error code."""
        if self._is_closed:
            return None, None, ErrorCode.not_coordinator
        group = self._groups.get(group_name)
        if group is None:
            return None, None, ErrorCode.unknown_member_id
        if instance is not None:
            known = group.static.get(instance)
            if known is None:
                return group, None, ErrorCode.unknown_member_id
            if known != member_id:
                return group, None, ErrorCode.fenced_instance_id
        member = group.members.get(member_id)
        return group, member, ErrorCode.unknown_member_id if member is None else ErrorCode.none

    def _check_assignments(self, request: SyncRequest) -> ErrorCode:
        sizes = [len(data) for _, data in request.assignments]
        if any(size > self._limits.most_metadata_bytes for size in sizes):
            return ErrorCode.invalid_request
        if self._bytes + sum(sizes) > self._limits.most_bytes:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none
