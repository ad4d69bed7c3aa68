"""Reads: the member asked, the consistency and the results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self, TypedDict, TypeVar

from quorumlog.client.arguments import milliseconds
from quorumlog.client.protocol.client_requests import Request, read_target
from quorumlog.client.result_streams import Reading
from quorumlog.client.sending import at_once
from quorumlog.errors import BadRequest, ConfigError, IndexOutOfRange
from quorumlog.net.loop_thread import LoopThread, Shell
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, RequestTarget, TargetKind
from quorumlog.wire.client_messages import ReadResponse
from quorumlog.wire.read_promise import COMMITTED, CONSISTENCIES, READ_INDEX, ReadGuarantee

LEADER_NAME = "leader"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh an answer was: everything acknowledged to any client `age_ms` before the member sent it
    is at or below `index`."""

    index: int
    """The member's committed index."""
    age_ms: float | None
    """None: unknown to the member."""
    member_id: str
    """Empty: not reported."""


class ReadChoice(NamedTuple):
    target: RequestTarget = LEADER
    consistency: str = ""
    """Empty: none was named, so the leader answers as it is, and ends of the log are confirmed."""
    max_staleness_ms: float = -1.0

    @property
    def member(self) -> str | None:
        """For a question that only a member with the entries can answer."""
        return self.target.name if self.target.kind is TargetKind.MEMBER else None

    def promise(self, at_least_index: int) -> ReadGuarantee | None:
        """`at_least_index`: of the client's own appends or known entries."""
        if not self.consistency:
            return None
        if self.consistency == READ_INDEX:
            return ReadGuarantee(consistency=READ_INDEX)
        return ReadGuarantee(max_staleness_ms=self.max_staleness_ms, at_least_index=at_least_index)


class ReadDefaults:
    """Of one client, for reads that do not say."""

    def __init__(
        self, read_consistency: str | None, max_staleness_ms: float | None, read_from: str | None
    ) -> None:
        """Raises ConfigError."""
        self._defaults = ReadChoice()
        try:
            self._defaults = self.choice(read_from, read_consistency, max_staleness_ms)
        except BadRequest as error:
            raise ConfigError(str(error).replace("from_member", "read_from")) from None

    def choice(
        self,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> ReadChoice:
        """Raises BadRequest."""
        defaults = self._defaults
        consistency, staleness_ms = defaults.consistency, defaults.max_staleness_ms
        if read_consistency is not None:
            if read_consistency not in CONSISTENCIES:
                known = " or ".join(CONSISTENCIES)
                raise BadRequest(f"read_consistency must be {known}, not {read_consistency!r}")
            consistency = read_consistency
            staleness_ms = staleness_ms if consistency == COMMITTED else -1.0
        if max_staleness_ms is not None:
            checked_ms = milliseconds(max_staleness_ms)
            if checked_ms is None or checked_ms < 0:
                raise BadRequest(
                    f"max_staleness_ms must be a number of milliseconds, not {max_staleness_ms!r}"
                )
            consistency, staleness_ms = consistency or COMMITTED, checked_ms
            if consistency == READ_INDEX:
                raise BadRequest(
                    "max_staleness_ms goes with read_consistency committed only: read_index is never"
                    " stale"
                )
        return ReadChoice(self._target(from_member, consistency), consistency, staleness_ms)

    def _target(self, from_member: str | None, consistency: str) -> RequestTarget:
        if from_member == LEADER_NAME:
            return LEADER
        if from_member is not None:
            return read_target(from_member)
        if self._defaults.consistency or self._defaults.target is not LEADER:
            return self._defaults.target
        return ANY_MEMBER if consistency else LEADER


# ----------------------------------------------------------------
# Options that reads share, by name: `LedgerClient.read` and `LedgerClient.tail` say what each means.


class ReadOptions(TypedDict, total=False):
    limit: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None


class TailOptions(TypedDict, total=False):
    wait: bool
    timeout_ms: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None


def freshness_of(request: Request, end: ReadResponse | IndexOutOfRange) -> Freshness:
    link = request.answered_on
    member_id = link.hello.member_id if link is not None and link.hello is not None else ""
    return Freshness(end.committed_index, end.age_ms if end.age_ms >= 0 else None, member_id)


T = TypeVar("T")


class AsyncResults(AsyncIterator[T]):
    """The results of a read, one by one: iterate with `async for`. A caller that breaks off should close
    it, with `async with` or `contextlib.aclosing`; a task that waits for the next result then finds the
    end. If a waiting task is cancelled, as by a time-out, the iteration can go on, with `anext` or
    `async for` of this object: nothing is lost. What `aiter` returned before is at its end then."""

    def __init__(self, reading: Reading[T], described: str) -> None:
        self._reading = reading
        self._described = described
        self._results = self._all()

    async def _all(self) -> AsyncGenerator[T]:
        goes_on = False
        try:
            while (part := await self._reading.next_part()) is not None:
                for result in part:
                    yield result
        except asyncio.CancelledError:
            # This generator is over, as if the log were at its end; the reading is where it was.
            self._results, goes_on = self._all(), True
            raise
        finally:
            if not goes_on:
                self._reading.stop()

    @property
    def freshness(self) -> Freshness | None:
        """Of the newest answer; None before the first has come."""
        return None if self._reading.end_source is None else freshness_of(*self._reading.end_source)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._described}>"

    def __aiter__(self) -> AsyncIterator[T]:
        return self._results

    async def __anext__(self) -> T:
        # A task that is cancelled before its first step has not touched the generator.
        return await anext(self._results)

    async def aclose(self) -> None:
        """Ask for nothing more. May be called twice, and while another task waits."""
        self._reading.stop()
        with contextlib.suppress(RuntimeError):  # another task is inside, and on its way out
            await self._results.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class Results(Shell[AsyncResults[T]], Iterator[T]):
    """The results of a read, one by one. A caller that stops early should `close` it, from any thread; a
    thread that waits for the next result then finds the end. `with`, or `contextlib.closing`, does it.
    """

    def __init__(self, thread: LoopThread, made: AsyncResults[T]) -> None:
        super().__init__(thread, made)
        self._results = self._all()

    def _all(self) -> Generator[T]:
        try:
            while (part := self._next_part()) is not None:
                yield from part
        finally:
            if not self._is_left:
                self._thread.start(self._made.aclose())

    def _next_part(self) -> Iterable[T] | None:
        reading = self._made._reading
        try:
            return self._step(reading.next_part)
        except BadRequest:
            if not self._thread.has_ended():
                raise
        reading.sender.end()
        return at_once(reading.next_part())  # a tail is at its end

    @property
    def freshness(self) -> Freshness | None:
        """See `AsyncResults.freshness`."""
        return self._made.freshness

    def __repr__(self) -> str:
        return f"<Results of {self._made._described}>"

    def __iter__(self) -> Iterator[T]:
        return self._results  # the loop that is entered runs without a call of Python's a result

    def __next__(self) -> T:
        return next(self._results)

    def close(self) -> None:
        """Ask for nothing more. May be called twice, and while another thread waits."""
        if not self._is_left:
            self._thread.run(self._made.aclose())
        with contextlib.suppress(ValueError):  # another thread is inside, and on its way out
            self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
