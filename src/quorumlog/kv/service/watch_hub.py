"""WatchHub: who hears of which changes.

A watch in step gets each change as the store tells it. One that is behind, because it began in the past,
because its client reads slowly, or because the store was loaded anew, asks for history until it has
caught up. `next_revision` of a watch only rises, and every change below it was told: no gap, nothing
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.errors import ConnectionFull, LedgerError
from quorumlog.kv.errors import InvalidRequest, error_of
from quorumlog.kv.requests.limits import contains
from quorumlog.kv.requests.messages import EventsResponse, WatchRequest
from quorumlog.kv.requests.operations import History, decode_key_value, encode
from quorumlog.kv.service.sessions import Session, refuse
from quorumlog.kv.store.changes import Changed
from quorumlog.kv.store.keyspace import Written

SLOW_BYTES = 4 << 20
"""A client that leaves so much unread falls back to history."""
CAUGHT_UP_BYTES = 1 << 20
RETRY_MS = 100.0
MOST_ASKING = 4
"""Watches of one client that ask for history at a time: nobody knows how much each is told."""
MOST_WATCHES, FULL_CLIENTS = 10_000, 10
"""Of one client, and of so many such clients on a member: every change is looked at for each range."""
RETRY_FULL_MS = 1_000
PROGRESS_MS = 60_000.0
"""A watch that hears nothing is told so often how far the store is."""

AskHistory = Callable[[bytes, Callable[[bytes | LedgerError], None]], None]
_raw_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw])
_history = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[msgspec.Raw, msgspec.Raw]]])


class OneWatch:
    def __init__(self, session: Session, asked: WatchRequest, next_revision: int) -> None:
        self.session = session
        self.number = asked.request_id
        self.asked = asked
        self.bounds = asked.key, asked.end
        self.next_revision = next_revision
        self.in_step = False
        self.is_asking = False
        self.retry_ms = 0.0

    def wants(self, is_deletion: bool) -> bool:
        return self.asked.deletions if is_deletion else self.asked.puts


class WatchHub:
    def __init__(self, ask_history: AskHistory, most_watches: int = MOST_WATCHES) -> None:
        """`most_watches`: of one client."""
        self._ask_history = ask_history
        self._most_watches = most_watches
        self._watches: dict[Session, dict[int, OneWatch]] = {}
        """By the id of their request."""
        self._count = 0
        self._of_key: dict[bytes, dict[OneWatch, None]] = {}
        """In step, of one key each."""
        self._of_range: dict[OneWatch, None] = {}
        """In step, of ranges."""
        self._behind: dict[OneWatch, None] = {}
        self._asking: dict[Session, int] = {}
        """How many watches do."""
        self._waiting: dict[Session, dict[OneWatch, None]] = {}
        """Until another one of theirs has its answer."""
        self.told = 0
        """The store has told of all changes up to this revision."""
        self._next_progress_ms = 0.0

    def __len__(self) -> int:
        return self._count

    # ---------------------------------------------------------------- watches

    def add(self, session: Session, asked: WatchRequest) -> None:
        """Raises ConnectionFull, InvalidRequest."""
        watches = self._watches.get(session, {})
        if asked.request_id in watches:
            raise InvalidRequest(f"watch {asked.request_id} is there already")
        for whose, count, most in (
            ("this connection", len(watches), self._most_watches),
            ("this member", self._count, self._most_watches * FULL_CLIENTS),
        ):
            if count >= most:
                raise ConnectionFull(
                    f"{whose} has {count} watches, as many as it may: cancel some, watch ranges of keys,"
                    " or raise the limit (quorumlog kv serve --max-watches)",
                    retry_after_ms=RETRY_FULL_MS,
                )
        watch = OneWatch(session, asked, asked.first_revision or self.told + 1)
        self._watches.setdefault(session, watches)[asked.request_id] = watch
        self._count += 1
        self._send(watch, [])
        if asked.first_revision:
            self._behind[watch] = None
            self._catch_up(watch, 0.0)
        else:
            self._step_in(watch)

    def cancel(self, session: Session, number: int) -> None:
        watch = self._watches.get(session, {}).pop(number, None)
        if watch is not None:
            self._count -= 1
            self._forget(watch)

    def lost(self, session: Session) -> None:
        for number in list(self._watches.get(session, ())):
            self.cancel(session, number)
        self._watches.pop(session, None)
        self._asking.pop(session, None)
        self._waiting.pop(session, None)

    def sessions(self) -> list[Session]:
        """That have watches."""
        return [session for session, watches in self._watches.items() if watches]

    def _step_in(self, watch: OneWatch) -> None:
        self._behind.pop(watch, None)
        watch.in_step = True
        if watch.asked.end:
            self._of_range[watch] = None
        else:
            self._of_key.setdefault(watch.asked.key, {})[watch] = None

    def _fall_behind(self, watch: OneWatch) -> None:
        self._forget(watch)
        self._behind[watch] = None

    def _forget(self, watch: OneWatch) -> None:
        self._behind.pop(watch, None)
        self._waiting.get(watch.session, {}).pop(watch, None)
        if not watch.in_step:
            return
        watch.in_step = False
        if watch.asked.end:
            del self._of_range[watch]
        else:
            of_key = self._of_key[watch.asked.key]
            del of_key[watch]
            if not of_key:
                del self._of_key[watch.asked.key]

    def _end(self, watch: OneWatch, error: LedgerError) -> None:
        self.cancel(watch.session, watch.number)
        refuse(watch.session, watch.number, error)

    # ---------------------------------------------------------------- what the store tells

    def changed(self, changes: list[Changed]) -> None:
        """In the order of revisions."""
        found: dict[OneWatch, list[Any]] = {}
        for change in changes:
            assert change.revision > self.told, (change.revision, self.told)
            if not change.written:
                self._tell(found)
                found = {}
                for watch in self._in_step():
                    watch.next_revision = max(watch.next_revision, self.told + 1)
                    self._fall_behind(watch)
            self.told = change.revision
            if not self._of_range and not self._of_key:
                continue
            for written in change.written:
                self._match(change.revision, written, found)
        self._tell(found)

    def _tell(self, found: dict[OneWatch, list[Any]]) -> None:
        for watch, events in found.items():
            if watch.session.unsent_bytes > SLOW_BYTES:
                self._fall_behind(watch)
            else:
                watch.next_revision = self.told + 1
                self._send(watch, events)

    def _in_step(self) -> list[OneWatch]:
        return [each for of in self._watches.values() for each in of.values() if each.in_step]

    def _match(self, revision: int, written: Written, found: dict[OneWatch, list[Any]]) -> None:
        watches = self._of_key.get(written.key, ())
        ranges = [w for w in self._of_range if contains(w.bounds, written.key)]
        if not watches and not ranges:
            return
        is_deletion = decode_key_value(written.kv).version == 0
        kv = msgspec.Raw(written.kv)
        with_prev = kv, None if written.prev is None else msgspec.Raw(written.prev)
        for watch in (*watches, *ranges):
            if revision >= watch.next_revision and watch.wants(is_deletion):
                event = with_prev if watch.asked.prev_kv else (kv,)
                found.setdefault(watch, []).append(event)

    @staticmethod
    def _send(watch: OneWatch, events: list[Any]) -> None:
        watch.session.send(
            EventsResponse(request_id=watch.number, next_revision=watch.next_revision, events=events)
        )

    def begins(self, revision: int) -> None:
        """The store holds what it did not tell of: what happened before is read from its history."""
        self.told = revision
        for watch in self._in_step():
            self._fall_behind(watch)

    def compacted(self) -> None:
        """Those that wait for changes far behind what is compacted now are told how far they are."""
        for watch in [*self._of_range, *(w for of_key in self._of_key.values() for w in of_key)]:
            if watch.next_revision <= self.told:
                watch.next_revision = self.told + 1
                self._send(watch, [])

    # ---------------------------------------------------------------- history

    def tick(self, now_ms: float) -> None:
        for watch in list(self._behind):
            self._catch_up(watch, now_ms)
        if now_ms >= self._next_progress_ms:
            self._next_progress_ms = now_ms + PROGRESS_MS
            self.compacted()

    def _catch_up(self, watch: OneWatch, now_ms: float) -> None:
        if watch.is_asking or watch.session.unsent_bytes > CAUGHT_UP_BYTES:
            return
        if watch.next_revision > self.told:
            self._step_in(watch)
            return
        session = watch.session
        asking = self._asking.get(session, 0)
        if asking >= MOST_ASKING:
            self._waiting.setdefault(session, {})[watch] = None
            return
        self._asking[session] = asking + 1
        watch.is_asking = True
        asked = watch.asked
        question = encode(History(watch.next_revision, asked.key, asked.end, prev_kv=asked.prev_kv))

        def answered(outcome: bytes | LedgerError) -> None:
            watch.is_asking = False
            left = self._asking.get(session, 0) - 1
            if left > 0:
                self._asking[session] = left
            else:
                self._asking.pop(session, None)
            if isinstance(outcome, LedgerError):
                return  # the next tick asks again
            if watch in self._behind:  # it was not cancelled meanwhile
                self._answered(watch, outcome)
            self._go_on(session)

        self._ask_history(question, answered)

    def _go_on(self, session: Session) -> None:
        waiting = self._waiting.get(session)
        while waiting and self._asking.get(session, 0) < MOST_ASKING:
            self._catch_up(waiting.popitem()[0], 0.0)

    def _answered(self, watch: OneWatch, outcome: bytes) -> None:
        code, second, third = _raw_head.decode(outcome)
        if code:
            message = msgspec.msgpack.decode(second, type=str)
            self._end(watch, error_of(code, message, msgspec.msgpack.decode(third, type=int)))
            return
        self._told_history(watch, third)

    def _told_history(self, watch: OneWatch, answer: msgspec.Raw) -> None:
        _, next_revision, events = _history.decode(answer)
        told: list[Any] = []
        for kv, prev in events:
            if watch.wants(decode_key_value(kv).version == 0):
                told.append((kv, prev) if watch.asked.prev_kv else (kv,))
        watch.next_revision = max(watch.next_revision, next_revision)
        if told:
            self._send(watch, told)
        self._catch_up(watch, 0.0)
