"""A member's service for clients of the store, apart from applying commands: values in, values out; time
is an input, so that the simulator runs the same code."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ConnectionFull, LedgerError, OutcomeUnknown, ResultUnknown
from quorumlog.kv.errors import ClusterChanged, InvalidRequest, KeyValueError, NoSpace, error_of
from quorumlog.kv.requests import (
    CARRIED_OUT,
    FROM_KEY,
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    TOO_LARGE,
    AnswerResponse,
    CancelRequest,
    Command,
    CommandRequest,
    Compact,
    EventsResponse,
    Grant,
    History,
    KeepAliveRequest,
    LeaseKeys,
    LeaseKeysAnswer,
    Put,
    QuestionRequest,
    Request,
    Response,
    Revoke,
    RevokeAnswer,
    StatusAnswer,
    StoreStats,
    StoreStatsAnswer,
    TimeToLiveRequest,
    Txn,
    WatchRequest,
    check,
    decode_command_of_client,
    decode_key_value,
    done,
    encode,
    may_answer_much,
    read_answer,
)
from quorumlog.kv.store.keyspace import (
    Begins,
    Changed,
    CompactedTo,
    Ended,
    Feed,
    Granted,
    LeaseState,
    Written,
)
from quorumlog.kv.store.machine import MACHINE_NAME
from quorumlog.net.errors import error_response
from quorumlog.net.hello import STORE, HelloResponse
from quorumlog.node import AppendOutcome, NodeHandle
from quorumlog.node.machine_driver import Answer
from quorumlog.version import VERSION

# ---------------------------------------------------------------- Session
# One client's connection, as the service sees it.


class ServiceSession(Protocol):
    def send(self, message: Response) -> None:
        """Nothing happens once it is closed."""

    def abort(self) -> None:
        """Close the connection: its client turns to another member."""

    @property
    def unsent_bytes(self) -> int: ...

    def refusal_to_read(self, keys: list[bytes]) -> LedgerError | None:
        """Why its user may not see them; None: it may."""


def answer(session: ServiceSession, request_id: int, body: bytes) -> None:
    session.send(AnswerResponse(request_id=request_id, answer=body))


def refuse(session: ServiceSession, request_id: int, error: LedgerError) -> None:
    session.send(error_response(request_id, error))


# ----------------------------------------------------------------
# Commands in batches, and leases whose time is up.

BATCH_COMMANDS = 1024
BATCH_BYTES = 2 << 20
TIMEOUT_MS = 5_000

ProposalCallback = Callable[[bytes | LedgerError], None]
"""Gets the machine's answer, or the refusal of the log."""


class _Waiting(NamedTuple):
    body: bytes
    done: ProposalCallback
    is_alone: bool


class CommandBatches:
    def __init__(self, member: NodeHandle) -> None:
        self._member = member
        self._waiting: list[_Waiting] = []

    def add(self, body: bytes, done: ProposalCallback, *, alone: bool = False) -> None:
        if not self._waiting:
            self._member.enter(self._append)
        self._waiting.append(_Waiting(body, done, alone))

    def discard(self) -> None:
        self._waiting.clear()

    def _append(self) -> None:
        waiting, self._waiting = self._waiting, []
        start = size_bytes = 0
        for place, each in enumerate(waiting):
            if place > start and (
                place - start >= BATCH_COMMANDS
                or size_bytes + len(each.body) > BATCH_BYTES
                or each.is_alone
                or waiting[place - 1].is_alone
            ):
                self._append_part(waiting[start:place])
                start, size_bytes = place, 0
            size_bytes += len(each.body)
        if waiting:
            self._append_part(waiting[start:])

    def _append_part(self, part: list[_Waiting]) -> None:
        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, AppendReceipt):
                for each in part:
                    each.done(outcome)
                return
            assert not outcome.failures, outcome.failures
            for each, result in zip(part, outcome.results, strict=True):
                assert result is not None
                each.done(result)

        batch = EntryBatch.from_bodies([each.body for each in part])
        self._member.append(batch, MACHINE_NAME, TIMEOUT_MS, done, self)


# ----------------------------------------------------------------
# LeaseClock: when the leader proposes that a lease ends. Nothing else ends one, so a lease never ends
# early by this clock, which goes on while the machine sleeps.
#
# Who becomes the leader gives every lease its full TTL. A keep-alive is no entry: it counts once a
# majority has confirmed the leader and the store has applied what was committed by then, from when it
# arrived.

Propose = Callable[[bytes, ProposalCallback], None]


class LeaseClock:
    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._leases: dict[int, LeaseState] = {}
        self._deadlines_ms: dict[int, float] = {}
        """Only while this member leads."""
        self._ending: dict[int, LeaseState] = {}
        """Whose end is proposed: nothing keeps them alive any more."""
        self._term: int | None = None

    def lead(self, term: int | None, now_ms: float) -> None:
        """In which term this member leads, if it does; called as often as one likes."""
        if term == self._term:
            return
        self._term = term
        self._ending.clear()
        self._deadlines_ms.clear()
        if term is not None:
            for number, lease in self._leases.items():
                self._deadlines_ms[number] = now_ms + lease.ttl_ms

    def begins(self, leases: dict[int, LeaseState], now_ms: float) -> None:
        self._leases = dict(leases)
        term, self._term = self._term, None
        self.lead(term, now_ms)

    def granted(self, number: int, lease: LeaseState, now_ms: float) -> None:
        self._leases[number] = lease
        if self._term is not None:
            self._deadlines_ms[number] = now_ms + lease.ttl_ms

    def ended(self, number: int) -> None:
        self._leases.pop(number, None)
        self._deadlines_ms.pop(number, None)
        self._ending.pop(number, None)

    def keep_alive(self, number: int, term: int | None, arrived_ms: float) -> int:
        """The TTL, which runs from `arrived_ms`; 0: there is no such lease, or it is about to end.
        `term`: in which the leader was confirmed after the arrival."""
        lease = self._leases.get(number)
        if lease is None or term is None or term != self._term or number in self._ending:
            return 0
        deadline_ms = arrived_ms + lease.ttl_ms
        self._deadlines_ms[number] = max(self._deadlines_ms.get(number, 0.0), deadline_ms)
        return lease.ttl_ms

    def left_ms(self, number: int, now_ms: float) -> int:
        return max(0, int(self._deadlines_ms.get(number, now_ms) - now_ms))

    def tick(self, now_ms: float) -> None:
        if self._term is None:
            return
        late = [number for number, at_ms in self._deadlines_ms.items() if at_ms <= now_ms]
        for number in late:
            del self._deadlines_ms[number]
            self._end(number, self._leases[number], self._term)

    def next_ms(self) -> float:
        return min(self._deadlines_ms.values(), default=float("inf"))

    def _end(self, number: int, lease: LeaseState, term: int) -> None:
        self._ending[number] = lease

        def proposed(outcome: bytes | LedgerError) -> None:
            if isinstance(outcome, bytes):
                with suppress(KeyValueError):  # somebody else has ended it
                    read_answer(outcome, RevokeAnswer)
                return
            if self._term != term or self._ending.get(number) is not lease:
                return
            if not isinstance(outcome, OutcomeUnknown):
                del self._ending[number]
            self._deadlines_ms[number] = 0.0  # once more

        self._propose(encode(Revoke(number, lease.granted_at)), proposed)


# ---------------------------------------------------------------- WatchHub: who hears of which changes
# A watch in step gets each change as the store tells it. One that is behind, because it began in the
# past, because its client reads slowly, or because the store was loaded anew, asks for history until it
# has caught up. `next_revision` of a watch only rises, and every change below it was told: no gap,
# nothing twice.
#
# Any number of watches may hear of any number of changes. So what the store tells is a round: one watch
# after the other hears of it, whole, and the member does other things between some and the next.

SLOW_BYTES = 4 << 20
"""A client that leaves so much unread falls back to history."""
CAUGHT_UP_BYTES = 1 << 20
MOST_ASKING = 4
"""Watches of one client that read history at a time: the size of each answer is unknown."""
MOST_WATCHES, FULL_CLIENTS = 10_000, 10
"""Of one client, and of so many such clients on a member: each range is compared with every round."""
SLICE = 4_000
"""At once: changes of a round that begins, comparisons of a watch with it, and events."""
SEND = 20
"""As many of those as an answer takes time, beside its events."""
MOST_CHANGES = 2_000
"""Of a round, but at least one revision; and one that changes more is read from history."""
ROUND_BYTES = 1 << 20
"""But at least one revision."""
CHANGE_BYTES = 200
"""Of memory, without its contents."""
MOST_UNDELIVERED_BYTES = 32 << 20
"""Of changes not yet sent to watches: beyond them they read history."""
RETRY_FULL_MS = 1_000
PROGRESS_MS = 60_000.0
"""Interval of progress messages for an idle watch."""

AskHistory = Callable[[bytes, Callable[[bytes | LedgerError], None]], None]
_raw_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw])
_history = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])
_pairs = msgspec.msgpack.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]])


class OneWatch:
    def __init__(self, session: ServiceSession, request: WatchRequest, next_revision: int) -> None:
        self.session = session
        self.number = request.request_id
        self.request = request
        self.bounds = request.key, request.end
        self.next_revision = next_revision
        self.in_step = False

    def wants(self, is_deletion: bool) -> bool:
        return self.request.deletions if is_deletion else self.request.puts


class _WatchRound:
    """What each watch in step is told next: changes; without any, how far the store is; or, where some
    are not known, that it falls behind."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self.session: ServiceSession | None = None
        """The session whose watches are notified; None: all."""
        self.revision = 0
        """Of its last change, or of the store."""
        self.size_bytes = 0
        self._changes: list[tuple[int, Written]] = []
        self._events: list[tuple[int, bool, Any, Any]] = []
        """(revision, is it a deletion, with and without what was before) of each change."""
        self.places: dict[bytes, list[int]] = {}
        """Of the changes of each key."""
        self._keys: list[bytes] = []
        self.watches: Iterator[OneWatch] | None = None
        """Those that have not heard of it; None: it has not begun."""

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Changed, size_bytes: int) -> None:
        self._changes += [(change.revision, written) for written in change.written]
        self.revision = change.revision
        self.size_bytes += size_bytes

    def begin(self, watches: Iterator[OneWatch]) -> None:
        self.watches = watches
        for place, (revision, written) in enumerate(self._changes):
            self.places.setdefault(written.key, []).append(place)
            kv = msgspec.Raw(written.kv)
            prev = None if written.prev is None else msgspec.Raw(written.prev)
            is_deletion = decode_key_value(written.kv).version == 0
            self._events.append((revision, is_deletion, (kv, prev), (kv,)))
        self._keys = sorted(self.places)

    def keys_of(self, watch: OneWatch) -> list[bytes]:
        start, end = watch.bounds
        if not end:
            return [start] if start in self.places else []
        keys = self._keys
        stop = len(keys) if end == FROM_KEY else bisect_left(keys, end)
        return keys[bisect_left(keys, start) : stop]

    def events_for(self, watch: OneWatch, places: list[int]) -> list[Any]:
        first, prev_kv = watch.next_revision, watch.request.prev_kv
        return [
            with_prev if prev_kv else alone
            for revision, is_deletion, with_prev, alone in map(self._events.__getitem__, places)
            if revision >= first and watch.wants(is_deletion)
        ]


class WatchHub:
    def __init__(self, ask_history: AskHistory, most_watches: int = MOST_WATCHES) -> None:
        """`most_watches`: of one client."""
        self._ask_history = ask_history
        self.most_watches = most_watches
        self._watches: dict[ServiceSession, dict[int, OneWatch]] = {}
        """By the id of their request."""
        self._count = 0
        self._of_key: dict[bytes, dict[OneWatch, None]] = {}
        """In step, of one key each."""
        self._of_range: dict[OneWatch, None] = {}
        """In step, of ranges."""
        self._behind: dict[ServiceSession, OrderedDict[OneWatch, None]] = {}
        """But those that ask for history."""
        self._asking = Counter[ServiceSession]()
        """How many watches do."""
        self._rounds: deque[_WatchRound] = deque()
        self._undelivered_bytes = 0
        self.delivered_revision = 0
        """All changes up to this revision were published."""
        self._sent_revision = 0
        """Those in step have been told of all up to this one."""
        self._next_progress_ms = 0.0

    def __len__(self) -> int:
        return self._count

    @property
    def behind(self) -> int:
        """How many read history."""
        return sum(map(len, self._behind.values())) + sum(self._asking.values())

    # ---------------------------------------------------------------- watches

    def add(self, session: ServiceSession, request: WatchRequest) -> None:
        """Raises ConnectionFull, InvalidRequest."""
        watches = self._watches.get(session, {})
        if request.request_id in watches:
            raise InvalidRequest(f"watch {request.request_id} is there already")
        for whose, count, most in (
            ("this connection", len(watches), self.most_watches),
            ("this member", self._count, self.most_watches * FULL_CLIENTS),
        ):
            if count >= most:
                raise ConnectionFull(
                    f"{whose} has {count} watches, its maximum: cancel some, watch ranges of keys,"
                    " or raise the limit (quorumlog kv serve --max-watches)",
                    retry_after_ms=RETRY_FULL_MS,
                )
        watch = OneWatch(session, request, request.first_revision or self.delivered_revision + 1)
        self._watches.setdefault(session, watches)[request.request_id] = watch
        self._count += 1
        self._send(watch, [])
        if request.first_revision:
            self._catch_up(watch)
        else:
            self._step_in(watch)

    def cancel(self, session: ServiceSession, number: int) -> None:
        watch = self._watches.get(session, {}).pop(number, None)
        if watch is not None:
            self._count -= 1
            self._forget(watch)

    def lost(self, session: ServiceSession) -> None:
        for number in list(self._watches.get(session, ())):
            self.cancel(session, number)
        self._watches.pop(session, None)
        self._asking.pop(session, None)
        self._behind.pop(session, None)

    def sessions(self) -> list[ServiceSession]:
        """That have watches."""
        return [session for session, watches in self._watches.items() if watches]

    def end_refused(
        self, refusal_of: Callable[[ServiceSession, WatchRequest], LedgerError | None]
    ) -> None:
        """Rights have moved."""
        for watch in [each for of in self._watches.values() for each in of.values()]:
            refusal = refusal_of(watch.session, watch.request)
            if refusal is not None:
                self._end(watch, refusal)

    def _step_in(self, watch: OneWatch) -> None:
        watch.in_step = True
        if watch.request.end:
            self._of_range[watch] = None
        else:
            self._of_key.setdefault(watch.request.key, {})[watch] = None

    def _fall_behind(self, watch: OneWatch) -> None:
        self._forget(watch)
        watch.next_revision = max(watch.next_revision, self._sent_revision + 1)
        self._behind.setdefault(watch.session, OrderedDict())[watch] = None

    def _forget(self, watch: OneWatch) -> None:
        if watch.session in self._behind:
            self._behind[watch.session].pop(watch, None)
        if not watch.in_step:
            return
        watch.in_step = False
        if watch.request.end:
            del self._of_range[watch]
        else:
            of_key = self._of_key[watch.request.key]
            del of_key[watch]
            if not of_key:
                del self._of_key[watch.request.key]

    def _end(self, watch: OneWatch, error: LedgerError) -> None:
        self.cancel(watch.session, watch.number)
        refuse(watch.session, watch.number, error)

    # ---------------------------------------------------------------- what the store tells

    def changed(self, changes: list[Changed]) -> None:
        """In the order of revisions."""
        for change in changes:
            assert change.revision > self.delivered_revision, (change.revision, self.delivered_revision)
            self.delivered_revision = change.revision
            if not (self._rounds or self._of_range or self._of_key):
                self._sent_revision = self.delivered_revision
            elif not 0 < len(change.written) <= MOST_CHANGES:
                self._lose()
            else:
                self._add(change)
        self.tell()

    def _add(self, change: Changed) -> None:
        size_bytes = sum(CHANGE_BYTES + len(each.kv) + len(each.prev or b"") for each in change.written)
        if self._undelivered_bytes + size_bytes > MOST_UNDELIVERED_BYTES:
            self._lose()
            return
        progress = self._pop_progress()
        last = self._rounds[-1] if self._rounds else None
        if (
            not last
            or last.watches is not None
            or len(last) + len(change.written) > MOST_CHANGES
            or last.size_bytes + size_bytes > ROUND_BYTES
        ):
            self._rounds.append(last := _WatchRound())
        last.add(change, size_bytes)
        self._undelivered_bytes += size_bytes
        if progress:
            self._add_progress()

    def _lose(self) -> None:
        """Nobody in step is told of what has changed up to now: history has it."""
        self._rounds.clear()
        self._undelivered_bytes = 0
        lost = _WatchRound(is_lost=True)
        lost.revision = self.delivered_revision
        self._rounds.append(lost)

    def begins(self, revision: int) -> None:
        """The store holds changes it did not publish: earlier ones are read from its history."""
        self.delivered_revision = revision
        self._sent_revision = min(self._sent_revision, revision)
        self._lose()
        self.tell()

    def compacted(self) -> None:
        """Watches far behind the newly compacted revision are sent their progress."""
        self._pop_progress()
        self._add_progress()
        self.tell()

    def ask_progress(self, session: ServiceSession) -> None:
        """Send its up-to-date watches their progress, after all changes up to now."""
        if session not in self._watches or any(each.session is session for each in self._rounds):
            return
        self._add_progress()
        self._rounds[-1].session = session
        self.tell()

    def _pop_progress(self) -> bool:
        """True: it was to be told next, after all changes."""
        last = self._rounds[-1] if self._rounds else None
        if last is None or last.watches is not None or last.is_lost or last or last.session:
            return False
        self._rounds.pop()
        return True

    def _add_progress(self) -> None:
        progress = _WatchRound()
        progress.revision = self.delivered_revision
        self._rounds.append(progress)

    @property
    def is_telling(self) -> bool:
        """There is more to send: call `tell` again."""
        return bool(self._rounds)

    def tell(self) -> None:
        """Send to some up-to-date watches the changes not sent yet."""
        left = SLICE
        while self._rounds and left > 0:
            now = self._rounds[0]
            if now.watches is None:
                now.begin(self._hearing(now))
                left -= len(now)
            assert now.watches is not None
            for watch in now.watches:
                if watch.in_step and watch.next_revision <= now.revision:
                    left -= self._tell(now, watch)
                left -= 1
                if left <= 0:
                    return
            self._sent_revision = max(self._sent_revision, now.revision)
            self._undelivered_bytes -= self._rounds.popleft().size_bytes

    def _hearing(self, now: _WatchRound) -> Iterator[OneWatch]:
        if now.is_lost or not now:
            watches = self._watches.values() if now.session is None else [self._watches[now.session]]
            yield from [each for of in watches for each in of.values() if each.in_step]
            return
        yield from list(self._of_range)
        for key in now.places:
            yield from list(self._of_key.get(key, ()))

    def _tell(self, now: _WatchRound, watch: OneWatch) -> int:
        """How much it took."""
        if now.is_lost:
            self._fall_behind(watch)
            return 1
        keys = now.keys_of(watch)
        if keys and watch.session.unsent_bytes > SLOW_BYTES:
            self._fall_behind(watch)
            return 1
        places = sorted(chain.from_iterable(now.places[key] for key in keys))
        events = now.events_for(watch, places)
        if events or not now:
            watch.next_revision = now.revision + 1
            self._send(watch, events)
            return SEND + len(places)
        return len(places)

    @staticmethod
    def _send(watch: OneWatch, events: Any) -> None:
        watch.session.send(
            EventsResponse(request_id=watch.number, next_revision=watch.next_revision, events=events)
        )

    # ---------------------------------------------------------------- history

    def tick(self, now_ms: float) -> None:
        for session in list(self._behind):
            self._go_on(session)
        if now_ms >= self._next_progress_ms:
            self._next_progress_ms = now_ms + PROGRESS_MS
            self.compacted()

    def _catch_up(self, watch: OneWatch) -> None:
        self._behind.setdefault(watch.session, OrderedDict())[watch] = None
        self._go_on(watch.session)

    def _go_on(self, session: ServiceSession) -> None:
        behind = self._behind.get(session)
        while behind and self._asking[session] < MOST_ASKING and session.unsent_bytes <= CAUGHT_UP_BYTES:
            watch, _ = behind.popitem(last=False)
            if watch.next_revision > self.delivered_revision:
                self._step_in(watch)
            else:
                self._ask(watch)
        if not self._behind.get(session, True):
            del self._behind[session]

    def _ask(self, watch: OneWatch) -> None:
        session, request = watch.session, watch.request
        self._asking[session] += 1
        question = encode(
            History(watch.next_revision, request.key, request.end, prev_kv=request.prev_kv)
        )

        def on_answer(outcome: bytes | LedgerError) -> None:
            self._asking[session] -= 1
            if self._asking[session] <= 0:
                del self._asking[session]
            is_there = self._watches.get(session, {}).get(watch.number) is watch
            if isinstance(outcome, LedgerError):
                if is_there:  # the next tick asks again
                    self._behind.setdefault(session, OrderedDict())[watch] = None
                return
            if is_there:
                self._deliver_history(watch, outcome)
            self._go_on(session)

        self._ask_history(question, on_answer)

    def _deliver_history(self, watch: OneWatch, outcome: bytes) -> None:
        code, second, third = _raw_head.decode(outcome)
        if code:
            message = msgspec.msgpack.decode(second, type=str)
            self._end(watch, error_of(code, message, msgspec.msgpack.decode(third, type=int)))
            return
        _, next_revision, events = _history.decode(third)
        wanted: Any = events
        if not (watch.request.puts and watch.request.deletions):
            pairs = _pairs.decode(events)
            wanted = [each for each in pairs if watch.wants(decode_key_value(each[0]).version == 0)]
        watch.next_revision = max(watch.next_revision, next_revision)
        if wanted:  # without a filter none is also sent: it says how far the watch is
            self._send(watch, wanted)
        self._catch_up(watch)


# ---------------------------------------------------------------- Compactor: when history is discarded

SAMPLES = 12
"""Of one period: history ends that much too late at most."""


class Compactor:
    def __init__(self, auto_compaction_ms: float) -> None:
        """0: never."""
        self.period_ms = auto_compaction_ms
        self._samples: deque[tuple[float, int]] = deque()
        """(when, newest revision then), while this member leads."""

    def tick(self, now_ms: float, revision: int, *, leads: bool) -> int | None:
        """The revision to compact to, if it is time."""
        if not leads or not self.period_ms:
            self._samples.clear()
            return None
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self.period_ms / SAMPLES:
            samples.append((now_ms, revision))
        due = None
        while samples and now_ms - samples[0][0] >= self.period_ms:
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
    """History older than this is discarded; 0: never automatically."""
    quota_bytes: int = 8 << 30
    """Above it puts are refused, while deletions and compaction continue."""
    etcd_gateway: str = ""
    """URL of this member's gateway, for clients that ask for all of them."""
    max_watches: int = MOST_WATCHES
    """Limit per client; all clients together: ten times as many."""
    etcd: str = ""
    """URL of this member's port for etcd's gRPC API."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    leads: bool
    revision: int
    compacted_revision: int
    keys: int
    leases: int
    watches: int
    size_bytes: int
    quota_bytes: int
    behind: int
    """Watches that read history."""
    carried_out: Mapping[str, int]
    """See `Feed`."""


class KeyValueService:
    def __init__(
        self, member: NodeHandle, feed: Feed, options: StoreOptions, now_ms: Callable[[], float]
    ) -> None:
        """`now_ms`: a clock that continues while the machine sleeps. The owner calls `drain` when the
        feed wakes, and `tick` every `TICK_MS`."""
        self._member = member
        self._feed = feed
        self._options = options
        self._now_ms = now_ms
        self._commands = CommandBatches(member)
        self.leases = LeaseClock(self._commands.add)
        self._compactor = Compactor(options.auto_compaction_ms)
        self._compacted = 0
        """History below is deleted, as far as reported by the store."""
        self.watches = WatchHub(self._ask_history, options.max_watches)
        self._is_telling = False
        self._kept_alive: list[tuple[ServiceSession, KeepAliveRequest, float]] = []
        self._stats = StoreStatsAnswer()
        self._is_looking = False
        self._had_leader_ms = now_ms()
        """Or watches were sent away last."""

    @property
    def leads(self) -> bool:
        return self._member.leads_in is not None

    @property
    def compacted_revision(self) -> int:
        """History below is deleted, as far as reported by the store."""
        return self._compacted

    def configure(self, options: StoreOptions) -> None:
        self._options = options
        self._compactor.period_ms = options.auto_compaction_ms
        self.watches.most_watches = options.max_watches

    # ---------------------------------------------------------------- requests

    def request(self, session: ServiceSession, request: Request) -> None:
        try:
            self._request(session, request)
        except (InvalidRequest, NoSpace, ConnectionFull) as refusal:
            refuse(session, request.request_id, refusal)

    def _request(self, session: ServiceSession, request: Request) -> None:
        number = request.request_id
        if isinstance(request, CommandRequest):
            command = self._checked(request.command)
            body = encode(command) if isinstance(command, Grant) else request.command
            commanded = partial(self._commanded, session, number)
            self._commands.add(body, commanded, alone=may_answer_much(command))
        elif isinstance(request, QuestionRequest):
            done = partial(self._answered, session, number)
            self._query(request.question, done, session, here=request.here)
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
        """A client has read its pending answers: requests may wait for that."""
        self._member.enter(lambda: None)

    def lost(self, session: ServiceSession) -> None:
        """Its connection has ended."""
        self.watches.lost(session)
        self._member.enter(lambda: self._member.discard(session))

    def _enter(self, act: Callable[[NodeHandle], None], client: object = None) -> None:
        self._member.enter(lambda: act(self._member), client)

    def greet(
        self, session: ServiceSession, known_cluster_id: str, greeted: Callable[[HelloResponse], None]
    ) -> None:
        """`known_cluster_id`: of the store that the client saw before, if any. `greeted` gets the first
        or last message of its connection."""

        def greet(member: NodeHandle) -> None:
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

    def _commanded(self, session: ServiceSession, number: int, outcome: bytes | LedgerError) -> None:
        if isinstance(outcome, LedgerError):
            refuse(session, number, outcome)
        elif outcome == CARRIED_OUT or len(outcome) > MAX_ANSWER_BYTES:
            refuse(session, number, ResultUnknown(TOO_LARGE))
        elif len(outcome) > SMALL_BYTES and session.unsent_bytes > MOST_UNREAD_BYTES:
            unread = "it took effect; its response was dropped, since earlier responses are unread"
            refuse(session, number, ResultUnknown(unread))
        else:
            answer(session, number, outcome)

    def _query(
        self,
        question: bytes,
        done: Callable[[Answer], None],
        session: ServiceSession | None = None,
        *,
        here: bool = False,
    ) -> None:
        """Ask the state machine, for a client or for this service itself."""
        client = self if session is None else session
        self._enter(
            lambda m: m.ask(MACHINE_NAME, question, READ_TIMEOUT_MS, done, client, here=here), session
        )

    def _answered(self, session: ServiceSession, number: int, outcome: Answer) -> None:
        if isinstance(outcome, LedgerError):
            refuse(session, number, outcome)
        else:
            answer(session, number, outcome[0])

    def _ask_history(self, question: bytes, done: ProposalCallback) -> None:
        def on_answer(outcome: Answer) -> None:
            done(outcome if isinstance(outcome, LedgerError) else outcome[0])

        self._query(question, on_answer, here=True)

    # ---------------------------------------------------------------- leases

    def _confirm_kept_alive(self, member: NodeHandle) -> None:
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
                answer(session, request.request_id, done(self.watches.delivered_revision, kept))

        member.ask(MACHINE_NAME, encode(StoreStats()), READ_TIMEOUT_MS, confirmed, self)

    def ask_lease_keys(
        self, session: ServiceSession, lease: int, done: Callable[[list[bytes] | LedgerError], None]
    ) -> None:
        """For a client whose right to them is not known yet."""

        def on_answer(outcome: Answer) -> None:
            try:
                if isinstance(outcome, LedgerError):
                    raise outcome
                done(read_answer(outcome[0], LeaseKeysAnswer)[1].keys)
            except LedgerError as refusal:
                done(refusal)

        self._query(encode(LeaseKeys(lease)), on_answer, session)

    def _time_to_live(self, session: ServiceSession, request: TimeToLiveRequest) -> None:
        number, lease = request.request_id, request.lease

        def on_answer(outcome: Answer) -> None:
            try:
                if isinstance(outcome, LedgerError):
                    raise outcome
                revision, found = read_answer(outcome[0], LeaseKeysAnswer)
                follows = self._member.refusal_unless_leading()  # only the leader counts
                forbidden = follows or session.refusal_to_read(found.keys)
                if forbidden is not None:
                    raise forbidden
            except LedgerError as refusal:
                refuse(session, number, refusal)
                return
            left_ms = self.leases.left_ms(lease, self._now_ms())
            answer(session, number, done(revision, (found.ttl_ms, left_ms, found.keys)))

        self._query(encode(LeaseKeys(lease)), on_answer, session)

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
        due = self._compactor.tick(now_ms, self.watches.delivered_revision, leads=term is not None)
        if due is not None and due > self._compacted:
            # Whatever comes of it: there is a next time.
            self._commands.add(encode(Compact(due, leads=True)), lambda outcome: None)
        if not self._stats.swept:
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
        """This member's role, in the middle of a turn: the effects follow in the next tick."""
        self._member.enter(self.tick)

    def drain(self) -> None:
        """Take the changes that the store reports."""
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

    def figures(self) -> StoreFigures:
        """Keys and leases as they were when this was asked last."""
        if self._member.is_up:
            self._look()
        return StoreFigures(
            self._member.is_up and self._member.leads_in is not None,
            self.watches.delivered_revision,
            self._compacted,
            self._stats.keys,
            self._stats.leases,
            len(self.watches),
            self._feed.size_bytes,
            self._options.quota_bytes,
            self.watches.behind,
            self._feed.carried_out,
        )

    def _look(self) -> None:
        """How large it is; each query also does a part of what compaction has left to do."""
        if self._is_looking:
            return
        self._is_looking = True

        def on_answer(outcome: bytes | LedgerError) -> None:
            self._is_looking = False
            if not isinstance(outcome, LedgerError):
                self._stats = read_answer(outcome, StoreStatsAnswer)[1]

        self._ask_history(encode(StoreStats()), on_answer)

    def _status(self, session: ServiceSession, number: int) -> None:
        def on_answer(outcome: Answer) -> None:
            if isinstance(outcome, LedgerError):
                refuse(session, number, outcome)
                return
            status = self._member.node().status()
            stats = read_answer(outcome[0], StoreStatsAnswer)[1]
            answer(
                session,
                number,
                done(
                    stats.revision,
                    StatusAnswer(
                        self._member.node().config.member_id,
                        self._member.cluster_id,
                        status.role.value,
                        status.term,
                        "" if status.leader is None else status.leader.member_id,
                        stats.revision,
                        stats.compacted_revision,
                        stats.keys,
                        stats.leases,
                        stats.size_bytes,
                        self._options.quota_bytes,
                        len(self.watches),
                        outcome[1],
                        VERSION,
                        self._member.node().lacks_space,
                        self._options.etcd_gateway,
                        self._options.etcd,
                    ),
                ),
            )

        self._query(encode(StoreStats()), on_answer, session, here=True)


def _grows(command: Command) -> bool:
    if isinstance(command, Txn):
        operations = (*command.success, *command.failure)
        return any(isinstance(each, Put | Txn) and _grows(each) for each in operations)
    return isinstance(command, Put | Grant)
