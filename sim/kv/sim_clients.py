"""SimStoreClient: it reads and writes a few keys, watches all of them, and now and then holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumlog.errors import LedgerError
from quorumlog.kv.client.asking import StoreProduct
from quorumlog.kv.errors import KeyValueError
from quorumlog.kv.requests import (
    AnswerResponse,
    CommandRequest,
    Compare,
    DeleteAnswer,
    DeleteRange,
    Event,
    EventsResponse,
    Grant,
    GrantAnswer,
    KeepAliveRequest,
    Put,
    QuestionRequest,
    Range,
    RangeAnswer,
    Relation,
    Request,
    Response,
    Target,
    Txn,
    TxnAnswer,
    WatchRequest,
    encode,
    read_answer,
)
from quorumlog.net.rpc.calls import (
    ANY_MEMBER,
    LEADER,
    LEADER_OR_ANY,
    Call,
    RequestTarget,
    response_of,
)
from quorumlog.net.rpc.timings import Timings
from quorumlog.testing.member import SimMember
from sim.clients import SimCalls, asked_alone
from sim.kv.histories import (
    MISSING,
    Deleted,
    Histories,
    Looked,
    SeenLease,
    SeenLock,
    SeenWatch,
    Wrote,
    is_open,
)
from sim.kv.linearizability import UNKNOWN, TimedOperation
from sim.kv.sim_sessions import SimEndpoints

PREFIX, PREFIX_END = b"k/", b"k0"
KEYS = (b"k/1", b"k/2", b"k/3")
LOCK = b"lock"
BETWEEN_MS = 60.0
COME_BACK_MS = 10.0
TIMEOUT_MS = 3_000.0
TTL_MS = 1_500
AnswerCallback = Callable[[Any], None]
"""Gets (revision, answer), an error, or None: nobody knows."""


class SimStoreClient(SimCalls):
    def __init__(
        self, endpoints: SimEndpoints, histories: Histories, name: str, timings: Timings | None = None
    ) -> None:
        random = endpoints.cluster.stream(f"store client {name}")
        super().__init__(endpoints, StoreProduct(), random, timings)
        self._histories = histories
        self._name = name
        self._watch: SeenWatch | None = None
        self._following: Call | None = None
        self._writes = 0
        self._lease: SeenLease | None = None
        self._held: SeenLock | None = None
        self._home: SimMember | None = None

    def connect_to(self, member: SimMember | None) -> None:
        """And to nobody else, whatever it answers; a watch comes back as soon as it is there again.
        None: from now on to whoever may answer; a watch, once its connection ends."""
        self._home = member
        if self._following is not None:
            self._following.target = self._target(LEADER_OR_ANY)

    def watch(self) -> None:
        """All keys, from now on."""
        self._watch = SeenWatch(PREFIX, 0)
        self._histories.watches.append(self._watch)
        self._follow()

    def put(self, key: bytes) -> None:
        self._put(key)

    def look(self, key: bytes) -> None:
        self._look(key, lambda found: None)

    def hold_lease(self) -> None:
        """Take one if there is none, and keep it alive, as often as this is called."""
        self._keep()

    def ask(
        self,
        request: Request,
        answer: type[Any],
        on_answer: AnswerCallback,
        target: RequestTarget = LEADER,
    ) -> None:
        def done(call: Call) -> None:
            if call.error is not None:
                on_answer(call.error)
                return
            try:
                on_answer(read_answer(response_of(call, AnswerResponse).answer, answer))
            except KeyValueError as refusal:
                on_answer(refusal)

        self.submit(self._call(request, target, done))

    def _target(self, usual: RequestTarget) -> RequestTarget:
        if self._home is None:
            return usual
        return asked_alone(self._home.member_id)

    def _call(self, request: Request, target: RequestTarget, done: Callable[[Call], None]) -> Call:
        now_ms = self._cluster.now_ms
        return Call(
            request,
            self._target(target),
            submitted_ms=now_ms,
            deadline_ms=now_ms + TIMEOUT_MS,
            changes=isinstance(request, CommandRequest),
            context=done,
        )

    # ---------------------------------------------------------------- work

    def work(self) -> None:
        self._cluster.at(self._random.expovariate(1 / BETWEEN_MS), self.work)
        if not self._cluster.clients_work:
            return
        kind = self._random.random()
        key = self._random.choice(KEYS)
        if self._watch is None:
            self.watch()
        self.break_sometimes()
        if kind < 0.35:
            self._put(key)
        elif kind < 0.5:
            self._put_if(key)
        elif kind < 0.58:
            self._delete(key)
        elif kind < 0.85:
            self._look(key, lambda found: None)
        elif kind < 0.93:
            self._keep()
        else:
            self._lock()

    def _note(self, key: bytes, operation: object) -> AnswerCallback:
        called_ms = self._cluster.now_ms

        def on_answer(outcome: Any) -> None:
            returned_ms = self._cluster.now_ms
            if isinstance(outcome, LedgerError):
                if not is_open(outcome):
                    return  # certainly not carried out
                outcome = None
            if outcome is None:
                if not isinstance(operation, Looked):
                    self._histories.of_key[key].append(
                        TimedOperation(called_ms, float("inf"), operation, UNKNOWN)
                    )
                return
            self._histories.of_key[key].append(
                TimedOperation(called_ms, returned_ms, operation, outcome)
            )
            self._cluster.trace.count(f"store: {type(operation).__name__}")

        return on_answer

    def _value(self) -> bytes:
        self._writes += 1
        return f"{self._name}.{self._writes}".encode()

    def _put(self, key: bytes) -> None:
        value = self._value()
        note = self._note(key, Wrote(value, None))

        # The revision of the store behind it may be a later one's: the key tells its own.
        body = encode(Txn([], [Put(key, value), Range(key)]))

        def on_answer(outcome: Any) -> None:
            if isinstance(outcome, tuple):
                note(outcome[1].answers[1].kvs[0].mod_revision)
            else:
                note(outcome)

        self.ask(CommandRequest(command=body), TxnAnswer, on_answer)

    def _put_if(self, key: bytes) -> None:
        def found(item: tuple[bytes, int]) -> None:
            value = self._value()
            note = self._note(key, Wrote(value, item[1]))

            def on_answer(outcome: Any) -> None:
                if not isinstance(outcome, tuple):
                    note(outcome)
                elif outcome[1].succeeded:
                    note(outcome[1].answers[1].kvs[0].mod_revision)
                else:
                    self._histories.of_key[key].append(
                        TimedOperation(called_ms, self._cluster.now_ms, Wrote(value, item[1]), None)
                    )

            called_ms = self._cluster.now_ms
            same = Compare(key, Target.MOD, Relation.EQUAL, item[1])
            body = encode(Txn([same], [Put(key, value), Range(key)]))
            self.ask(CommandRequest(command=body), TxnAnswer, on_answer)

        self._look(key, found)

    def _delete(self, key: bytes) -> None:
        note = self._note(key, Deleted())

        def on_answer(outcome: Any) -> None:
            if isinstance(outcome, tuple):
                note(outcome[0] if outcome[1].deleted else 0)
            else:
                note(outcome)

        self.ask(CommandRequest(command=encode(DeleteRange(key))), DeleteAnswer, on_answer)

    def _look(self, key: bytes, found: Callable[[tuple[bytes, int]], None]) -> None:
        note = self._note(key, Looked())

        def on_answer(outcome: Any) -> None:
            if not isinstance(outcome, tuple):
                note(outcome)
                return
            kvs = outcome[1].kvs
            item = (kvs[0].value, kvs[0].mod_revision) if kvs else MISSING
            note(item)
            found(item)

        target = self._random.choice((LEADER, ANY_MEMBER))
        self.ask(QuestionRequest(question=encode(Range(key))), RangeAnswer, on_answer, target)

    # ---------------------------------------------------------------- a watch

    def _follow(self) -> None:
        """Of all keys; from where it is."""
        call = self._call(self._left_off(), LEADER_OR_ANY, lambda call: self._come_back())
        call.on_message = self._on_message
        self._following = call
        self.submit(call)

    def _come_back(self) -> None:
        self._cluster.at(COME_BACK_MS, self._follow)

    def _left_off(self) -> WatchRequest:
        assert self._watch is not None
        return WatchRequest(key=PREFIX, end=PREFIX_END, first_revision=self._watch.next_revision)

    def _on_message(self, message: Response) -> None:
        assert isinstance(message, EventsResponse), message
        self._changed(message.next_revision, message.events)
        assert self._following is not None
        self._following.message = self._left_off()

    def _changed(self, next_revision: int, events: list[Event]) -> None:
        watch = self._watch
        assert watch is not None
        if not watch.next_revision:
            watch.first_revision = next_revision
        for event in events:
            watch.changes.append((event.kv.mod_revision, event.kv.key, event.kv.version))
        watch.next_revision = max(watch.next_revision, next_revision)
        self._cluster.trace.count("store: watched")

    # ---------------------------------------------------------------- leases and locks

    def _keep(self) -> None:
        lease, sent_ms = self._lease, self._cluster.now_ms
        if lease is None:
            self._granted(lambda: None)
            return

        def on_answer(outcome: Any) -> None:
            if isinstance(outcome, tuple) and outcome[1][0]:
                lease.sent_ms.append(sent_ms)
                if self._held is not None:
                    self._held.until_ms = max(self._held.until_ms, sent_ms + lease.ttl_ms)
                self._cluster.trace.count("store: kept alive")
            elif isinstance(outcome, tuple) and self._lease is lease:
                self._lease = self._held = None

        self.ask(KeepAliveRequest(leases=(lease.lease,)), list[int], on_answer)

    def _granted(self, then: Callable[[], None]) -> None:
        sent_ms = self._cluster.now_ms

        def on_answer(outcome: Any) -> None:
            if isinstance(outcome, tuple):
                granted = outcome[1]
                self._lease = SeenLease(granted.lease, granted.ttl_ms, [sent_ms])
                self._histories.leases.append(self._lease)
                then()

        self.ask(CommandRequest(command=encode(Grant(TTL_MS))), GrantAnswer, on_answer)

    def _release(self, held: SeenLock) -> None:
        self._held = None
        held.until_ms = min(held.until_ms, self._cluster.now_ms)
        own = Compare(LOCK, Target.CREATE, Relation.EQUAL, held.token)
        body = encode(Txn([own], [DeleteRange(LOCK)]))
        self.ask(CommandRequest(command=body), TxnAnswer, lambda outcome: None)

    def _lock(self) -> None:
        if self._lease is None:
            self._granted(self._lock)
            return
        lease = self._lease
        if self._held is not None:
            self._release(self._held)
            return
        free = Compare(LOCK, Target.CREATE, Relation.EQUAL, 0)
        body = encode(Txn([free], [Put(LOCK, b"", lease.lease), Range(LOCK)]))

        def on_answer(outcome: Any) -> None:
            if not isinstance(outcome, tuple) or not outcome[1].succeeded or self._lease is not lease:
                return
            token = outcome[1].answers[1].kvs[0].create_revision
            now_ms = self._cluster.now_ms
            until_ms = max(lease.sent_ms) + lease.ttl_ms
            self._held = SeenLock(LOCK, token, now_ms, until_ms)
            self._histories.locks.append(self._held)
            self._cluster.trace.count("store: locked")

        self.ask(CommandRequest(command=body), TxnAnswer, on_answer)
