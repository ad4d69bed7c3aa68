"""PendingAppends: who waits for which entries, from the proposal to one of three outcomes.

An append is *queued* until a batch is formed of all that arrived, then *proposed* at (term, index)
until it commits. Queued ones can be refused, for certainly nothing of them was written; proposed ones
can only commit or become unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryId
from quorumlog.errors import LedgerError, OutcomeUnknown, RequestTimeout

AppendOutcome = AppendReceipt | LedgerError


class PendingAppend:
    """One request; its entries get consecutive indices."""

    __slots__ = (
        "batch",
        "deadline_ms",
        "done",
        "expected_last",
        "first_index",
        "last_index",
        "owner",
        "size_bytes",
        "term",
    )

    def __init__(
        self,
        batch: EntryBatch,
        deadline_ms: float,
        done: Callable[[AppendOutcome], None],
        owner: object,
        expected_last: int | None = None,
    ) -> None:
        self.batch: EntryBatch | None = batch
        """None once proposed: the bytes belong to the store then."""
        self.size_bytes = batch.total_bytes
        self.deadline_ms = deadline_ms
        self.done: Callable[[AppendOutcome], None] | None = done
        """None once answered; an unknown outcome is answered before the entry leaves this table."""
        self.owner = owner
        """Whom `discard` names: the connection that brought the request."""
        self.expected_last = expected_last
        """Append only if no data entry lies behind this index; None: whatever the log holds."""
        self.term = -1
        self.first_index = -1
        self.last_index = -1

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
        self.proposed_bytes = 0
        """Uncommitted bytes of this leader, what `max_uncommitted_bytes` bounds."""
        self._refused: list[tuple[int, PendingAppend, LedgerError]] = []
        """(index, append, error): refused because of this entry, once it is committed."""

    def queue(self, append: PendingAppend, now_ms: float) -> None:
        if not self.queued:
            self.queued_since_ms = now_ms
        self.queued.append(append)
        self.queued_bytes += append.size_bytes

    def take_queued(self, limit_bytes: int | None = None) -> list[PendingAppend]:
        """The oldest queued appends, all or until they hold `limit_bytes`; at least one if any."""
        taken, kept = self.queued, []
        if limit_bytes is not None and self.queued_bytes > limit_bytes:
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
        """Drop what `owner` queued and is not proposed, without an answer: its connection is gone."""
        self._keep([append for append in self.queued if append.owner is not owner])

    def propose(self, appends: list[PendingAppend], first: EntryId) -> None:
        index = first.index
        for append in appends:
            assert append.batch is not None
            append.term = first.term
            append.first_index = index
            index += append.batch.count
            append.last_index = index - 1
            append.batch = None
            self.proposed_bytes += append.size_bytes
            self._proposed.append(append)

    def refuse_once_committed(self, append: PendingAppend, error: LedgerError, index: int) -> None:
        """What speaks against `append` is the entry at `index`, which may still be lost."""
        append.batch = None
        self._refused.append((index, append, error))

    def complete(self, committed_index: int, durability: Durability) -> None:
        """Answer everything up to `committed_index`; the caller still leads in the term of them all."""
        proposed = self._proposed
        while proposed and proposed[0].last_index <= committed_index:
            append = proposed.popleft()
            self.proposed_bytes -= append.size_bytes
            append.answer(
                AppendReceipt(
                    append.term,
                    append.first_index,
                    append.last_index - append.first_index + 1,
                    durability,
                )
            )
        if self._refused:
            due = [(a, error) for index, a, error in self._refused if index <= committed_index]
            self._refused = [one for one in self._refused if one[0] > committed_index]
            for append, error in due:
                append.answer(error)

    def refuse_queued(self, error: LedgerError) -> None:
        for append in self.take_queued():
            append.answer(error)

    def lose(self, reason: str, refusal: LedgerError) -> None:
        proposed, self._proposed = self._proposed, deque()
        self.proposed_bytes = 0
        for append in proposed:
            append.answer(OutcomeUnknown(reason))
        judged, self._refused = self._refused, []
        for _, append, _ in judged:
            append.answer(refusal)
        self.refuse_queued(refusal)

    def expire(self, now_ms: float) -> None:
        """Answer what is past its deadline; a proposed append stays and still counts as uncommitted."""
        self._expire_queued(now_ms)
        for append in self._proposed:
            if append.done is not None and append.deadline_ms <= now_ms:
                append.answer(OutcomeUnknown("not committed in time; the entries may still commit"))
        for _, append, error in self._refused:
            if append.deadline_ms <= now_ms:
                append.answer(RequestTimeout(f"nothing was written ({error}, not committed in time)"))

    def _expire_queued(self, now_ms: float) -> None:
        """With an expired append go all that its owner queued behind it: streams keep their order."""
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
