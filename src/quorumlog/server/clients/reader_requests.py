"""What clients ask of the readers that the cluster keeps by name, and of what keeps segments."""

from __future__ import annotations

from itertools import repeat

from quorumlog.errors import BadRequest, LedgerError
from quorumlog.log_state.control_entries import MOST_INDEX, Hold
from quorumlog.log_state.log_state import LogState, Reader
from quorumlog.node.reader_moves import MoveOutcome, ReaderMove
from quorumlog.node.reading import MarkOutcome
from quorumlog.node.retention import WhyKept
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.log_begin import Mark
from quorumlog.wire.client_messages import SegmentInfo, WhyKeptRequest, WhyKeptResponse
from quorumlog.wire.reader_messages import (
    MoveReaderRequest,
    MoveReaderResponse,
    ReaderInfo,
    ReadersRequest,
    ReadersResponse,
)
from quorumlog.wire.wire_errors import error_response

ReaderRequest = MoveReaderRequest | ReadersRequest | WhyKeptRequest
READER_REQUESTS = (MoveReaderRequest, ReadersRequest, WhyKeptRequest)


class ReaderRequests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, driver: NodeDriver, request: ReaderRequest) -> None:
        if isinstance(request, MoveReaderRequest):
            self._move_reader(driver, request)
        elif isinstance(request, ReadersRequest):
            self._readers(driver, request)
        else:
            self._why_kept(driver, request)

    def _refuse(self, driver: NodeDriver, request_id: int, error: LedgerError) -> None:
        self._connection.send(driver.config.group, error_response(request_id, error))

    def _move_reader(self, driver: NodeDriver, request: MoveReaderRequest) -> None:
        def done(outcome: MoveOutcome) -> None:
            if isinstance(outcome, LedgerError):
                self._refuse(driver, request.request_id, outcome)
                return
            response = MoveReaderResponse(
                request_id=request.request_id,
                position=outcome.position,
                hold=outcome.hold,
                last_index=outcome.last_index,
                seen_index=outcome.seen_index,
            )
            self._connection.send(driver.config.group, response)

        try:
            move = _move_of(request)
        except BadRequest as error:
            done(error)
            return
        driver.node.readers.move(move, done, self._connection)

    def _readers(self, driver: NodeDriver, request: ReadersRequest) -> None:
        def confirmed(refusal: LedgerError | None) -> None:
            if refusal is not None:
                self._refuse(driver, request.request_id, refusal)
                return
            try:
                state = driver.node.log_state.committed_state()
            except LedgerError as error:
                self._refuse(driver, request.request_id, error)
                return
            committed_index = driver.node.committed_index
            positions = [reader.position for reader in state.readers]
            lags_ms: list[int] = []

            def answer(lags: list[int]) -> None:
                response = ReadersResponse(
                    request_id=request.request_id,
                    committed_index=committed_index,
                    keep_from_index=state.keep_from_index,
                    readers=tuple(map(_info_of, state.readers, lags, lags_ms, repeat(state))),
                )
                self._connection.send(driver.config.group, response)

            def next_lag(mark: MarkOutcome) -> None:
                lag_ms = -1
                if isinstance(mark, Mark) and state.time_ms is not None:
                    lag_ms = max(0, state.time_ms - mark.time_ms)
                lags_ms.append(lag_ms)
                look()

            def look() -> None:
                """One reader after the other: they share the thread that reads for everybody."""
                while len(lags_ms) < len(positions):
                    position = positions[len(lags_ms)]
                    if position <= committed_index:
                        driver.node.marks.at_data_from(position, next_lag)
                        return
                    lags_ms.append(0)
                driver.node.lags.count(positions, committed_index + 1, answer)

            look()

        driver.node.confirm_leadership(confirmed, self._connection)

    def _why_kept(self, driver: NodeDriver, request: WhyKeptRequest) -> None:
        def explained(why: WhyKept | LedgerError) -> None:
            if isinstance(why, LedgerError):
                self._refuse(driver, request.request_id, why)
                return
            segments = tuple(
                SegmentInfo(
                    first_index=each.first_index,
                    stop_index=each.stop_index,
                    size_bytes=each.size_bytes,
                    time_ms=-1 if each.time_ms is None else each.time_ms,
                    reasons=each.reasons,
                )
                for each in why.segments
            )
            response = WhyKeptResponse(
                request_id=request.request_id,
                keep_from_index=why.keep_from_index,
                used_ratio=why.used_ratio,
                segments=segments,
            )
            self._connection.send(driver.config.group, response)

        refusal = driver.node.refusal_unless_leading()
        if refusal is not None:
            explained(refusal)
        else:
            driver.node.retention.explain(explained)


def _info_of(reader: Reader, lag_entries: int, lag_ms: int, state: LogState) -> ReaderInfo:
    lost = [each for each in state.lost_ranges if each.name == reader.name]
    return ReaderInfo(
        name=reader.name,
        position=reader.position,
        hold=reader.hold,
        last_index=reader.last_index,
        lag_ms=lag_ms if lag_entries else 0,
        lag_entries=lag_entries,
        lost_ranges=tuple((each.first_index, each.stop_index) for each in lost),
        skipped_entries=reader.skipped_entries,
        skipped_ranges=reader.skipped_ranges,
    )


def _move_of(request: MoveReaderRequest) -> ReaderMove:
    """Raises BadRequest."""
    numbers = [n for n in (request.position, request.seeks_from) if n is not None]
    if any(not 0 <= number <= MOST_INDEX for number in numbers):
        raise BadRequest(f"positions of a reader are indices of entries, unlike {numbers}")
    if request.hold is not None and request.hold not in tuple(Hold):
        raise BadRequest(f"a reader holds 0 (nothing), 1 or 2 (as an archive), not {request.hold}")
    if request.last_chain is not None and not 0 <= request.last_chain < 2**32:
        raise BadRequest(f"the chain of an entry has 32 bits, unlike {request.last_chain}")
    if request.skipped is not None and not 0 <= request.skipped[0] < request.skipped[1] <= MOST_INDEX:
        raise BadRequest(f"what a reader skips is a range of indices, unlike {request.skipped}")
    return ReaderMove(
        request.reader,
        request.position,
        None if request.hold is None else Hold(request.hold),
        request.seeks_from,
        request.ends,
        request.opens,
        request.last_index,
        request.seen_index,
        request.last_chain,
        request.skipped,
    )
