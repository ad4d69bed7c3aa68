"""ProducerSessions: appends that are written once, however often they are requested.

An append is judged by the state of this leader's whole log, uncommitted entries included: an admitted
append commits together with all it was judged by, or not at all. Each has a PRODUCER entry before it, in
the same batch.

Everything else is an answer about the log, and such an answer waits: the leader may have been replaced
without knowing, or its uncommitted entries may be lost. So a repetition, a gap or a foreign epoch is
answered once a majority has confirmed the leader and the log it was judged by is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import NamedTuple, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, EntryKind, EntryRange
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    LeaderNotReady,
    LedgerError,
    LevelNotReported,
    ProducerExpired,
    ProducerFenced,
    SequenceGap,
    TooManyProducers,
)
from quorumlog.log_state.control_entries import (
    MOST_PRODUCERS,
    TOKEN_BYTES,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    encode_batch,
    encode_body,
)
from quorumlog.log_state.producers import ProducerRange, Producers, SessionRecord
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.pending_appends import AppendOutcome, PendingAppend, PendingAppends
from quorumlog.node.ports import Member

T = TypeVar("T")
LONGEST_NAME = 255
RETRY_MS = 5
RETRY_LEVEL_MS = 100


class ProducerConnected(NamedTuple):
    """The answer to a producer that connects."""

    opened: bool
    """False: nothing was written, since the present epoch is not the one that was to end."""
    epoch: ProducerEpoch
    """(-1, -1): there is none, and the request was made for an older log."""
    last_sequence: int
    seen_index: int = -1
    """Index of the log that shows that there is none."""


class KnownProducer(NamedTuple):
    producer: str
    session: SessionRecord


class Judged(NamedTuple):
    """An answer that is to be given once it is certain."""

    append: PendingAppend
    outcome: AppendOutcome
    by_index: int | None
    """The state it was judged by is committed once this entry is; None: the last one admitted with
    it."""


class ProducerSessions:
    def __init__(self, member: Member, pending: PendingAppends, log_state: LogStateKeeper) -> None:
        self._member = member
        self._raft = member.raft
        self._pending = pending
        self._log_state = log_state

    # ---------------------------------------------------------------- appends

    def judge(self, appends: Sequence[PendingAppend]) -> tuple[list[PendingAppend], list[Judged]]:
        """The admitted appends, in this order and each as a whole, with a PRODUCER entry each; and the
        others."""
        if all(append.place is None for append in appends):
            return list(appends), []
        try:
            producers = self._producers()
        except LedgerError as error:
            return self._refused(appends, error), []
        met: list[PendingAppend] = []
        judged: list[Judged] = []
        last_sequences: dict[str, int] = {}
        """Of the admitted ones."""
        end_index = self._raft.ledger_end.index
        for append in appends:
            outcome: AppendOutcome | None = None
            if append.place is not None:
                outcome = self._look(append, producers.get(append.place.producer), last_sequences)
            if outcome is None:
                met.append(append)
            else:
                assert append.place is not None
                is_by_these = append.place.producer in last_sequences
                judged.append(Judged(append, outcome, None if is_by_these else end_index))
        return met, judged

    def _refused(self, appends: Sequence[PendingAppend], error: LedgerError) -> list[PendingAppend]:
        for append in appends:
            if append.place is not None:
                append.answer(error)
        return [append for append in appends if append.place is None]

    def _look(
        self, append: PendingAppend, session: SessionRecord | None, last_sequences: dict[str, int]
    ) -> AppendOutcome | None:
        """None: it is let in, with what of it is not in the log yet."""
        place, batch = append.place, append.batch
        assert place is not None
        assert batch is not None
        producer, epoch, sequence = place
        if session is None or session.epoch < epoch:
            return _expired(producer, epoch)
        if session.epoch > epoch:
            return _fenced(producer, epoch, session.epoch)
        if sequence < 0:
            return BadRequest(f"sequence {sequence} of producer {producer!r} is below 0")
        last_sequence = last_sequences.get(producer, session.last_sequence)
        if sequence > last_sequence + 1:
            return _gap(producer, sequence, last_sequence)
        held = min(last_sequence + 1 - sequence, batch.count)
        if held:
            ranges = session.ranges_of(sequence, held)
            if ranges is None and last_sequence > session.last_sequence:
                return LeaderNotReady("it is appended just now", retry_after_ms=RETRY_MS)
            if ranges is None:
                return _already(producer, sequence, batch.count, last_sequence)
            if held == batch.count:
                return self._receipt(ranges)
            append.keep_rest(held, tuple(_entry_range(each) for each in ranges))
            batch = append.batch
            assert batch is not None
        last_sequences[producer] = last_sequence + batch.count
        control = ProducerBatch(producer, epoch, last_sequence + 1, batch.count, held > 0)
        append.lead = EntryBatch.control(EntryKind.PRODUCER, encode_batch(control))
        return None

    def _receipt(self, ranges: Sequence[ProducerRange]) -> AppendReceipt:
        durability = self._member.host.weakest_durability(self._member.directory.durability)
        return AppendReceipt.of_ranges([_entry_range(each) for each in ranges], durability)

    def answer(self, judged: Sequence[Judged]) -> None:
        """Once each is certain to be the group's."""
        for append, outcome, by_index in judged:
            index = self._raft.ledger_end.index if by_index is None else by_index
            self._pending.answer_once_confirmed(append, outcome)
            confirmed = partial(self._confirmed, append, outcome, index)
            self._member.confirm_leadership(confirmed, append.owner)

    def _confirmed(
        self, append: PendingAppend, outcome: AppendOutcome, index: int, refusal: LedgerError | None
    ) -> None:
        if refusal is not None:
            self._pending.settle(append, refusal)
        elif index <= self._raft.committed_index:
            self._pending.settle(append, outcome)
        else:
            self._pending.answer_once_committed(append, index)

    # ---------------------------------------------------------------- sessions

    def connect(
        self,
        producer: str,
        token: bytes,
        ends: ProducerEpoch | None,
        deadline_ms: float,
        done: Callable[[ProducerConnected | LedgerError], None],
        owner: object,
        seen_index: int | None = None,
    ) -> None:
        """Begin a producer's epoch and end its current one. `seen_index`: see `ConnectProducer`."""
        self._member.carry_out_all()
        try:
            _check(producer, token)
            producers = self._producers()
        except LedgerError as error:
            done(error)
            return
        session = producers.get(producer)
        present = None if session is None else session.epoch
        refusal: LedgerError | None = None
        evicts: tuple[str, ...] = ()
        if session is None:
            evicts = producers.to_evict()
            if ends is not None:
                refusal = _expired(producer, ends)
            elif not evicts and producers.count >= MOST_PRODUCERS:
                refusal = _too_many()
        last_sequence = -1 if session is None else session.last_sequence
        if session is None and refusal is None and self._was_forgotten_since(seen_index):
            unseen = ProducerConnected(False, ProducerEpoch(-1, -1), -1, self._raft.ledger_end.index)
            self._answer_certainly(unseen, None, deadline_ms, done, owner)
            return
        if refusal is not None or (session is not None and (session.token == token or present != ends)):
            opened = session is not None and session.token == token
            answer = ProducerConnected(opened, present or ProducerEpoch(-1, -1), last_sequence)
            self._answer_certainly(answer, refusal, deadline_ms, done, owner)
            return
        body = OpenProducer(producer, token, ends, evicts)
        self._write(
            body, lambda at: ProducerConnected(True, at, last_sequence), deadline_ms, done, owner
        )

    def _was_forgotten_since(self, seen_index: int | None) -> bool:
        """Perhaps the producer that wants to connect first: this may be a late copy of what it said."""
        states = self._log_state.states
        assert states is not None, "the producers were asked before"
        return seen_index is not None and seen_index < states.producers_forgotten_index

    def forget(
        self,
        producer: str,
        epoch: ProducerEpoch,
        deadline_ms: float,
        done: Callable[[LedgerError | None], None],
        owner: object,
    ) -> None:
        """The session of that epoch is to end, with all that is known of the producer."""
        self._member.carry_out_all()
        try:
            session = self._producers().get(producer)
        except LedgerError as error:
            done(error)
            return
        if session is None or session.epoch != epoch:
            refusal = _expired(producer, epoch)
            if session is not None:
                refusal = _fenced(producer, epoch, session.epoch)
            self._answer_certainly(None, refusal, deadline_ms, done, owner)
            return
        body = OpenProducer(producer, session.token, epoch, forgets=True)
        self._write(body, lambda epoch: None, deadline_ms, done, owner)

    def list(
        self,
        after: str,
        limit: int,
        done: Callable[[list[KnownProducer] | LedgerError], None],
        owner: object,
    ) -> None:
        """Producers acknowledged before this call: names after `after`, in order."""

        def listed(producers: Producers, last_index: int) -> list[KnownProducer]:
            names = nsmallest(limit, (name for name in producers.names() if name > after))
            sessions = [(name, producers.get(name, last_index)) for name in names]
            return [KnownProducer(name, session) for name, session in sessions if session is not None]

        self._ask(listed, done, owner)

    def show(
        self,
        producer: str,
        done: Callable[[KnownProducer | LedgerError], None],
        owner: object,
    ) -> None:
        """Of all that was acknowledged before."""

        def shown(producers: Producers, last_index: int) -> KnownProducer | LedgerError:
            session = producers.get(producer, last_index)
            return _expired(producer, None) if session is None else KnownProducer(producer, session)

        self._ask(shown, done, owner)

    @property
    def count(self) -> int:
        """Of the sessions, as far as committed; -1 where it is not known."""
        state = self._log_state.committed
        return -1 if state is None else state.producers.count

    def _producers(self) -> Producers:
        """Of the whole log. Raises LeaderNotReady."""
        state = self._log_state.appended
        if state is None:
            raise LeaderNotReady("the state of the log is not known yet", retry_after_ms=RETRY_MS)
        return state.producers

    def _ask(
        self,
        look: Callable[[Producers, int], T],
        done: Callable[[T | LedgerError], None],
        owner: object,
    ) -> None:
        """By what is committed, once a majority has confirmed the leader."""

        def confirmed(refusal: LedgerError | None) -> None:
            state = self._log_state.committed
            if refusal is not None:
                done(refusal)
            elif state is None:
                done(LeaderNotReady("the state of the log is not known yet", retry_after_ms=RETRY_MS))
            else:
                done(look(state.producers, self._log_state.committed_index))

        self._member.confirm_leadership(confirmed, owner)

    def _answer_certainly(
        self,
        answer: T,
        refusal: LedgerError | None,
        deadline_ms: float,
        done: Callable[[T | LedgerError], None],
        owner: object,
    ) -> None:
        """`refusal`, or `answer`."""

        def settled(outcome: AppendOutcome) -> None:
            done(outcome if isinstance(outcome, LedgerError) else answer)

        append = PendingAppend(None, deadline_ms, settled, owner)
        self.answer([Judged(append, refusal or self._receipt(()), self._raft.ledger_end.index)])

    def _write(
        self,
        body: OpenProducer,
        answer_at: Callable[[ProducerEpoch], T],
        deadline_ms: float,
        done: Callable[[T | LedgerError], None],
        owner: object,
    ) -> None:
        def written(outcome: AppendOutcome) -> None:
            if isinstance(outcome, LedgerError):
                done(outcome)
            else:
                done(answer_at(ProducerEpoch(outcome.first_index, outcome.term)))

        append = PendingAppend(None, deadline_ms, written, owner)
        append.size_bytes = HEADER_BYTES + len(encode_body(body))
        try:
            waiting = self._pending.proposed_bytes + self._pending.queued_bytes
            most = self._member.config.max_uncommitted_bytes
            if waiting and waiting + append.size_bytes > most:
                raise self._pending.full(most)
            entry = self._member.propose_control(body)
        except LevelNotReported as error:
            # A member that is down has not said what it knows; it may be back in a moment.
            done(LeaderNotReady(str(error), retry_after_ms=RETRY_LEVEL_MS))
            return
        except LedgerError as error:
            done(error)
            return
        self._pending.propose([append], entry)


def _entry_range(each: ProducerRange) -> EntryRange:
    return EntryRange(each.first_index, each.count, each.term)


def _check(producer: str, token: bytes) -> None:
    if not 0 < len(producer) <= LONGEST_NAME:
        raise BadRequest(f"the id of a producer has 1 to {LONGEST_NAME} characters")
    if len(token) != TOKEN_BYTES:
        raise BadRequest(f"the token of a producer has {TOKEN_BYTES} bytes")


def _expired(producer: str, epoch: ProducerEpoch | None) -> LedgerError:
    which = "" if epoch is None else f" of the epoch that began at {epoch.index} in term {epoch.term}"
    return ProducerExpired(
        f"the log knows no session of producer {producer!r}{which}: it was never opened, or is forgotten"
    )


def _fenced(producer: str, epoch: ProducerEpoch, present: ProducerEpoch) -> LedgerError:
    return ProducerFenced(
        f"another client has connected as producer {producer!r}: the epoch that began at {epoch.index}"
        f" in term {epoch.term} has ended with entry {present.index}"
    )


def _gap(producer: str, sequence: int, last_sequence: int) -> LedgerError:
    expected = last_sequence + 1
    return SequenceGap(
        f"sequence {sequence} of producer {producer!r} came where {expected} was expected; nothing was"
        " written",
        expected_sequence=expected,
    )


def _already(producer: str, sequence: int, count: int, last_sequence: int) -> LedgerError:
    if sequence + count - 1 <= last_sequence:
        return AlreadyCommitted(
            f"sequences {sequence} to {sequence + count - 1} of producer {producer!r} are in the log,"
            " too long ago to report the index",
            last_sequence=last_sequence,
        )
    return AlreadyCommitted(
        f"sequences {sequence} to {last_sequence} of producer {producer!r} are in the log, too long ago"
        f" to tell where, and nothing more was written: append from sequence {last_sequence + 1} on",
        last_sequence=last_sequence,
    )


def _too_many() -> LedgerError:
    return TooManyProducers(
        f"the log remembers {MOST_PRODUCERS} producers by name, which is as many as it can: end some"
        " with `quorumlog producers forget`"
    )
