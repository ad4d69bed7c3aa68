"""Reading a range with several requests on their way, and believing nothing that is not proven.

How many entries fit into one answer is unknown beforehand, so ranges are cut by the size of the
entries seen last. An answer may still end early; what is missing is then asked for before anything
behind it is handed out. Order is the order of the queue here, whatever the order of answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.batch import EntryBatch, digests_of
from quorumlog.errors import IndexOutOfRange, ProtocolViolation
from quorumlog.wire.client_messages import ReadRequest, ReadResponse
from quorumlog.wire.client_requests import Request

DEFAULT_BATCH_BYTES = 1024 * 1024
DEFAULT_PREFETCH = 4
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Keeps an answer, its largest entry included, below the frame limit of 16 MiB."""


class EntryChecker:
    """Checks batches as they follow each other: encoding, order, chain, and every body.

    The receiver of stored entries checks each body (one C call an entry), so that a flipped bit on one
    member's disk is found and not handed on; the chain ties each batch to the one before.
    """

    def __init__(self) -> None:
        self._next_index = -1
        self._chain = 0

    def check(self, batch: EntryBatch, first_index: int) -> None:
        """Raise ProtocolViolation unless `batch` is what the log holds from `first_index` on."""
        batch.check_encoding()
        headers = batch.headers()
        if self._next_index != first_index:
            first = headers[:1]
            self._chain = (int(first["chain_crc"][0]) - int(digests_of(first)[0])) & 0xFFFFFFFF
        batch.check_sequence(first_index, self._chain)
        batch.check_bodies()
        self._next_index = first_index + batch.count
        self._chain = int(headers["chain_crc"][-1])


def checked_batch(
    request: Request, first_index: int, stop_index: int, checker: EntryChecker
) -> EntryBatch | None:
    """The entries of a finished read, checked; None if it brought none. Raises the read's error."""
    if request.error is not None:
        raise request.error
    response, batch = request.response, request.response_payload
    assert isinstance(response, ReadResponse), response
    count = batch.count if batch is not None else 0
    if response.count != count:
        raise ProtocolViolation(f"{count} entries came where {response.count} were announced")
    if batch is None:
        return None
    if response.first_index != first_index:
        raise ProtocolViolation(f"entries from {response.first_index} came instead of {first_index}")
    if 0 <= stop_index < first_index + count:
        raise ProtocolViolation(
            f"entries up to {first_index + count - 1} came, asked for were those below {stop_index}"
        )
    checker.check(batch, first_index)
    return batch


class _Asked(NamedTuple):
    first_index: int
    stop_index: int
    """As asked for; -1: the end of what is committed."""
    is_last: bool
    """Nothing behind it was asked for, since where it would end was not known."""
    request: Request


class ReadPlan:
    """One sequential read of [first_index, stop_index).

    while True:
        submit(plan.wanted())
        if plan.head is None: break
        wait until plan.head is done
        batch = plan.take()                     # None: nothing came; ask again
    """

    def __init__(
        self,
        first_index: int,
        stop_index: int | None,
        *,
        make_request: Callable[[ReadRequest], Request],
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
        wait_ms: int = 0,
        entries_hint: int | None = None,
        follow: bool = False,
    ) -> None:
        """`stop_index` None: everything that is committed when the first answer is given.

        `entries_hint`: the reader will probably stop after so many; nothing is asked for ahead.
        `follow`: no end at all; at the end of the log a request waits at the server for `wait_ms`.
        `wait_ms` otherwise: how long a member may wait for an entry that it does not know to be
        committed yet. Raises IndexOutOfRange for a first index below 0.
        """
        if first_index < 0:
            raise IndexOutOfRange(f"first_index {first_index} is below 0, where every log begins")
        assert not (follow and stop_index is not None), stop_index
        self._make_request = make_request
        self._batch_bytes = max(1, min(batch_bytes, MAX_BATCH_BYTES))
        self._prefetch = max(1, prefetch) if entries_hint is None else 1
        self._entries_hint = entries_hint
        self._wait_ms = wait_ms
        self._follow = follow
        self._checker = EntryChecker()
        self._next_index = first_index
        """First index that nobody was asked for yet."""
        self._stop_index = stop_index
        """None until the first answer; with `follow` what is known to be committed, so far."""
        self._has_open_end = stop_index is None
        self._per_request = 0
        """Entries to ask for at once; 0 until the size of an entry is known."""
        self._asked: deque[_Asked] = deque()
        """In the order of the log, without gaps."""
        self._new: list[Request] = []

    @property
    def head(self) -> Request | None:
        """The request whose answer comes next; None: everything was handed out."""
        return self._asked[0].request if self._asked else None

    @property
    def open_requests(self) -> list[Request]:
        return [asked.request for asked in self._asked]

    def wanted(self) -> list[Request]:
        """New requests to submit, in this order."""
        while len(self._asked) < self._prefetch:
            stop = self._stop_index
            if stop is None or (self._follow and self._next_index >= stop):
                if not self._asked:
                    self._ask(self._next_index, self._hinted_stop(-1), is_last=True)
                break
            if self._next_index >= stop:
                break
            if self._per_request == 0:
                # The first answer tells how large entries are; only then ranges can be cut.
                if not self._asked:
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
        request = self._make_request(
            ReadRequest(
                first_index=first_index,
                stop_index=stop_index,
                limit_bytes=self._batch_bytes if is_last else 2 * self._batch_bytes,
                wait_ms=self._wait_ms,
            )
        )
        self._new.append(request)
        asked = _Asked(first_index, stop_index, is_last, request)
        if before_all:
            self._asked.appendleft(asked)
        else:
            self._asked.append(asked)

    def take(self) -> EntryBatch | None:
        """What the finished head brought, checked; None if it brought nothing and that is no error.

        Raises the error of the read, IndexOutOfRange if the range reaches above what is committed, and
        ProtocolViolation if the entries are not what the log holds.
        """
        first_index, stop_index, is_last, request = self._asked.popleft()
        try:
            batch = checked_batch(request, first_index, stop_index, self._checker)
        except IndexOutOfRange as error:
            if self._has_open_end and not self._follow and error.committed_index + 1 == first_index:
                self._stop_index = first_index
                return None
            raise
        response = request.response
        assert isinstance(response, ReadResponse), response
        if batch is None:
            if self._has_open_end and (self._follow or response.committed_index + 1 == first_index):
                self._stop_index = first_index
                return None
            raise IndexOutOfRange(
                f"index {first_index} is above the committed index {response.committed_index}",
                ledger_begin_index=response.ledger_begin_index,
                committed_index=response.committed_index,
            )
        got_stop = first_index + batch.count
        if self._follow or self._stop_index is None:
            self._stop_index = max(self._stop_index or 0, response.committed_index + 1, got_stop)
        self._per_request = max(1, self._batch_bytes * batch.count // batch.total_bytes)
        if is_last:
            self._next_index = got_stop
        elif got_stop < stop_index:
            self._ask(got_stop, stop_index, before_all=True)
        return batch
