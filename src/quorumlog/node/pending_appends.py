"""PendingAppends: requests and their entries, from the proposal to one of three outcomes.

An append is *queued* until a batch is formed of all that arrived, then *proposed* at (term, index) until
it commits. Queued ones can be refused, for certainly nothing of them was written; proposed ones can only
commit or become unknown. One whose condition is not met, or that the log holds already, is *judged*, and
answered once that is certain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryId, EntryRange
from quorumlog.errors import LedgerError, OutcomeUnknown, PendingFull, Refused, RequestTimeout
from quorumlog.log_state.control_entries import ProducerEpoch
from quorumlog.measures import Histogram
from quorumlog.node.ports import EntryStamper

AppendOutcome = AppendReceipt | LedgerError
RETRY_FULL_MS = 20


class SessionPlace(NamedTuple):
    """The place of an append in its producer's session."""

    producer: str
    epoch: ProducerEpoch
    sequence: int
    """Of its first entry."""


class PendingAppend:
    """One request; its entries get consecutive indices."""

    __slots__ = (
        "batch",
        "deadline_ms",
        "done",
        "earlier",
        "expected_last",
        "filled",
        "filler",
        "first_index",
        "last_index",
        "lead",
        "owner",
        "place",
        "size_bytes",
        "term",
    )

    def __init__(
        self,
        batch: EntryBatch | None,
        deadline_ms: float,
        done: Callable[[AppendOutcome], None],
        owner: object,
        expected_last: int | None = None,
        place: SessionPlace | None = None,
    ) -> None:
        self.batch = batch
        """None once proposed: the bytes belong to the store then. None from the begin: not of a client's
        entries."""
        self.size_bytes = 0 if batch is None else batch.total_bytes
        self.deadline_ms = deadline_ms
        self.done: Callable[[AppendOutcome], None] | None = done
        """None once answered; an unknown outcome is answered before the entry leaves this table."""
        self.owner = owner
        """For `discard`: the connection of the request."""
        self.expected_last = expected_last
        """Append only if no data entry follows this index; None: unconditionally."""
        self.place = place
        """In a producer's session; None: it is in none."""
        self.filler: EntryStamper | None = None
        """Of the state machine whose entries these are."""
        self.filled: Callable[[object], None] | None = None
        """Gets the filler's results, as soon as they are proposed."""
        self.lead: EntryBatch | None = None
        """The PRODUCER entry before it."""
        self.earlier: tuple[EntryRange, ...] = ()
        """The part of it that was in the log already."""
        self.term = -1
        self.first_index = -1
        self.last_index = -1

    @property
    def entry_count(self) -> int:
        """How many entries are proposed for it, that in front included."""
        assert self.batch is not None
        return self.batch.count + (self.lead is not None)

    def keep_rest(self, skip: int, earlier: tuple[EntryRange, ...]) -> None:
        """Its first `skip` entries are in the log already."""
        assert self.batch is not None
        # Memory of its own, as a slice has not: it is stamped.
        self.batch = EntryBatch.concatenate([self.batch.slice(skip, self.batch.count)])
        self.earlier = earlier

    def answer(self, outcome: AppendOutcome) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(outcome)


class PendingAppends:
    def __init__(self) -> None:
        self.queued: list[PendingAppend] = []
        self.queued_bytes = 0
        self.queued_since_ms = 0.0
        """When the oldest queued append came; meaningless while none is queued."""
        self._proposed: deque[PendingAppend] = deque()
        """By `last_index`, ascending; all of one term."""
        self._formed: deque[tuple[int, float, int]] = deque()
        """(last index, since when its oldest append waits, how many) of each batch of appends in it."""
        self.committed = Histogram()
        """How long appends took, in microseconds."""
        self.proposed_bytes = 0
        """Uncommitted bytes of this leader, bounded by `max_uncommitted_bytes`."""
        self._judged: dict[PendingAppend, tuple[float, AppendOutcome]] = {}
        """append -> (index, outcome): because of this entry, once it is committed. Infinity: no majority
        has confirmed yet that this member may judge."""

    def full(self, most_bytes: int) -> PendingFull:
        """The refusal of what would go above `max_uncommitted_bytes`."""
        return PendingFull(
            f"{self.proposed_bytes + self.queued_bytes} bytes wait for commit (max_uncommitted_bytes"
            f" {most_bytes})",
            retry_after_ms=RETRY_FULL_MS,
        )

    def queue(self, append: PendingAppend, now_ms: float) -> None:
        if not self.queued:
            self.queued_since_ms = now_ms
        self.queued.append(append)
        self.queued_bytes += append.size_bytes

    def take_queued(self, limit_bytes: int | None = None) -> list[PendingAppend]:
        """The oldest queued appends, all or until they hold `limit_bytes`; at least one if any."""
        taken: list[PendingAppend] = self.queued
        if limit_bytes is None or self.queued_bytes <= limit_bytes:
            self.queued, self.queued_bytes = [], 0
            return taken
        kept: list[PendingAppend] = []
        size_bytes = 0
        for count, append in enumerate(taken, 1):
            size_bytes += append.size_bytes
            if size_bytes >= limit_bytes:
                taken, kept = taken[:count], taken[count:]
                break
        self._keep(kept)
        return taken

    def _keep(self, queued: list[PendingAppend]) -> None:
        self.queued = queued
        self.queued_bytes = sum(append.size_bytes for append in queued)

    def discard(self, owner: object) -> None:
        """Drop the unproposed appends of `owner`, without an answer: its connection is gone."""
        self._keep([append for append in self.queued if append.owner is not owner])
        self._judged = {a: one for a, one in self._judged.items() if a.owner is not owner}

    def propose(self, appends: list[PendingAppend], first: EntryId) -> None:
        """One without a batch is of a control entry."""
        index, term = first.index, first.term
        are_of_clients = appends[0].batch is not None
        for append in appends:
            append.term = term
            append.first_index = index
            if append.lead is not None:
                append.first_index = index = index + 1
            index += 1 if append.batch is None else append.batch.count
            append.last_index = index - 1
            append.batch = append.lead = None
            self.proposed_bytes += append.size_bytes
            self._proposed.append(append)
        if are_of_clients:
            self._formed.append((index - 1, self.queued_since_ms, len(appends)))

    def answer_once_confirmed(self, append: PendingAppend, outcome: AppendOutcome) -> None:
        """Not before a majority has confirmed the leader; then `answer_once_committed`, or `settle`."""
        append.batch = None
        self._judged[append] = math.inf, outcome

    def answer_once_committed(self, append: PendingAppend, index: int) -> None:
        """The entry at `index`, on which `append` was judged, may still be lost."""
        if append in self._judged:  # its time may be over
            _, outcome = self._judged[append]
            self._judged[append] = index, outcome

    def settle(self, append: PendingAppend, outcome: AppendOutcome) -> None:
        """The answer of one that was judged; none if it is not waited for any more."""
        if self._judged.pop(append, None) is not None:
            append.answer(outcome)

    def complete(self, committed_index: int, durability: Durability, now_ms: float) -> None:
        """Answer everything up to `committed_index`; the caller still leads in the term of them all."""
        while self._formed and self._formed[0][0] <= committed_index:
            _, since_ms, count = self._formed.popleft()
            self.committed.add(int(1000 * (now_ms - since_ms)), count)
        proposed = self._proposed
        while proposed and proposed[0].last_index <= committed_index:
            append = proposed.popleft()
            self.proposed_bytes -= append.size_bytes
            if append.earlier:
                count = append.last_index - append.first_index + 1
                ranges = (*append.earlier, EntryRange(append.first_index, count, append.term))
                append.answer(AppendReceipt.of_ranges(ranges, durability))
                continue
            append.answer(
                AppendReceipt(
                    append.term,
                    append.first_index,
                    append.last_index - append.first_index + 1,
                    durability,
                )
            )
        if self._judged:
            judged = list(self._judged.items())
            for append, outcome in [(a, one) for a, (at, one) in judged if at <= committed_index]:
                self.settle(append, outcome)

    def refuse_queued(self, error: LedgerError) -> None:
        for append in self.take_queued():
            append.answer(error)

    def lose(self, reason: str, refusal: LedgerError) -> None:
        proposed, self._proposed = self._proposed, deque()
        self._formed.clear()
        self.proposed_bytes = 0
        for append in proposed:
            append.answer(OutcomeUnknown(reason))
        for append in list(self._judged):
            self.settle(append, refusal)
        self.refuse_queued(refusal)

    def expire(self, now_ms: float) -> None:
        """Answer appends past their deadline; a proposed one stays and still counts as uncommitted."""
        self._expire_queued(now_ms)
        for append in self._proposed:
            if append.done is not None and append.deadline_ms <= now_ms:
                append.answer(OutcomeUnknown("not committed in time; the entries may still commit"))
        for append, (_, outcome) in list(self._judged.items()):
            if append.deadline_ms <= now_ms:
                late: LedgerError = OutcomeUnknown("it was not confirmed in time that this member leads")
                if isinstance(outcome, Refused):
                    late = RequestTimeout(
                        f"nothing was written ({outcome}, which was not confirmed in time)"
                    )
                self.settle(append, late)

    def _expire_queued(self, now_ms: float) -> None:
        """With an expired append go all that its owner queued after it: streams keep their order."""
        if not any(append.deadline_ms <= now_ms for append in self.queued):
            return
        expired: list[PendingAppend] = []
        kept: list[PendingAppend] = []
        cut: set[int] = set()
        for append in self.queued:
            if append.deadline_ms <= now_ms or id(append.owner) in cut:
                cut.add(id(append.owner))
                expired.append(append)
            else:
                kept.append(append)
        self._keep(kept)
        error = RequestTimeout("the append waited too long for its batch; nothing was written")
        for append in expired:
            append.answer(error)

    @property
    def proposed_count(self) -> int:
        return len(self._proposed)

    @property
    def oldest_proposed_index(self) -> float:
        """First index of the oldest append that is not committed; infinite if there is none."""
        return self._proposed[0].first_index if self._proposed else math.inf

    @property
    def has_any(self) -> bool:
        """There are waiters, maybe with a deadline."""
        return bool(self.queued or self._proposed or self._judged)
