"""WatchHub: who hears of which changes.

A watch in step gets each change as the store tells it. One that is behind, because it began in the past,
because its client reads slowly, or because the store was loaded anew, asks for history until it has
caught up. `next_revision` of a watch only rises, and every change below it was told: no gap, nothing
twice.

Any number of watches may hear of any number of changes. So what the store tells is a round: one watch
after the other hears of it, whole, and the member does other things between some and the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import msgspec

from quorumlog.errors import ConnectionFull, LedgerError
from quorumlog.kv.errors import InvalidRequest, error_of
from quorumlog.kv.requests.messages import EventsResponse, WatchRequest
from quorumlog.kv.requests.operations import FROM_KEY, History, decode_key_value, encode
from quorumlog.kv.service.sessions import Session, refuse
from quorumlog.kv.store.changes import Changed
from quorumlog.kv.store.keyspace import Written

SLOW_BYTES = 4 << 20
"""A client that leaves so much unread falls back to history."""
CAUGHT_UP_BYTES = 1 << 20
MOST_ASKING = 4
"""Watches of one client that ask for history at a time: nobody knows how much each is told."""
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
"""Of memory, beside what it says."""
MOST_UNTOLD_BYTES = 32 << 20
"""Of changes that watches are still to be told of: beyond them they read history."""
RETRY_FULL_MS = 1_000
PROGRESS_MS = 60_000.0
"""A watch that hears nothing is told so often how far the store is."""

AskHistory = Callable[[bytes, Callable[[bytes | LedgerError], None]], None]
_raw_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw])
_history = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])
_pairs = msgspec.msgpack.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]])
_NO_EVENTS = encode([])


class OneWatch:
    def __init__(self, session: Session, asked: WatchRequest, next_revision: int) -> None:
        self.session = session
        self.number = asked.request_id
        self.asked = asked
        self.bounds = asked.key, asked.end
        self.next_revision = next_revision
        self.in_step = False

    def wants(self, is_deletion: bool) -> bool:
        return self.asked.deletions if is_deletion else self.asked.puts


class _Round:
    """What each watch in step is told next: changes; without any, how far the store is; or, where some
    are not known, that it falls behind."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.is_lost = is_lost
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

    def places_of(self, keys: list[bytes]) -> list[int]:
        return sorted(chain.from_iterable(self.places[key] for key in keys))

    def events_for(self, watch: OneWatch, places: list[int]) -> list[Any]:
        first, prev_kv = watch.next_revision, watch.asked.prev_kv
        return [
            with_prev if prev_kv else alone
            for revision, is_deletion, with_prev, alone in map(self._events.__getitem__, places)
            if revision >= first and watch.wants(is_deletion)
        ]


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
        self._behind: dict[Session, OrderedDict[OneWatch, None]] = {}
        """But those that ask for history."""
        self._asking: dict[Session, int] = {}
        """How many watches do."""
        self._rounds: deque[_Round] = deque()
        self._untold_bytes = 0
        self.told = 0
        """The store has told of all changes up to this revision."""
        self._heard = 0
        """Those in step have been told of all up to this one."""
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
            self._catch_up(watch)
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
        self._behind.pop(session, None)

    def sessions(self) -> list[Session]:
        """That have watches."""
        return [session for session, watches in self._watches.items() if watches]

    def end_refused(self, refusal_of: Callable[[Session, WatchRequest], LedgerError | None]) -> None:
        """Rights have moved."""
        for watch in [each for of in self._watches.values() for each in of.values()]:
            refusal = refusal_of(watch.session, watch.asked)
            if refusal is not None:
                self._end(watch, refusal)

    def _step_in(self, watch: OneWatch) -> None:
        watch.in_step = True
        if watch.asked.end:
            self._of_range[watch] = None
        else:
            self._of_key.setdefault(watch.asked.key, {})[watch] = None

    def _fall_behind(self, watch: OneWatch) -> None:
        self._forget(watch)
        watch.next_revision = max(watch.next_revision, self._heard + 1)
        self._behind.setdefault(watch.session, OrderedDict())[watch] = None

    def _forget(self, watch: OneWatch) -> None:
        if watch.session in self._behind:
            self._behind[watch.session].pop(watch, None)
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
        for change in changes:
            assert change.revision > self.told, (change.revision, self.told)
            self.told = change.revision
            if not (self._rounds or self._of_range or self._of_key):
                self._heard = self.told
            elif not 0 < len(change.written) <= MOST_CHANGES:
                self._lose()
            else:
                self._add(change)
        self.tell()

    def _add(self, change: Changed) -> None:
        size_bytes = sum(CHANGE_BYTES + len(each.kv) + len(each.prev or b"") for each in change.written)
        if self._untold_bytes + size_bytes > MOST_UNTOLD_BYTES:
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
            self._rounds.append(last := _Round())
        last.add(change, size_bytes)
        self._untold_bytes += size_bytes
        if progress:
            self._add_progress()

    def _lose(self) -> None:
        """Nobody in step is told of what has changed up to now: history has it."""
        self._rounds.clear()
        self._untold_bytes = 0
        lost = _Round(is_lost=True)
        lost.revision = self.told
        self._rounds.append(lost)

    def begins(self, revision: int) -> None:
        """The store holds what it did not tell of: what happened before is read from its history."""
        self.told = revision
        self._heard = min(self._heard, revision)
        self._lose()
        self.tell()

    def compacted(self) -> None:
        """Those that wait for changes far behind what is compacted now are told how far they are."""
        self._pop_progress()
        self._add_progress()
        self.tell()

    def _pop_progress(self) -> bool:
        """True: it was to be told next, behind all changes."""
        last = self._rounds[-1] if self._rounds else None
        if last is None or last.watches is not None or last.is_lost or last:
            return False
        self._rounds.pop()
        return True

    def _add_progress(self) -> None:
        progress = _Round()
        progress.revision = self.told
        self._rounds.append(progress)

    @property
    def is_telling(self) -> bool:
        """There is more to tell: call `tell` again."""
        return bool(self._rounds)

    def tell(self) -> None:
        """Some of those in step of what they have not heard."""
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
            self._heard = max(self._heard, now.revision)
            self._untold_bytes -= self._rounds.popleft().size_bytes

    def _hearing(self, now: _Round) -> Iterator[OneWatch]:
        if now.is_lost or not now:
            yield from [each for of in self._watches.values() for each in of.values() if each.in_step]
            return
        yield from list(self._of_range)
        for key in now.places:
            yield from list(self._of_key.get(key, ()))

    def _tell(self, now: _Round, watch: OneWatch) -> int:
        """How much it took."""
        if now.is_lost:
            self._fall_behind(watch)
            return 1
        keys = now.keys_of(watch)
        if keys and watch.session.unsent_bytes > SLOW_BYTES:
            self._fall_behind(watch)
            return 1
        places = now.places_of(keys)
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

    def _go_on(self, session: Session) -> None:
        behind = self._behind.get(session)
        while (
            behind
            and self._asking.get(session, 0) < MOST_ASKING
            and session.unsent_bytes <= CAUGHT_UP_BYTES
        ):
            watch, _ = behind.popitem(last=False)
            if watch.next_revision > self.told:
                self._step_in(watch)
            else:
                self._ask(watch)
        if not self._behind.get(session, True):
            del self._behind[session]

    def _ask(self, watch: OneWatch) -> None:
        session, asked = watch.session, watch.asked
        self._asking[session] = self._asking.get(session, 0) + 1
        question = encode(History(watch.next_revision, asked.key, asked.end, prev_kv=asked.prev_kv))

        def answered(outcome: bytes | LedgerError) -> None:
            left = self._asking.get(session, 0) - 1
            if left > 0:
                self._asking[session] = left
            else:
                self._asking.pop(session, None)
            is_there = self._watches.get(session, {}).get(watch.number) is watch
            if isinstance(outcome, LedgerError):
                if is_there:  # the next tick asks again
                    self._behind.setdefault(session, OrderedDict())[watch] = None
                return
            if is_there:
                self._answered(watch, outcome)
            self._go_on(session)

        self._ask_history(question, answered)

    def _answered(self, watch: OneWatch, outcome: bytes) -> None:
        code, second, third = _raw_head.decode(outcome)
        if code:
            message = msgspec.msgpack.decode(second, type=str)
            self._end(watch, error_of(code, message, msgspec.msgpack.decode(third, type=int)))
            return
        self._told_history(watch, third)

    def _told_history(self, watch: OneWatch, answer: msgspec.Raw) -> None:
        _, next_revision, events = _history.decode(answer)
        told: Any = events
        is_told = events != _NO_EVENTS
        if not (watch.asked.puts and watch.asked.deletions):
            pairs = _pairs.decode(events)
            told = [each for each in pairs if watch.wants(decode_key_value(each[0]).version == 0)]
            is_told = bool(told)
        watch.next_revision = max(watch.next_revision, next_revision)
        if is_told:
            self._send(watch, told)
        self._catch_up(watch)
