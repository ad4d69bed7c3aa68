"""KeyValueService: one member's answers to the clients of its store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from quorumlog.errors import ConnectionFull, LedgerError, ResultUnknown
from quorumlog.kv.errors import ClusterChanged, InvalidRequest, NoSpace
from quorumlog.kv.requests import answers
from quorumlog.kv.requests.answers import LeaseKeysAnswer, StandAnswer, read_answer
from quorumlog.kv.requests.limits import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, check, may_answer_much
from quorumlog.kv.requests.messages import (
    CancelRequest,
    CommandRequest,
    KeepAliveRequest,
    QuestionRequest,
    Request,
    StatusAnswer,
    TimeToLiveRequest,
    WatchRequest,
)
from quorumlog.kv.requests.operations import (
    Command,
    Compact,
    Grant,
    LeaseKeys,
    Put,
    Stand,
    Txn,
    decode_command_of_client,
    encode,
)
from quorumlog.kv.service.lease_clock import CommandBatches, Done, LeaseClock
from quorumlog.kv.service.sessions import Session, answer, refuse
from quorumlog.kv.service.watch_hub import MOST_WATCHES, WatchHub
from quorumlog.kv.store.changes import Begins, Changed, CompactedTo, Ended, Feed, Granted
from quorumlog.kv.store.machine import MACHINE_NAME
from quorumlog.net.hello import STORE, HelloResponse
from quorumlog.node import DoorMember
from quorumlog.node.machine_driver import Answer
from quorumlog.version import VERSION

SAMPLES = 12
"""Of one period: history ends that much too late at most."""


class Compactor:
    def __init__(self, auto_compaction_ms: float) -> None:
        """0: never."""
        self._period_ms = auto_compaction_ms
        self._samples: deque[tuple[float, int]] = deque()
        """(when, newest revision then), while this member leads."""

    def tick(self, now_ms: float, revision: int, *, leads: bool) -> int | None:
        """The revision to compact to, if it is time."""
        if not leads or not self._period_ms:
            self._samples.clear()
            return None
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._period_ms / SAMPLES:
            samples.append((now_ms, revision))
        due = None
        while samples and now_ms - samples[0][0] >= self._period_ms:
            due = samples.popleft()[1]
        return due or None


# ----------------------------------------------------------------
# KeyValueService: one member's answers to the clients of its store.


READ_TIMEOUT_MS = 5_000
TICK_MS = 50.0
LEAST_TTL_TIMEOUTS = 3
"""A TTL is raised to so many election time-outs. A leader that falls silent just before a keep-alive
comes leaves two thirds of it for the election of the next one, and for the client to find that."""
LEADERLESS_TIMEOUTS = 2
"""Election time-outs without a leader, after which watches are sent to another member."""
HOUR_MS = 3_600_000
MOST_UNREAD_BYTES = 2 * MAX_ANSWER_BYTES
"""Of one client that writes and reads no answers: to that only those of `SMALL_BYTES` are added."""
SMALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoreOptions:
    auto_compaction_ms: float = HOUR_MS
    """History older than that ends; 0: it does not end by itself."""
    quota_bytes: int = 8 << 30
    """Above it puts are refused, while deletions and compaction go on."""
    etcd_gateway: str = ""
    """URL of this member's gateway, for who asks which there are."""
    max_watches: int = MOST_WATCHES
    """Of one client; ten times so many of all."""


class KeyValueService:
    def __init__(
        self, member: DoorMember, feed: Feed, options: StoreOptions, now_ms: Callable[[], float]
    ) -> None:
        """`now_ms`: a clock that goes on while the machine sleeps. Who makes this calls `drain` when the
        feed wakes, and `tick` every `TICK_MS`."""
        self._member = member
        self._feed = feed
        self._options = options
        self._now_ms = now_ms
        self._commands = CommandBatches(member)
        self.leases = LeaseClock(self._commands.add)
        self._compactor = Compactor(options.auto_compaction_ms)
        self._compacted = 0
        """History below is gone, as far as the store has told."""
        self.watches = WatchHub(self._ask_history, options.max_watches)
        self._is_telling = False
        self._kept_alive: list[tuple[Session, KeepAliveRequest, float]] = []
        self._stand = StandAnswer()
        self._is_looking = False
        self._had_leader_ms = now_ms()
        """Or watches were sent away last."""

    # ---------------------------------------------------------------- requests

    def request(self, session: Session, request: Request) -> None:
        try:
            self._request(session, request)
        except (InvalidRequest, NoSpace, ConnectionFull) as refusal:
            refuse(session, request.request_id, refusal)

    def _request(self, session: Session, request: Request) -> None:
        number = request.request_id
        if isinstance(request, CommandRequest):
            command = self._checked(request.command)
            body = encode(command) if isinstance(command, Grant) else request.command
            done = partial(self._commanded, session, number)
            self._commands.add(body, done, alone=may_answer_much(command))
        elif isinstance(request, QuestionRequest):
            self._ask(session, request)
        elif isinstance(request, KeepAliveRequest):
            if not self._kept_alive:
                self._enter(self._confirm_kept_alive)
            self._kept_alive.append((session, request, self._now_ms()))
        elif isinstance(request, WatchRequest):
            self.watches.add(session, request)
        elif isinstance(request, CancelRequest):
            self.watches.cancel(session, request.watch)
        elif isinstance(request, TimeToLiveRequest):
            self._time_to_live(session, request)
        else:
            self._status(session, number)

    def go_on(self) -> None:
        """Somebody has read what was left unread: there may be questions that wait for that."""
        self._member.enter(lambda: None)

    def lost(self, session: Session) -> None:
        """Its connection has ended."""
        self.watches.lost(session)
        self._member.enter(lambda: self._member.discard(session))

    def _enter(self, act: Callable[[DoorMember], None], client: object = None) -> None:
        self._member.enter(lambda: act(self._member), client)

    def greet(
        self, session: Session, known_cluster_id: str, greeted: Callable[[HelloResponse], None]
    ) -> None:
        """`known_cluster_id`: of the store that the client saw before, if any. `greeted` gets what its
        connection begins or ends with."""

        def greet(member: DoorMember) -> None:
            cluster_id = member.cluster_id
            config = member.node().config
            if known_cluster_id and cluster_id and known_cluster_id != cluster_id:
                changed = (
                    f"this is cluster {cluster_id}, not {known_cluster_id}: begin with its newest state"
                )
                greeted(HelloResponse(code=ClusterChanged.code, message=changed, product=STORE))
                return
            greeted(
                HelloResponse(
                    product=STORE,
                    cluster_id=cluster_id,
                    member_id=config.member_id,
                    election_timeout_ms=config.consensus.election_timeout_ms,
                )
            )

        self._enter(greet, session)

    # ---------------------------------------------------------------- commands and reads

    def _checked(self, body: bytes) -> Command:
        """What is appended, as it says. Raises InvalidRequest, NoSpace."""
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidRequest(f"a request of {len(body)} bytes is above {MAX_REQUEST_BYTES}")
        command = decode_command_of_client(body)
        check(command, len(body))
        if self._feed.size_bytes >= self._options.quota_bytes and _grows(command):
            raise NoSpace(
                f"the store holds {self._feed.size_bytes} bytes, its quota is"
                f" {self._options.quota_bytes}: delete keys and compact"
            )
        if isinstance(command, Grant):
            least_ms = LEAST_TTL_TIMEOUTS * self._election_timeout_ms()
            if command.ttl_ms < least_ms:
                return msgspec.structs.replace(command, ttl_ms=least_ms)
        return command

    def _election_timeout_ms(self) -> int:
        return int(self._member.node().config.consensus.election_timeout_ms)

    def _commanded(self, session: Session, number: int, outcome: bytes | LedgerError) -> None:
        if isinstance(outcome, LedgerError):
            refuse(session, number, outcome)
        elif outcome == answers.CARRIED_OUT or len(outcome) > MAX_ANSWER_BYTES:
            refuse(session, number, ResultUnknown(answers.TOO_LARGE))
        elif len(outcome) > SMALL_BYTES and session.unsent_bytes > MOST_UNREAD_BYTES:
            unread = "it was carried out; its answer is left out, for those before it were not read"
            refuse(session, number, ResultUnknown(unread))
        else:
            answer(session, number, outcome)

    def _ask(self, session: Session, request: QuestionRequest) -> None:
        done = partial(self._answered, session, request.request_id)

        def ask(member: DoorMember) -> None:
            timeout_ms = READ_TIMEOUT_MS
            member.ask(MACHINE_NAME, request.question, timeout_ms, done, session, here=request.here)

        self._enter(ask, session)

    def _answered(self, session: Session, number: int, outcome: Answer) -> None:
        if isinstance(outcome, LedgerError):
            refuse(session, number, outcome)
        else:
            answer(session, number, outcome[0])

    def _ask_history(self, question: bytes, done: Done) -> None:
        def answered(outcome: Answer) -> None:
            done(outcome if isinstance(outcome, LedgerError) else outcome[0])

        self._enter(lambda m: m.ask(MACHINE_NAME, question, READ_TIMEOUT_MS, answered, self, here=True))

    # ---------------------------------------------------------------- leases

    def _confirm_kept_alive(self, member: DoorMember) -> None:
        """All that wait share one round; the store has applied what was committed before it then."""
        waiting, self._kept_alive = self._kept_alive, []
        term = member.leads_in

        def confirmed(outcome: Answer) -> None:
            if not isinstance(outcome, LedgerError):
                outcome = self._member.refusal_unless_leading() or outcome
            self.drain()
            self.leases.lead(self._member.leads_in, self._now_ms())
            for session, request, arrived_ms in waiting:
                if isinstance(outcome, LedgerError):
                    refuse(session, request.request_id, outcome)
                    continue
                kept = [self.leases.keep_alive(each, term, arrived_ms) for each in request.leases]
                answer(session, request.request_id, answers.done(self.watches.told, kept))

        member.ask(MACHINE_NAME, encode(Stand()), READ_TIMEOUT_MS, confirmed, self)

    def ask_lease_keys(
        self, session: Session, lease: int, done: Callable[[list[bytes] | LedgerError], None]
    ) -> None:
        """Of who is not known to have a right to them yet."""

        def answered(outcome: Answer) -> None:
            try:
                if isinstance(outcome, LedgerError):
                    raise outcome
                done(read_answer(outcome[0], LeaseKeysAnswer)[1].keys)
            except LedgerError as refusal:
                done(refusal)

        question = encode(LeaseKeys(lease))
        self._enter(lambda m: m.ask(MACHINE_NAME, question, READ_TIMEOUT_MS, answered, session), session)

    def _time_to_live(self, session: Session, request: TimeToLiveRequest) -> None:
        number, lease = request.request_id, request.lease

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, LedgerError):
                refuse(session, number, outcome)
                return
            try:
                revision, found = read_answer(outcome[0], LeaseKeysAnswer)
            except LedgerError as refusal:
                refuse(session, number, refusal)
                return
            follows = self._member.refusal_unless_leading()
            if follows is not None:
                refuse(session, number, follows)  # only the leader counts
                return
            left_ms = self.leases.left_ms(lease, self._now_ms())
            answer(session, number, answers.done(revision, (found.ttl_ms, left_ms, found.keys)))

        question = encode(LeaseKeys(lease))
        self._enter(lambda m: m.ask(MACHINE_NAME, question, READ_TIMEOUT_MS, answered, session), session)

    # ---------------------------------------------------------------- the clock and the store

    def tick(self) -> None:
        if not self._member.is_up:
            return
        now_ms = self._now_ms()
        self._end_deaf_watches(now_ms)
        self._is_telling = False  # what was to go on is forgotten where the member begins anew
        self.drain()
        term = self._member.leads_in
        self.leases.lead(term, now_ms)
        self.leases.tick(now_ms)
        self.watches.tick(now_ms)
        self._tell_on()
        due = self._compactor.tick(now_ms, self.watches.told, leads=term is not None)
        if due is not None and due > self._compacted:
            self._commands.add(encode(Compact(due, leads=True)), _nobody)
        if not self._stand.swept:
            self._look()

    def _end_deaf_watches(self, now_ms: float) -> None:
        """A member that was removed, or is cut off from the others, hears nothing, while they may go on
        without it. Where nobody leads, a watch comes back, and again after as long a time."""
        patience_ms = LEADERLESS_TIMEOUTS * self._election_timeout_ms()
        is_deaf = not self._member.knows_leader and now_ms - self._had_leader_ms >= patience_ms
        if is_deaf:
            for session in self.watches.sessions():
                session.abort()
        if is_deaf or self._member.knows_leader:
            self._had_leader_ms = now_ms

    def role_changed(self) -> None:
        """Of this member; in the middle of a turn: what follows is for the next tick."""
        self._member.enter(self.tick)

    def drain(self) -> None:
        """What the store tells."""
        changes: list[Changed] = []
        now_ms = self._now_ms()
        for item in self._feed.take():
            if isinstance(item, Changed):
                changes.append(item)
                continue
            self.watches.changed(changes)
            changes = []
            if isinstance(item, Granted):
                self.leases.granted(item.lease, item.granted, now_ms)
            elif isinstance(item, Ended):
                self.leases.ended(item.lease)
            elif isinstance(item, CompactedTo):
                self._compacted = item.revision
                self.watches.compacted()
                self._look()
            else:
                assert isinstance(item, Begins), item
                self._compacted = item.compacted
                self.leases.begins(item.leases, now_ms)
                self.watches.begins(item.revision)
        self.watches.changed(changes)
        self._tell_on()

    def _tell_on(self) -> None:
        """Some more in each of the next turns."""
        if self.watches.is_telling and not self._is_telling:
            self._is_telling = True
            self._member.enter(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        self.watches.tell()
        self._tell_on()

    def _look(self) -> None:
        """How large it is; whoever asks moves on what compaction has left to do."""
        if self._is_looking:
            return
        self._is_looking = True

        def answered(outcome: bytes | LedgerError) -> None:
            self._is_looking = False
            if not isinstance(outcome, LedgerError):
                self._stand = read_answer(outcome, StandAnswer)[1]

        self._ask_history(encode(Stand()), answered)

    def _status(self, session: Session, number: int) -> None:
        def asked(member: DoorMember) -> None:
            stand = encode(Stand())
            member.ask(MACHINE_NAME, stand, READ_TIMEOUT_MS, answered, session, here=True)

        def answered(outcome: Answer) -> None:
            if isinstance(outcome, LedgerError):
                refuse(session, number, outcome)
                return
            status = self._member.node().status()
            stand = read_answer(outcome[0], StandAnswer)[1]
            answer(
                session,
                number,
                answers.done(
                    stand.revision,
                    StatusAnswer(
                        self._member.node().config.member_id,
                        self._member.cluster_id,
                        status.role.value,
                        status.term,
                        "" if status.leader is None else status.leader.member_id,
                        stand.revision,
                        stand.compacted_revision,
                        stand.keys,
                        stand.leases,
                        stand.size_bytes,
                        self._options.quota_bytes,
                        len(self.watches),
                        outcome[1],
                        VERSION,
                        self._member.node().lacks_space,
                        self._options.etcd_gateway,
                    ),
                ),
            )

        self._enter(asked, session)


def _grows(command: Command) -> bool:
    if isinstance(command, Txn):
        operations = (*command.success, *command.failure)
        return any(isinstance(each, Put | Txn) and _grows(each) for each in operations)
    return isinstance(command, Put | Grant)


def _nobody(outcome: bytes | LedgerError) -> None:
    """Whatever came of it: there is a next time."""
