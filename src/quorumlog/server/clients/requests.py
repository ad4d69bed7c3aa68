"""Requests of clients besides entries: for each kind a function that returns the response or raises the
refusal, and may await the member's answer.
"""

from __future__ import annotations

import math
import secrets
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import BadRequest, CommandError, LedgerError, NotCaughtUp, TooStale
from quorumlog.log_state.control_entries import MOST_INDEX, Hold
from quorumlog.log_state.log_state import LogState, Reader, Reset
from quorumlog.node.member_changes import MemberChange, MemberOperation
from quorumlog.node.operator_orders import FinishedUpgrade
from quorumlog.node.producer_sessions import KnownProducer, ProducerConnected
from quorumlog.node.reader_moves import MovedReader, ReaderMove
from quorumlog.node.retention import WhyKept
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.log_points import LOG_ORIGIN, LogStart
from quorumlog.wire import client_messages as wire
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.read_promise import COMMITTED, CONSISTENCIES, READ_INDEX, ReadGuarantee

CATCH_UP_WAIT_MS = 1000
"""For the client's own appends; then another member may have them."""
RETRY_MS = 20

FreshnessCallback = Callable[[float | LedgerError], None]
"""Gets since when nothing is missing (-inf: only the member's own freshness counts), or a refusal."""


def age_of(driver: NodeDriver, since_ms: float) -> float:
    """Nothing is missing that was acknowledged before `since_ms`; -1: nothing is known."""
    age_ms = driver.node.raft.reads.now_ms - since_ms
    return age_ms if age_ms < math.inf else -1.0


def wait_for_promise(
    driver: NodeDriver, promise: ReadGuarantee, done: FreshnessCallback, owner: object
) -> None:
    """Call `done` once this member's committed index meets the promise."""
    node, index = driver.node, promise.at_least_index
    reads = node.raft.reads
    if promise.consistency == READ_INDEX:
        since_ms = reads.now_ms  # it joins only a round that begins after this
        node.confirmations.request_read(lambda refusal: done(refusal or since_ms), owner)
    elif promise.consistency != COMMITTED:
        known = " and ".join(CONSISTENCIES)
        done(BadRequest(f"{promise.consistency!r} is no read_consistency; this release knows {known}"))
    elif index <= node.committed_index:
        done(refusal_of_age(driver, promise, reads.fresh_since_ms()) or -math.inf)
    else:

        def woken() -> None:
            refusal: LedgerError | None = refusal_of_age(driver, promise, reads.fresh_since_ms())
            if index > node.committed_index:
                refusal = NotCaughtUp(
                    f"{driver.config.member_id} has committed entries up to {node.committed_index},"
                    f" and not up to {index} yet, which this client has appended",
                    retry_after_ms=RETRY_MS,
                )
            done(refusal or -math.inf)

        driver.reads.wait_for(index, CATCH_UP_WAIT_MS, woken)


def refusal_of_age(driver: NodeDriver, promise: ReadGuarantee, since_ms: float) -> LedgerError | None:
    """Asked once more when the answer is there: it may have been read from a file."""
    most_ms = promise.max_staleness_ms
    if most_ms < 0:
        return None
    age_ms = age_of(driver, since_ms)
    if 0 <= age_ms <= most_ms:
        return None
    how_old = f"may be {age_ms:.0f} ms old" if age_ms >= 0 else "is of unknown age"
    return TooStale(
        f"the committed index that {driver.config.member_id} knows {how_old}, and {most_ms:.0f} ms are"
        " allowed",
        retry_after_ms=RETRY_MS,
    )


ANSWER_LIMIT_BYTES = 8 << 20
"""Of an answer of a state machine, or of the results of an append."""
LIST_LIMIT = 10_000
"""Producers of one answer at most, regardless of the request."""

OutcomeCallback = Callable[[Any], None]
Serving = Coroutine[Callable[[OutcomeCallback], None], Any, ClientMessage]


@types.coroutine
def outcome_of(ask: Callable[[OutcomeCallback], None]) -> Generator[Any, Any, Any]:
    """The outcome that the member later passes to the callback of `ask`; a refusal is raised."""
    outcome = yield ask
    if isinstance(outcome, LedgerError):
        raise outcome
    return outcome


# ---------------------------------------------------------------- the log


async def layout(driver: NodeDriver, _: wire.LayoutRequest, owner: object) -> ClientMessage:
    config, node = driver.config, driver.node
    start = node.store.start or LogStart(LOG_ORIGIN, b"")
    return wire.LayoutResponse(
        member_id=config.member_id,
        cluster_id=node.directory.formation.cluster_id,
        segment_bytes=config.storage.segment_bytes,
        index_segment_bytes=config.storage.index_segment_bytes,
        begin_index=start.point.index,
        begin_term=start.point.term,
        begin_chain=start.point.chain,
        begin_position=start.point.position,
        begin_record=start.record,
    )


async def find_mark(driver: NodeDriver, request: wire.FindMarkRequest, owner: object) -> ClientMessage:
    node = driver.node
    if request.index >= 0:
        mark = await outcome_of(lambda done: node.marks.at_index(request.index, done))
    else:
        mark = await outcome_of(lambda done: node.marks.at_time(request.time_ms, done))
    return wire.FindMarkResponse(
        index=-1 if mark is None else mark.index,
        time_ms=-1 if mark is None else mark.time_ms,
        ledger_begin_index=node.store.begin.index + 1,
        committed_index=node.committed_index,
        clock_resets=node.marks.clock_resets,
    )


async def why_kept(driver: NodeDriver, _: wire.WhyKeptRequest, owner: object) -> ClientMessage:
    raise_if(driver.node.refusal_unless_leading())
    why: WhyKept = await outcome_of(driver.node.retention.explain)
    return wire.WhyKeptResponse(
        keep_from_index=why.keep_from_index,
        used_ratio=why.used_ratio,
        segments=tuple(
            wire.SegmentInfo(
                first_index=each.first_index,
                stop_index=each.stop_index,
                size_bytes=each.size_bytes,
                time_ms=-1 if each.time_ms is None else each.time_ms,
                reasons=each.reasons,
            )
            for each in why.segments
        ),
    )


# ---------------------------------------------------------------- what is ordered


async def reload(driver: NodeDriver, _: wire.ReloadRequest, owner: object) -> ClientMessage:
    return driver.reload()


async def transfer(driver: NodeDriver, request: wire.TransferRequest, owner: object) -> ClientMessage:
    change: RoleChange = await outcome_of(lambda done: driver.node.transfer(request.to_member_id, done))
    return wire.TransferResponse(leader_id=change.leader_id or "", term=change.term)


async def change_members(
    driver: NodeDriver, request: wire.ChangeMembersRequest, owner: object
) -> ClientMessage:
    if request.verb not in tuple(MemberOperation):
        raise BadRequest(f"{request.verb!r} is none of {', '.join(MemberOperation)}")
    operation = MemberOperation(request.verb)
    change = MemberChange(operation, request.member_id, request.address, request.dry_run)
    members: Membership = await outcome_of(lambda done: driver.change_members(change, done))
    return wire.ChangeMembersResponse(
        voters=tuple(voter.member_id for voter in members.new),
        learners=tuple(learner.member_id for learner in members.learners),
    )


async def reset_clock(driver: NodeDriver, _: wire.ResetClockRequest, owner: object) -> ClientMessage:
    reset: Reset = await outcome_of(driver.node.orders.reset_clock)
    return wire.ResetClockResponse(index=reset.index, time_ms=reset.time_ms)


async def finish_upgrade(
    driver: NodeDriver, _: wire.FinishUpgradeRequest, owner: object
) -> ClientMessage:
    finished: FinishedUpgrade = await outcome_of(driver.node.orders.finish_upgrade)
    return wire.FinishUpgradeResponse(index=finished.at_index, level=finished.level)


async def step_over(driver: NodeDriver, request: wire.StepOverRequest, owner: object) -> ClientMessage:
    step_overs = driver.node.machines.step_overs
    arguments = (request.machine, request.index, request.unsafe)
    index = await outcome_of(lambda done: step_overs.request(*arguments, done))
    return wire.StepOverResponse(index=index)


# ---------------------------------------------------------------- users


async def change_users(
    driver: NodeDriver, request: wire.ChangeUsersRequest, owner: object
) -> ClientMessage:
    secret = secrets.token_bytes(32)
    index: int = await outcome_of(
        lambda done: driver.node.orders.change_users(request.order, secret, done)
    )
    return wire.ChangeUsersResponse(index=index)


async def list_users(driver: NodeDriver, _: wire.UsersRequest, owner: object) -> ClientMessage:
    await outcome_of(lambda done: driver.node.confirm_leadership(done, owner))
    return wire.users_response(0, driver.node.log_state.committed_state().users)


# ---------------------------------------------------------------- state machines


async def ask_machine(
    driver: NodeDriver, request: wire.MachineReadRequest, owner: object
) -> ClientMessage:
    machines, promise, since_ms = driver.node.machines, request.promise, -math.inf
    timeout_ms = request.timeout_ms or driver.config.append_timeout_ms
    arguments = (request.machine, request.question, timeout_ms)
    if promise is None:
        answer, index = await outcome_of(lambda done: machines.ask(*arguments, done, owner))
    else:
        since_ms = await outcome_of(lambda done: wait_for_promise(driver, promise, done, owner))
        # What is committed by now is applied first, so the answer is as fresh as that is now.
        since_ms = max(since_ms, driver.node.raft.reads.fresh_since_ms())
        answer, index = await outcome_of(lambda done: machines.ask_here(*arguments, done, owner))
        raise_if(refusal_of_age(driver, promise, since_ms))
    if len(answer) > ANSWER_LIMIT_BYTES:
        raise CommandError(
            f"an answer of {len(answer)} bytes is above the limit of {ANSWER_LIMIT_BYTES}"
        )
    return wire.MachineReadResponse(answer=answer, applied_index=index, age_ms=age_of(driver, since_ms))


# ---------------------------------------------------------------- producers


async def connect_producer(
    driver: NodeDriver, request: wire.ConnectProducer, owner: object
) -> ClientMessage:
    deadline_ms = driver.node.deadline_ms(request.timeout_ms)
    arguments = (request.producer, request.token, request.ends, deadline_ms)
    connected: ProducerConnected = await outcome_of(
        lambda done: driver.node.sessions.connect(*arguments, done, owner, request.seen_index)
    )
    return wire.ConnectProducerResponse(**connected._asdict())


async def last_sequence(driver: NodeDriver, request: wire.LastSequence, owner: object) -> ClientMessage:
    known = await outcome_of(lambda done: driver.node.sessions.show(request.producer, done, owner))
    return wire.LastSequenceResponse(producer=_producer_info(known))


async def list_producers(
    driver: NodeDriver, request: wire.ListProducers, owner: object
) -> ClientMessage:
    limit = max(1, min(request.limit, LIST_LIMIT))
    known: list[KnownProducer] = await outcome_of(
        lambda done: driver.node.sessions.list(request.after, limit, done, owner)
    )
    rows = tuple(map(_producer_info, known))
    return wire.ListProducersResponse(producers=rows, is_last=len(known) < limit)


async def forget_producer(
    driver: NodeDriver, request: wire.ForgetProducer, owner: object
) -> ClientMessage:
    arguments = (request.producer, request.epoch, driver.node.deadline_ms(0))
    await outcome_of(lambda done: driver.node.sessions.forget(*arguments, done, owner))
    return wire.ForgetProducerResponse()


def _producer_info(known: KnownProducer) -> wire.ProducerInfo:
    session = known.session
    newest = session.batches[-1][-1] if session.batches else None
    return wire.ProducerInfo(
        producer=known.producer,
        epoch=session.epoch,
        last_sequence=session.last_sequence,
        last_index=-1 if newest is None else newest.first_index + newest.count - 1,
    )


# ---------------------------------------------------------------- readers


async def move_reader(
    driver: NodeDriver, request: wire.MoveReaderRequest, owner: object
) -> ClientMessage:
    move = _move_of(request)
    moved: MovedReader = await outcome_of(lambda done: driver.node.readers.move(move, done, owner))
    return wire.MoveReaderResponse(**moved._asdict())


async def list_readers(driver: NodeDriver, _: wire.ReadersRequest, owner: object) -> ClientMessage:
    node = driver.node
    await outcome_of(lambda done: node.confirm_leadership(done, owner))
    state, committed_index = node.log_state.committed_state(), node.committed_index
    positions = [reader.position for reader in state.readers]
    lags_ms = [
        await _lag_ms(driver, position, state) if position <= committed_index else 0
        for position in positions
    ]
    lags = await outcome_of(lambda done: node.lags.count(positions, committed_index + 1, done))
    rows = zip(state.readers, lags, lags_ms, strict=True)
    return wire.ReadersResponse(
        committed_index=committed_index,
        keep_from_index=state.keep_from_index,
        readers=tuple(_reader_info(*each, state) for each in rows),
    )


async def _lag_ms(driver: NodeDriver, position: int, state: LogState) -> int:
    """Of one reader after the other: they share the thread that reads for everybody."""
    try:
        mark = await outcome_of(lambda done: driver.node.marks.at_data_from(position, done))
    except LedgerError:
        return -1
    return -1 if mark is None or state.time_ms is None else max(0, state.time_ms - mark.time_ms)


def _reader_info(reader: Reader, lag_entries: int, lag_ms: int, state: LogState) -> wire.ReaderInfo:
    lost = [each for each in state.lost_ranges if each.name == reader.name]
    return wire.ReaderInfo(
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


def _move_of(request: wire.MoveReaderRequest) -> ReaderMove:
    """Raises BadRequest."""
    numbers = [n for n in (request.position, request.seeks_from) if n is not None]
    if any(not 0 <= number <= MOST_INDEX for number in numbers):
        raise BadRequest(f"positions of a reader are indices of entries, unlike {numbers}")
    if request.hold is not None and request.hold not in tuple(Hold):
        raise BadRequest(f"a reader holds 0 (nothing), 1 or 2 (as an archive), not {request.hold}")
    if request.last_chain is not None and not 0 <= request.last_chain < 2**32:
        raise BadRequest(f"the chain of an entry has 32 bits, unlike {request.last_chain}")
    if request.skipped is not None and not 0 <= request.skipped[0] < request.skipped[1] <= MOST_INDEX:
        raise BadRequest(f"a reader skips a range of indices, unlike {request.skipped}")
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


def raise_if(refusal: LedgerError | None) -> None:
    if refusal is not None:
        raise refusal


SERVED: dict[type, Callable[[NodeDriver, Any, Any], Serving]] = {
    wire.LayoutRequest: layout,
    wire.FindMarkRequest: find_mark,
    wire.WhyKeptRequest: why_kept,
    wire.ReloadRequest: reload,
    wire.TransferRequest: transfer,
    wire.ChangeMembersRequest: change_members,
    wire.ResetClockRequest: reset_clock,
    wire.FinishUpgradeRequest: finish_upgrade,
    wire.StepOverRequest: step_over,
    wire.MachineReadRequest: ask_machine,
    wire.ConnectProducer: connect_producer,
    wire.LastSequence: last_sequence,
    wire.ListProducers: list_producers,
    wire.ForgetProducer: forget_producer,
    wire.MoveReaderRequest: move_reader,
    wire.ReadersRequest: list_readers,
    wire.ChangeUsersRequest: change_users,
    wire.UsersRequest: list_users,
}
