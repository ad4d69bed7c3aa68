"""Single appends that start together, in one frame: gather, encode, tell each its outcome.

A frame costs the client and the leader the same whether it holds one entry or a few hundred. Whoever
sends takes what has gathered, in the order of the calls; nobody lingers.

Each append keeps the outcome that it would have had alone. The one refusal that depends on the company
is BodyTooLarge: then each is sent again by itself, so that the large one harms nobody else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request, receipt_of
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest, BodyTooLarge, CommandError, LedgerError, Refused
from quorumlog.net.rpc.calls import LEADER
from quorumlog.wire.client_messages import AppendRequest

MAX_JOINED_BODY_BYTES = 64 * 1024
"""A larger body is a frame of its own: its bytes cost more than a frame does."""
MAX_JOINED_BYTES = 1024 * 1024
"""Of entries, headers included. A larger frame would hardly be cheaper a byte."""
MAX_JOINED_RECORDS = 1024
"""As for the bytes; and all of a frame share its outcome."""

Outcome = AppendReceipt | LedgerError | None
"""What became of one append of a frame. None: certainly not written, to be sent again by itself."""


@dataclass(slots=True, eq=False)
class JoinedAppends:
    """Bodies that leave in one frame, and who waits for each."""

    submitted_ms: float
    deadline_ms: float
    """Of its oldest append, so that none lasts longer than it was told to."""
    waiters: list[Any] = field(default_factory=list)
    """In the order of the entries; of a kind of the client's own."""
    bodies: list[bytes] = field(default_factory=list)
    machine: str = ""
    """Which takes all of them; empty: none."""
    room_bytes: int = MAX_JOINED_BYTES
    is_taken: bool = False
    """Somebody sends it: nothing is added any more."""
    request: Request | None = None
    """None until it is encoded."""
    in_session: bool = False
    left: int = 0
    """How many of the waiters wait no more."""

    def make_request(self) -> Request:
        """Encode the bodies, for the protocol."""
        assert self.is_taken, "what is sent could still grow"
        assert self.request is None, "a frame is sent once"
        self.request = Request(
            AppendRequest(machine=self.machine),
            LEADER,
            submitted_ms=self.submitted_ms,
            deadline_ms=self.deadline_ms,
            batch=EntryBatch.from_bodies(self.bodies),
            context=self,
            in_session=self.in_session,
        )
        self.bodies = []
        return self.request

    def try_to_make_request(self, refuse: Callable[[Any, Refused], None]) -> Request | None:
        """The same. If that fails, for want of memory, say, `refuse(waiter, error)` is called for each,
        since nobody else would ever answer them."""
        try:
            return self.make_request()
        except Exception as failure:  # whatever it is: they wait
            for waiter in self.waiters:
                error = Refused(f"nothing was written, the append could not be encoded: {failure!r}")
                error.__cause__ = failure
                refuse(waiter, error)
            return None

    def leave(self, waiter: Any) -> bool:
        """`waiter` waits no more; its body is dropped, unless the frame was taken.

        True: nobody waits for the frame any more, so its request may be cancelled.
        """
        if not self.is_taken:
            position = self.waiters.index(waiter)
            del self.waiters[position], self.bodies[position]
            return False
        self.left += waiter in self.waiters
        return self.left == len(self.waiters)

    def outcomes(self) -> list[Outcome]:
        """Of the finished request, in the order of the waiters."""
        assert self.request is not None
        assert self.request.is_done, self.request.state
        # Each holds the other: their bytes would stay until a garbage collection came by.
        self.request.context = None
        count = len(self.waiters)
        error = self.request.error
        if error is None:
            whole = receipt_of(self.request)
            assert whole.count == count, (whole, count)
            if whole.results:
                return _with_results(whole)
            return [AppendReceipt(term, at, 1, whole.durability) for at, term in _places(whole)]
        if count > 1 and isinstance(error, BodyTooLarge):
            return [None] * count
        # Each caller raises an object of its own: a shared one would collect the tracebacks of all.
        return [copy.copy(error) for _ in range(count)]


class AppendJoiner:
    """The appends that nobody has sent yet. Not thread-safe."""

    def __init__(self, *, in_session: bool = False) -> None:
        self._in_session = in_session
        self._joined: list[JoinedAppends] = []
        self._timeout_ms: float = -1
        """Of the last frame."""

    def add(
        self, body: bytes, timeout_ms: float, waiter: Any, now_ms: float, machine: str = ""
    ) -> JoinedAppends:
        """Returns the frame that the body will travel in. Only neighbours share one, so that frames
        keep the order of the calls."""
        entry_bytes = HEADER_BYTES + len(body)
        is_large = len(body) > MAX_JOINED_BODY_BYTES
        joined = self._joined[-1] if self._joined else None
        if (
            joined is None
            or is_large
            or joined.room_bytes < entry_bytes
            or timeout_ms != self._timeout_ms
            or machine != joined.machine
            or len(joined.waiters) == MAX_JOINED_RECORDS
        ):
            deadline_ms, in_session = now_ms + timeout_ms, self._in_session
            joined = JoinedAppends(now_ms, deadline_ms, in_session=in_session, machine=machine)
            self._joined.append(joined)
            self._timeout_ms = timeout_ms
        joined.bodies.append(body)
        joined.waiters.append(waiter)
        joined.room_bytes = 0 if is_large else joined.room_bytes - entry_bytes
        return joined

    def take(self, is_gone: Callable[[Any], bool] | None = None) -> list[JoinedAppends]:
        """All frames, in order, to be sent. `is_gone`: of a waiter that is yet to `leave`."""
        ready, self._joined = self._joined, []
        for joined in ready:
            if is_gone is not None:
                for waiter in filter(is_gone, list(joined.waiters)):
                    joined.leave(waiter)
            joined.is_taken = True
        return [joined for joined in ready if joined.waiters]


def _with_results(whole: AppendReceipt) -> list[Outcome]:
    """Each command's own: its result, or why the machine has refused it."""
    refused = {place: CommandError(why) for place, why in whole.failures}
    return [
        refused.get(place) or AppendReceipt(term, index, 1, whole.durability, results=(result,))
        for place, ((index, term), result) in enumerate(zip(_places(whole), whole.results, strict=True))
    ]


def _places(whole: AppendReceipt) -> list[tuple[int, int]]:
    """(index, term) of each entry."""
    return [(index, part.term) for part in whole.parts for index in part.indices]


def body_of(body: bytes | bytearray | memoryview) -> bytes:
    """The body of one append; a copy, unless it is `bytes`, since the caller may change it. Raises
    BadRequest for what is not bytes-like, before it could harm those whom it would have joined."""
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise BadRequest("a body must be bytes, not str: encode it first, body.encode()")
    try:
        return bytes(memoryview(body))
    except TypeError:
        kind = type(body).__name__
        raise BadRequest(f"a body must be bytes, bytearray or memoryview, not {kind}") from None
