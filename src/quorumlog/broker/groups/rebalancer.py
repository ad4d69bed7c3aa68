"""Rebalancer: the master hands the queues of each group's topics out, again whenever members or topics
change. Each assignment is an entry, and a generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.broker.errors import StaleGeneration, UnknownGroupMember
from quorumlog.broker.groups.allocation import Subscriptions, allocate, with_held
from quorumlog.broker.groups.group_machine import GroupFeed
from quorumlog.broker.groups.group_members import GroupMembers
from quorumlog.broker.groups.group_state import GroupState, Topic, group_of
from quorumlog.broker.groups.offset_commits import OffsetCommits
from quorumlog.broker.groups.proposals import Proposals
from quorumlog.broker.wire.group_commands import Assign, QueueRow, refusal_in
from quorumlog.broker.wire.group_messages import AssignmentResponse, CommitRequest, HeartbeatRequest
from quorumlog.broker.wire.group_names import retry_topic
from quorumlog.errors import LedgerError, PendingFull

if TYPE_CHECKING:
    from quorumlog.broker.serving.broker_session import BrokerSession

MOST_PARKED = 10_000
MOST_WAIT_MS = 30_000


class _Parked(NamedTuple):
    """A heartbeat that waits for another generation."""

    session: BrokerSession
    request: HeartbeatRequest
    deadline_ms: float


class Rebalancer:
    """On the loop."""

    def __init__(
        self,
        feed: GroupFeed,
        members: GroupMembers,
        commits: OffsetCommits,
        proposals: Proposals,
    ) -> None:
        self._feed = feed
        self._members = members
        self._commits = commits
        self._proposals = proposals
        self._is_master = False
        self._now_ms = 0.0
        self._parked: list[_Parked] = []
        self._assigning: set[str] = set()
        self._settled: dict[str, int] = {}
        """Groups whose assignment was looked at, in which generation: for the topics and changes of
        members of `_settled_at`."""
        self._settled_at: tuple[Mapping[str, Topic] | None, int] = (None, -1)
        self._settled_state: GroupState | None = None
        self._asked_for: dict[str, dict[str, tuple[QueueRow, ...]]] = {}
        """By group and orderly member: queues that are to go to others, once they are given up."""

    def begin(self, now_ms: float) -> None:
        """This member is master."""
        self._is_master, self._now_ms = True, now_ms
        self._assigning.clear()
        self._asked_for.clear()
        self._settled.clear()
        self._members.begin(self._feed.state)

    def end(self, refusal: LedgerError) -> None:
        self._is_master = False
        self._members.end()
        parked, self._parked = self._parked, []
        for each in parked:
            each.session.refuse(each.request.request_id, refusal)

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        self._members.expire(now_ms)
        self._settle()
        self._answer_parked()

    def lost(self, session: BrokerSession) -> None:
        self._parked = [each for each in self._parked if each.session is not session]

    # ---------------------------------------------------------------- members

    def heard(self, session: BrokerSession, message: HeartbeatRequest) -> None:
        """Of a group and topics that there are. Raises PendingFull."""
        wanted: Subscriptions = tuple(sorted({*message.topics, (retry_topic(message.group), "*")}))
        is_there = self._members.heard(
            message.group,
            message.member,
            wanted,
            is_orderly=message.is_orderly,
            given_up=frozenset(message.gives_up),
            generation=message.generation,
        )
        if not is_there:
            raise PendingFull(
                f"group {message.group} has as many members as it may", retry_after_ms=1000
            )
        wait_ms = min(message.wait_ms, MOST_WAIT_MS) if len(self._parked) < MOST_PARKED else 0
        self._parked.append(_Parked(session, message, self._now_ms + wait_ms))
        self._settle()
        self._answer_parked()

    def left(self, group: str, member: str) -> None:
        self._members.left(group, member)
        self._settle()

    def check_commit(self, message: CommitRequest) -> int:
        """The generation that stands, if it is the one of the commit. Raises UnknownConsumerGroup,
        StaleGeneration, UnknownGroupMember."""
        group = group_of(self._feed.state, message.group)
        is_of_nobody = message.generation == -1 and not message.member
        if not is_of_nobody and message.generation != group.generation:
            raise StaleGeneration(
                f"generation {group.generation} of group {message.group} stands, not"
                f" {message.generation}"
            )
        own = {queue for each in group.members if each.member == message.member for queue in each.queues}
        for topic, queue_id, _ in message.offsets:
            if group.members and (topic, queue_id) not in own:
                raise UnknownGroupMember(
                    f"{message.member or 'a consumer without a name'} does not read queue {queue_id} of"
                    f" topic {topic} in group {message.group}, which has members"
                )
        return group.generation

    def _answer_parked(self) -> None:
        groups, waiting = self._feed.state.groups, []
        for each in self._parked:
            group = groups.get(each.request.group)
            own = [m for m in group.members if m.member == each.request.member] if group else []
            is_new = bool(own) and group is not None and group.generation != each.request.generation
            asked_for: tuple[QueueRow, ...] = ()
            if each.request.is_orderly:
                asked_for = self._asked_for.get(each.request.group, {}).get(each.request.member, ())
                is_new |= bool(own) and set(asked_for) != set(each.request.asked_for)
            if not is_new and self._now_ms < each.deadline_ms:
                waiting.append(each)
                continue
            queues = [
                (topic, queue_id, group.offsets.get((topic, queue_id), -1))
                for member in own
                for topic, queue_id in member.queues
                if group is not None
            ]
            resets = [
                (topic, queue_id)
                for topic, queue_id, _ in queues
                if group is not None
                and group.resets.get((topic, queue_id), -1) > each.request.generation
            ]
            generation = group.generation if own and group is not None else -1
            each.session.answer(
                AssignmentResponse(
                    request_id=each.request.request_id,
                    generation=generation,
                    queues=queues,
                    resets=tuple(resets),
                    asked_for=asked_for,
                    session_ms=int(self._members.timeout_ms) if generation != -1 else 0,
                )
            )
        self._parked = waiting

    # ---------------------------------------------------------------- queues

    def _settle(self) -> None:
        state = self._feed.state
        now = (state.topics, self._members.changes)
        if self._settled_at[0] is not now[0] or self._settled_at[1] != now[1]:
            self._settled.clear()
            self._settled_at = now
        if self._settled_state is state and self._settled:
            return
        self._settled_state = state
        for name in self._asked_for.keys() - state.groups.keys():
            del self._asked_for[name]
        counts = {name: topic.queues for name, topic in state.topics.items()}
        for name, group in state.groups.items():
            # A commit changes the state, and nobody's queues.
            if name in self._assigning or self._settled.get(name) == group.generation:
                continue
            self._settled[name] = group.generation
            target = allocate(self._members.wants(name), counts, group.members)
            members, asked_for = with_held(target, self._members.held(name, group))
            self._asked_for[name] = asked_for
            # Also where it gets a queue that it has just given up: only a generation tells it so.
            if members != group.members or self._members.has_given_up(name, group):
                self._assign(Assign(name, group.generation + 1, members))

    def _assign(self, command: Assign) -> None:
        self._assigning.add(command.group)
        self._commits.flush(command.group)  # what the generation that ends has read

        def told(outcome: bytes | LedgerError) -> None:
            self._assigning.discard(command.group)
            self._settled.pop(command.group, None)
            self._settled_state = None
            if self._is_master and refusal_in(outcome) is None:
                self._settle()
                self._answer_parked()

        self._proposals.propose(command, told)
