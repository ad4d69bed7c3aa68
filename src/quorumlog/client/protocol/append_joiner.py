"""Single appends that start together, in one frame: gather, encode, tell each its outcome.

A frame costs the client and the leader the same whether it holds one entry or a few hundred, so an
`append` is not sent by itself: its body goes into the joiner, with a waiter of the client's own kind.
Whoever sends takes the frames, which are runs of bodies in the order of the calls, and hands one request
a frame to the protocol. Nobody lingers: a frame is what came while something else was being done.

Each append keeps the outcome that it would have had alone. A receipt of the frame gives each its own; a
refusal says of each that it was certainly not written, an unknown outcome that each may be. The one
refusal that depends on the company is BodyTooLarge: then each is sent again by itself, so that the one
which is too large harms nobody else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import LEADER, Request, receipt_of
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest, BodyTooLarge, LedgerError, Refused
from quorumlog.wire.client_messages import AppendRequest

MAX_JOINED_BODY_BYTES = 64 * 1024
"""A larger body is a frame of its own: its bytes cost more than a frame does, so joining would save
nothing, and the small ones beside it would wait for them."""
MAX_JOINED_BYTES = 1024 * 1024
"""Of entries, headers included. A larger frame would hardly be cheaper a byte, and what is refused is
sent again as a whole."""
MAX_JOINED_RECORDS = 1024
"""As for the bytes: the fixed costs are gone by then, and all of a frame share its outcome."""

Outcome = AppendReceipt | LedgerError | None
"""What became of one append of a frame. None: certainly not written, to be sent again by itself."""


class JoinedAppends:
    """Bodies that leave in one frame, and who waits for each."""

    __slots__ = (
        "_bodies",
        "_left",
        "_room",
        "deadline_ms",
        "is_taken",
        "request",
        "submitted_ms",
        "waiters",
    )

    def __init__(self, now_ms: float, deadline_ms: float) -> None:
        self.submitted_ms = now_ms
        self.deadline_ms = deadline_ms
        """Of its oldest append, so that none lasts longer than it was told to."""
        self.waiters: list[Any] = []
        """In the order of the entries; of a kind of the client's own."""
        self.is_taken = False
        """Somebody sends it: nothing is added any more."""
        self.request: Request | None = None
        """None until it is encoded."""
        self._bodies: list[bytes] = []
        self._room = MAX_JOINED_BYTES
        self._left = 0

    def make_request(self) -> Request:
        """Encode the bodies; to be submitted to the protocol, whose outcome `outcomes` then tells."""
        assert self.is_taken, "what is sent could still grow"
        assert self.request is None, "a frame is sent once"
        self.request = Request(
            AppendRequest(),
            LEADER,
            submitted_ms=self.submitted_ms,
            deadline_ms=self.deadline_ms,
            batch=EntryBatch.from_bodies(self._bodies),
            context=self,
        )
        self._bodies = []
        return self.request

    def try_to_make_request(self, refuse: Callable[[Any, Refused], None]) -> Request | None:
        """The same; where it cannot be encoded, for want of memory, say, `refuse(waiter, error)` is
        called for each, for nobody else would ever answer them."""
        try:
            return self.make_request()
        except Exception as failure:
            for waiter in self.waiters:
                error = Refused(f"nothing was written, the append could not be encoded: {failure!r}")
                error.__cause__ = failure
                refuse(waiter, error)
            return None

    def leave(self, waiter: Any) -> bool:
        """`waiter` waits no more. Its body is dropped, unless it was taken: then it stays where it is.

        True: nobody waits for this frame any more, so its request may as well be cancelled.
        """
        if not self.is_taken:
            position = self.waiters.index(waiter)
            del self.waiters[position], self._bodies[position]
            return False
        self._left += waiter in self.waiters
        return self._left == len(self.waiters)

    def outcomes(self) -> list[Outcome]:
        """One a waiter, in the same order, of the finished request."""
        assert self.request is not None
        assert self.request.is_done, self.request.state
        # Each holds the other: their bytes would stay until a garbage collection came by.
        self.request.context = None
        count = len(self.waiters)
        error = self.request.error
        if error is None:
            whole = receipt_of(self.request)
            assert whole.count == count, (whole, count)
            term, durability = whole.term, whole.durability
            indices = range(whole.first_index, whole.first_index + count)
            return [AppendReceipt(term, index, 1, durability) for index in indices]
        if count > 1 and isinstance(error, BodyTooLarge):
            return [None] * count
        # Each caller raises an object of its own: a shared one would collect the tracebacks of all.
        return [copy.copy(error) for _ in range(count)]


class AppendJoiner:
    """The appends that nobody has sent yet. Not thread-safe."""

    def __init__(self) -> None:
        self._joined: list[JoinedAppends] = []
        self._timeout_ms: float = -1
        """Of the last frame."""

    def add(self, body: bytes, timeout_ms: float, waiter: Any, now_ms: float) -> JoinedAppends:
        """Put one body behind the others; returns the frame that it will travel in.

        Only neighbours share a frame. So the order of calls is kept where a large body or another
        `timeout_ms` comes between two that would fit together.
        """
        entry_bytes = HEADER_BYTES + len(body)
        is_large = len(body) > MAX_JOINED_BODY_BYTES
        joined = self._joined[-1] if self._joined else None
        if (
            joined is None
            or is_large
            or joined._room < entry_bytes
            or timeout_ms != self._timeout_ms
            or len(joined.waiters) == MAX_JOINED_RECORDS
        ):
            joined = JoinedAppends(now_ms, now_ms + timeout_ms)
            self._joined.append(joined)
            self._timeout_ms = timeout_ms
        joined._bodies.append(body)
        joined.waiters.append(waiter)
        joined._room = 0 if is_large else joined._room - entry_bytes
        return joined

    def take(self, is_gone: Callable[[Any], bool] | None = None) -> list[JoinedAppends]:
        """All frames, in order, for the caller to send; the next append opens a new one.

        `is_gone`: of a waiter that will `leave` but had no time yet to do so.
        """
        ready, self._joined = self._joined, []
        for joined in ready:
            if is_gone is not None:
                for waiter in [waiter for waiter in joined.waiters if is_gone(waiter)]:
                    joined.leave(waiter)
            joined.is_taken = True
        return [joined for joined in ready if joined.waiters]


def body_of(body: bytes | bytearray | memoryview) -> bytes:
    """The bytes of one append, copied unless they are `bytes`: whoever called may change them then.

    Raises BadRequest for what is not bytes-like, before it could harm those whom it would have joined.
    """
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise BadRequest("a body must be bytes, not str: encode it first, body.encode()")
    try:
        return bytes(memoryview(body))
    except TypeError as error:
        raise BadRequest(f"a body must be bytes, bytearray or memoryview: {error}") from None
