"""Reading a range with several requests in flight, and verifying every entry.

Ranges are cut by the size of the entries seen last. An answer may end early; the missing entries are
then requested before later ones are returned.

One flipped bit on one member's disk must not end a read: the entries before the bad one are returned,
and another member is asked for the rest. The read fails only if no member has it whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import IndexOutOfRange, LedgerError, ProtocolViolation, RangeDamaged
from quorumlog.header_array import field_of, first_wrong
from quorumlog.net.rpc.calls import response_of
from quorumlog.wire.client_messages import ReadRequest, ReadResponse

READ_BATCH_BYTES = 1024 * 1024
DEFAULT_PREFETCH = 4
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Keeps an answer, its largest entry included, below the frame limit of 16 MiB."""
SUBSTITUTE_WAIT_MS = 1000
"""How long a member asked in place of a damaged one may take to learn that an entry is committed."""
_NARROWED_ENTRIES = 4096
"""A refused range without an end counts as so long."""


class BadEntries(Exception):
    """An answer whose entry `index` is damaged; `good` are the valid ones before it."""

    def __init__(self, good: EntryBatch | None, index: int, what: str) -> None:
        super().__init__(f"entry {index} ({what})")
        self.good = good
        self.index = index


class EntryChecker:
    """Checks batches as they follow each other: encoding, order, chain, and every body that is there."""

    def __init__(self) -> None:
        self._next_index = -1
        self._chain = 0

    def check(self, batch: EntryBatch, first_index: int, *, heads: bool = False) -> None:
        """Raise BadEntries unless `batch` is the log's entries from `first_index` on. `heads`: it is of
        headers alone."""
        is_anchored = self._next_index == first_index
        chain = self._chain if is_anchored else batch.chain_before
        bad: BadEntries | None = None
        try:
            if heads:
                batch.check_heads()
            else:
                batch.check_encoding()
            batch.check_sequence(first_index, chain)
            if not heads:
                batch.check_bodies()
        except ProtocolViolation:
            bad = _located(batch, first_index, chain, is_anchored=is_anchored, heads=heads)
        good = batch if bad is None else bad.good
        if good is not None:
            self._next_index = first_index + good.count
            self._chain = int(field_of(batch.words(), "chain_crc")[good.count - 1])
        if bad is not None:
            raise bad


def _located(
    batch: EntryBatch, first_index: int, chain: int, *, is_anchored: bool, heads: bool
) -> BadEntries:
    """Which entry of a batch that failed a check is the first bad one, and why."""
    headers = batch.headers()
    sizes = np.maximum(headers["size"].astype(np.int64), HEADER_BYTES) if heads else batch.sizes
    positions = headers["pos"].astype(np.int64)  # where an entry lies, a client does not know
    bad, why = first_wrong(headers, sizes, positions, first_index, 0, chain)
    crcs = headers["body_crc"] if heads else batch.body_crcs()
    wrong_bodies = np.flatnonzero(crcs[:bad] != headers["body_crc"][:bad])
    if len(wrong_bodies):
        bad = int(wrong_bodies[0])
        why = "body_crc does not match"
    assert bad < batch.count, (
        f"a batch from {first_index} failed a check, but none of its entries is bad"
    )
    good = bad
    if bad == 1 and not is_anchored and not len(wrong_bodies):
        # With nothing known of the entry before the batch, the first entry's chain_crc is believed: if
        # the second, good by itself, does not link to it, either of the two may be the damaged one.
        alone, _ = first_wrong(headers[1:2], sizes[1:2], positions[1:2], first_index + 1, 0, None)
        good = 0 if alone else bad
    return BadEntries(batch.slice(0, good) if good else None, first_index + bad, why)


def checked_batch(
    request: Request, first_index: int, stop_index: int, checker: EntryChecker
) -> EntryBatch | None:
    """The entries of a finished read, checked; None if it brought none.

    Raises the read's error, BadEntries, and ProtocolViolation for an answer to another question.
    """
    response, batch = response_of(request, ReadResponse), request.response_batch
    count = batch.count if batch is not None else 0
    if response.count != count:
        raise ProtocolViolation(f"{count} entries came where {response.count} were announced")
    if batch is None:
        return None
    if response.first_index != first_index:
        raise ProtocolViolation(f"entries from {response.first_index} came instead of {first_index}")
    if 0 <= stop_index < first_index + count:
        raise ProtocolViolation(
            f"entries up to {first_index + count - 1} came, and those below {stop_index} were requested"
        )
    message = request.message
    if response.heads and not (isinstance(message, ReadRequest) and message.heads):
        raise ProtocolViolation("headers arrived instead of entries")
    if response.heads and batch.total_bytes != HEADER_BYTES * count:
        raise ProtocolViolation("bodies came where headers were announced")
    checker.check(batch, first_index, heads=response.heads)
    return batch


class _SentRead(NamedTuple):
    first_index: int
    stop_index: int
    """-1: the committed index."""
    is_last: bool
    """Nothing after it was asked for: where it ends was not known."""
    request: Request
    is_substitute: bool = False
    """Asked of another member than the reader chose."""


class ReadPlan:
    """One sequential read of [first_index, stop_index).

    while True:
        submit(plan.wanted())
        if plan.head is None: break
        wait until plan.head is done
        batch = plan.take()                     # None: nothing came
    """

    def __init__(
        self,
        first_index: int,
        stop_index: int | None,
        *,
        make_request: Callable[[ReadRequest], Request],
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
        wait_ms: int = 0,
        entries_hint: int | None = None,
        follow: bool = False,
        heads: bool = False,
        make_substitute: Callable[[ReadRequest, set[str]], Request | None] | None = None,
    ) -> None:
        """`stop_index` None: all entries committed at the first answer.

        `entries_hint`: the reader will probably stop after so many; nothing is requested ahead.
        `follow`: no end at all; at the end of the log a request waits at the server for `wait_ms`.
        `wait_ms` otherwise: how long a member may wait for an entry that it does not know to be
        committed yet. `heads`: headers are enough, and may come alone. `make_substitute`: a request to a
        member that is not among those tried (addresses and ids), None if none is left; without it damage
        on the one member asked ends the read. Raises IndexOutOfRange for a first index below 0.
        """
        if first_index < 0:
            raise IndexOutOfRange(f"first_index {first_index} is below 0, where every log begins")
        assert not (follow and stop_index is not None), stop_index
        self._make_request = make_request
        self._batch_bytes = max(1, min(batch_bytes, MAX_BATCH_BYTES))
        self._prefetch = max(1, prefetch) if entries_hint is None else 1
        self._entries_hint = entries_hint
        self.wait_ms = wait_ms
        self._follow = follow
        self._heads = heads
        self._checker = EntryChecker()
        self._next_index = first_index
        """The first that nobody was asked for yet."""
        self._stop_index = stop_index
        """None until the first answer; with `follow` what is known to be committed, so far."""
        self._has_open_end = stop_index is None
        self._per_request = 0
        """Entries to ask for at once; 0 until the size of an entry is known."""
        self._sent: deque[_SentRead] = deque()
        """In the order of the log, without gaps."""
        self._new: list[Request] = []
        self._make_substitute = make_substitute
        self.end_source: tuple[Request, ReadResponse | IndexOutOfRange] | None = None
        """The newest answer of a member that the reader chose, with its log end."""
        self.read_index = -1
        """The newest entry that it brought."""
        self._damaged_index = -1
        """The next four are about this index; -1: no damage was met."""
        self._tried: set[str] = set()
        """Addresses and ids of the members that could not give it: each is asked once, then no more."""
        self._failures: dict[str, str] = {}
        """Member -> what it did instead, in the order of asking."""
        self._refused_entries = 0
        """Length of the range that the chosen member refused; 1: it has nothing more, 0: not asked."""
        self._is_single = False
        """Only this one entry is asked for, not the rest of the range."""

    @property
    def end(self) -> ReadResponse | IndexOutOfRange | None:
        return None if self.end_source is None else self.end_source[1]

    @property
    def knows_less(self) -> bool:
        """The member that answered last knows of fewer committed entries than it brought before: it
        lags, or the group has lost some."""
        return self.end is not None and self.end.committed_index < self.read_index

    @property
    def head(self) -> Request | None:
        """None: everything was handed out."""
        return self._sent[0].request if self._sent else None

    @property
    def open_requests(self) -> list[Request]:
        return [sent.request for sent in list(self._sent)]  # another thread may be reading

    def wanted(self) -> list[Request]:
        """To submit, in this order."""
        while len(self._sent) < self._prefetch and not (self._sent and self._sent[-1].is_last):
            stop = self._stop_index
            if stop is None or (self._follow and self._next_index >= stop):
                if not self._sent:
                    self._ask(self._next_index, self._hinted_stop(-1), is_last=True)
                break
            if self._next_index >= stop:
                break
            if self._per_request == 0:
                # The first answer tells how large entries are; only then ranges can be cut.
                if not self._sent:
                    self._ask(self._next_index, self._hinted_stop(stop), is_last=True)
                break
            part = min(self._next_index + self._per_request, stop)
            self._ask(self._next_index, part)
            self._next_index = part
        new, self._new = self._new, []
        return new

    def _hinted_stop(self, stop_index: int) -> int:
        if self._entries_hint is None:
            return stop_index
        hinted = self._next_index + max(1, self._entries_hint)
        return hinted if stop_index < 0 else min(stop_index, hinted)

    def _ask(
        self, first_index: int, stop_index: int, *, is_last: bool = False, before_all: bool = False
    ) -> None:
        limit_bytes = self._batch_bytes if is_last else 2 * self._batch_bytes
        request = self._request_of(first_index, stop_index, limit_bytes)
        self._new.append(request)
        put = self._sent.appendleft if before_all else self._sent.append
        put(_SentRead(first_index, stop_index, is_last, request))

    def _request_of(self, first_index: int, stop_index: int, limit_bytes: int) -> Request:
        """Of the member that the reader chose."""
        return self._make_request(
            ReadRequest(
                first_index=first_index,
                stop_index=stop_index,
                limit_bytes=limit_bytes,
                wait_ms=self.wait_ms,
                to_end=self._stop_index is None and not self._follow,
                heads=self._heads,
            )
        )

    def take(self) -> EntryBatch | None:
        """The result of the finished head, checked; None if it is empty and that is no error.

        Raises the error of the read, IndexOutOfRange above the committed index, RangeDamaged if no
        member that may be asked has them undamaged, and ProtocolViolation.
        """
        sent = self._sent.popleft()
        first_index, stop_index, is_last, request, is_substitute = sent
        outcome = request.error or request.response
        if isinstance(outcome, ReadResponse | IndexOutOfRange) and not is_substitute:
            self.end_source = request, outcome
        try:
            batch = checked_batch(request, first_index, stop_index, self._checker)
        except BadEntries as bad:
            what = f"sent {bad}: its disk is damaged; run: quorumlog verify on its data directory"
            return self._ask_elsewhere(sent, bad.good, what)
        except RangeDamaged as error:
            what = (
                f"cannot give the entries from {first_index} on ({error}): its disk is damaged; run:"
                " quorumlog verify on its data directory"
            )
            return self._ask_elsewhere(sent, None, what)
        except (LedgerError, ProtocolViolation) as error:
            if is_substitute:
                return self._ask_elsewhere(sent, None, f"did not give it ({error})")
            if (
                isinstance(error, IndexOutOfRange)
                and self._has_open_end
                and not self._follow
                and error.committed_index + 1 == first_index
            ):
                self._stop_index = first_index
                return None
            raise
        response = request.response
        assert isinstance(response, ReadResponse), response
        if batch is None:
            if is_substitute:
                what = f"does not know it to be committed (only up to {response.committed_index})"
                return self._ask_elsewhere(sent, None, what)
            if self._has_open_end and (self._follow or response.committed_index + 1 == first_index):
                self._stop_index = first_index
                return None
            raise IndexOutOfRange(
                f"index {first_index} is above the committed index {response.committed_index}",
                ledger_begin_index=response.ledger_begin_index,
                committed_index=response.committed_index,
            )
        got_stop = first_index + batch.count
        self.read_index = got_stop - 1
        self._learn(sent, batch)
        if is_last:
            self._next_index = got_stop
        elif got_stop < stop_index:
            self._ask(got_stop, stop_index, before_all=True)
        return batch

    def _learn(self, sent: _SentRead, batch: EntryBatch | None) -> None:
        """Where the log ends and how large its entries are, from the good part of an answer."""
        response = sent.request.response
        if not isinstance(response, ReadResponse):
            return
        got_stop = sent.first_index + (batch.count if batch is not None else 0)
        # A substitute may lag: the end of a read is what the member that the reader chose says.
        if self._follow or (self._stop_index is None and not sent.is_substitute):
            self._stop_index = max(self._stop_index or 0, response.committed_index + 1, got_stop)
        if batch is not None:
            log_bytes = int(np.add.reduce(field_of(batch.words(), "size")))
            self._per_request = max(1, self._batch_bytes * batch.count // log_bytes)

    # ---------------------------------------------------------------- damage on a member's disk

    def _ask_elsewhere(self, sent: _SentRead, good: EntryBatch | None, what: str) -> EntryBatch | None:
        """Ask for what `sent` did not bring; returns its good part. Raises RangeDamaged at the end.

        At one index a member is asked once for the range and once for the entry alone, and the chosen
        one for ever shorter ranges, since one that refuses a whole range for a single bad entry still
        has those before it. So it ends: every entry that comes moves the index on.
        """
        index = sent.first_index + (good.count if good is not None else 0)
        if index != self._damaged_index:
            self._damaged_index = index
            self._tried = set()
            self._failures = {}
            self._refused_entries = 0
            self._is_single = not isinstance(sent.request.error, RangeDamaged)
        if not sent.is_substitute:
            self._refused_entries = _refused_entries(sent.request)
        member = self._note_tried(sent.request)
        self._failures.setdefault(member, what)
        self._learn(sent, good)
        request = self._substitute(sent)
        if request is None and good is None and self._refused_entries == 1:
            self._ask_for_one_or_give_up(sent)
            request = self._substitute(sent)
        is_substitute = request is not None
        if request is None:
            shorter_stop = index + max(1, self._refused_entries // 2)
            request = self._request_of(index, shorter_stop, self._batch_bytes)
        self._new.append(request)
        # The end as it was asked for: what a shorter range leaves is then asked for as after any answer.
        self._sent.appendleft(_SentRead(index, sent.stop_index, sent.is_last, request, is_substitute))
        return good

    def _note_tried(self, request: Request) -> str:
        """Returns how to call whom the request was for in a message."""
        link = request.answered_on
        if request.target.name:
            self._tried.add(request.target.name)
        if link is None:
            return request.target.name or "the server"
        self._tried.add(link.address)
        member_id = link.hello.member_id if link.hello is not None else ""
        if member_id:
            self._tried.add(member_id)
        return f"{link.address} ({member_id})" if member_id else link.address

    def _substitute(self, sent: _SentRead) -> Request | None:
        if self._make_substitute is None:
            return None
        message = ReadRequest(
            first_index=self._damaged_index,
            stop_index=self._damaged_index + 1 if self._is_single else sent.stop_index,
            limit_bytes=self._batch_bytes,
            wait_ms=max(self.wait_ms, SUBSTITUTE_WAIT_MS),
            heads=self._heads,
        )
        return self._make_substitute(message, self._tried)

    def _ask_for_one_or_give_up(self, sent: _SentRead) -> None:
        """Who refused a range for a later entry may still hold this one: ask once more, for it alone.

        Raises RangeDamaged if that is what everybody was asked for already.
        """
        if not self._is_single and sent.stop_index != self._damaged_index + 1:
            self._is_single = True
            self._tried = set()
            return
        (member, what), *others = self._failures.items()
        message = f"{member} {what}"
        if others:
            message += "; nor could another member give it: "
            message += "; ".join(f"{other} {instead}" for other, instead in others)
        raise RangeDamaged(message)


def _refused_entries(request: Request) -> int:
    message = request.message
    assert isinstance(message, ReadRequest), message
    if not isinstance(request.error, RangeDamaged):
        return 1
    return message.stop_index - message.first_index if message.stop_index >= 0 else _NARROWED_ENTRIES
