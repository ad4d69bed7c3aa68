"""What a client asks of the state of a log: readers, producers, state machines, members, time marks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from quorumlog.append_times import AppendTimes
from quorumlog.client.arguments import checked_producer, time_ms_of, whole
from quorumlog.client.protocol.client_requests import read_target
from quorumlog.client.result_streams import Step, Verb, request_of
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    IndexOutOfRange,
    OutcomeUnknown,
    ReaderMoved,
    Refused,
    UnknownReader,
)
from quorumlog.log_state.control_entries import MOST_INDEX
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.net.system import now_ms
from quorumlog.wire.client_messages import (
    ChangeMembersRequest,
    ChangeMembersResponse,
    FindMarkRequest,
    FindMarkResponse,
    ForgetProducer,
    ForgetProducerResponse,
    LastSequence,
    LastSequenceResponse,
    ListProducers,
    ListProducersResponse,
    MoveReaderRequest,
    MoveReaderResponse,
    ProducerInfo,
    ReadersRequest,
    ReadersResponse,
    ResetClockRequest,
    ResetClockResponse,
    StepOverRequest,
    StepOverResponse,
)

GivenHold: TypeAlias = bool | Literal["archive"]
_HOLDS: tuple[GivenHold, ...] = (False, True, "archive")
"""By `log_state.control_entries.Hold`."""


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    position: int
    """Index of the next entry that it wants."""
    hold: GivenHold
    """What it has not read is kept: True, unless somebody forces it; "archive", always."""
    lag_entries: int
    """Data from `position` to what is committed. Of a reader that is a million entries behind, and of a
    server of an older release, the few control entries between count as well."""
    lag_ms: int
    """From the time of the first data at or behind `position` that is still there to that of the newest;
    -1: the log does not say."""
    lost_ranges: tuple[tuple[int, int], ...]
    """(first_index, stop_index) of what it wanted to be held and that was given up by force."""
    skipped_entries: int = 0
    """That it went on without, since they were gone when it came to them: `NamedReader.note_skipped`."""
    skipped_ranges: tuple[tuple[int, int], ...] = ()
    """(first_index, stop_index) of the newest of them."""


def hold_of(number: int) -> GivenHold:
    """A newer server may know more of them, which all hold at least as much."""
    return _HOLDS[min(number, len(_HOLDS) - 1)]


def number_of(hold: GivenHold | None) -> int | None:
    """Raises BadRequest."""
    if hold is None:
        return None
    for number, known in enumerate(_HOLDS):
        if hold is known or (isinstance(hold, str) and hold == known):
            return number
    raise BadRequest(f'hold must be True, False or "archive", not {hold!r}')


def refuse_consumer(readers: Iterable[ReaderRow], name: str, what: str) -> None:
    """Led on by `what`, which has another use for it, a consumer would never see what it had not read by
    then. Raises ConfigError."""
    for reader in readers:
        if reader.name == name and reader.hold != "archive":
            raise ConfigError(
                f"hold: {name} is a reader of the log, which stands at {reader.position}, and {what}"
                " would lead it past what it has not read: choose another name"
            )


def rows_of(response: ReadersResponse) -> list[ReaderRow]:
    return [
        ReaderRow(
            name=reader.name,
            position=reader.position,
            hold=hold_of(reader.hold),
            lag_entries=reader.lag_entries
            if reader.lag_entries >= 0
            else max(0, response.committed_index + 1 - reader.position),
            lag_ms=reader.lag_ms,
            lost_ranges=reader.lost_ranges,
            skipped_entries=reader.skipped_entries,
            skipped_ranges=reader.skipped_ranges,
        )
        for reader in response.readers
    ]


# ----------------------------------------------------------------
# What the leader is asked of the producers that the log remembers, as `verbs` are written.


def last_sequence(own_producer: str | None, timeout_ms: float) -> Verb[int]:
    """Of the client's own one, whose session is opened first."""
    if own_producer is None:
        raise BadRequest("this client has no producer: connect(..., producer_id=...)")
    request = request_of(LastSequence(producer=own_producer), LEADER, timeout_ms, in_session=True)
    yield Step((request,), (request,))
    return response_of(request, LastSequenceResponse).producer.last_sequence


def producers(timeout_ms: float) -> Verb[list[ProducerInfo]]:
    found = list[ProducerInfo]()
    while True:
        after = found[-1].producer if found else ""
        request = request_of(ListProducers(after=after), LEADER, timeout_ms)
        yield Step((request,), (request,))
        response = response_of(request, ListProducersResponse)
        found += response.producers
        if response.is_last:
            return found


def producer(producer_id: str, timeout_ms: float) -> Verb[ProducerInfo]:
    message = LastSequence(producer=checked_producer(producer_id))
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, LastSequenceResponse).producer


def forget(producer_id: str, timeout_ms: float) -> Verb[ProducerInfo]:
    known = yield from producer(producer_id, timeout_ms)
    message = ForgetProducer(producer=known.producer, epoch=known.epoch)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    response_of(request, ForgetProducerResponse)
    return known


# ----------------------------------------------------------------
# What the leader is asked of the readers that the cluster keeps, as `verbs` are written.


class ReaderStand(NamedTuple):
    position: int
    hold: int
    last_index: int = -1
    """Of the entry that named it last; -1: the server did not say."""
    seen_index: int = -1
    """Up to where the log is that says so; -1: the server did not say."""

    @property
    def known_index(self) -> int | None:
        """For what is asked next."""
        return self.seen_index if self.seen_index >= 0 else None


def seek(name: str, position: int, stand: ReaderStand) -> MoveReaderRequest:
    last_index = stand.last_index if stand.last_index >= 0 else None
    return MoveReaderRequest(
        reader=name, position=position, seeks_from=stand.position, last_index=last_index
    )


def open_reader(message: MoveReaderRequest, timeout_ms: float) -> Verb[ReaderStand]:
    """`message` is for the log as it is when this begins: made again, its outcome unknown, it must not
    make a reader anew that somebody else has ended meanwhile."""
    deadline_ms = now_ms() + timeout_ms
    asked = request_of(ReadersRequest(), LEADER, timeout_ms)
    yield Step((asked,), (asked,))
    seen_index = response_of(asked, ReadersResponse).committed_index
    return (yield from move(replace(message, seen_index=seen_index), deadline_ms - now_ms()))


def move(message: MoveReaderRequest, timeout_ms: float) -> Verb[ReaderStand]:
    """Made again where nobody knows whether it was done: a second time it changes nothing. Said once
    more where it was meant for an older log; but neither an opening nor an end whose outcome is unknown,
    since somebody may have ended or made that reader by now, and a commit only if nobody can have led
    the reader back behind it."""
    deadline_ms = now_ms() + timeout_ms
    unknown: OutcomeUnknown | None = None
    while True:
        request = request_of(message, LEADER, deadline_ms - now_ms())
        yield Step((request,), (request,))
        error = request.error
        if message.ends and unknown is not None and isinstance(error, UnknownReader):
            return ReaderStand(-1, 0)
        if (
            isinstance(error, ReaderMoved)
            and message.seen_index is not None
            and error.committed_index > message.seen_index
            and not ((message.ends or message.opens) and unknown is not None)
            and now_ms() < deadline_ms
        ):
            if unknown is not None:
                yield from _check_not_led_back(message, unknown, deadline_ms)
            message = replace(message, seen_index=error.committed_index)
        elif isinstance(error, OutcomeUnknown) and now_ms() < deadline_ms:
            unknown = error
        elif unknown is not None and isinstance(error, Refused) and error.retriable:
            raise unknown  # no time was left to make it again
        elif unknown is not None and isinstance(error, ReaderMoved | IndexOutOfRange):
            raise unknown  # it may have been done before the reader, or the log, went on
        else:
            response = response_of(request, MoveReaderResponse)
            return ReaderStand(
                response.position, response.hold, response.last_index, response.seen_index
            )


def _check_not_led_back(
    message: MoveReaderRequest, unknown: OutcomeUnknown, deadline_ms: float
) -> Verb[None]:
    """A commit with an unknown outcome was refused, as meant for an older log. Raises `unknown` if it
    may have been done, and the reader been led back since: once more, it would undo that."""
    assert message.position is not None
    assert message.seen_index is not None
    request = request_of(ReadersRequest(), LEADER, deadline_ms - now_ms())
    yield Step((request,), (request,))
    if request.error is not None:
        raise unknown
    found = response_of(request, ReadersResponse).readers
    reader = next((each for each in found if each.name == message.reader), None)
    if reader is None:
        raise unknown
    is_as_it_was = 0 <= reader.last_index <= message.seen_index
    if not is_as_it_was and reader.position < message.position:
        raise unknown


def readers(timeout_ms: float) -> Verb[list[ReaderRow]]:
    request = request_of(ReadersRequest(), LEADER, timeout_ms)
    yield Step((request,), (request,))
    return rows_of(response_of(request, ReadersResponse))


def checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise BadRequest(f"the name of a reader is a text, not {name!r}")
    return "".join(name)


# ----------------------------------------------------------------
# What the leader is asked to change about its state machines, as `verbs` are written.


def step_over(machine: str, index: int, unsafe: bool, timeout_ms: float) -> Verb[int]:
    if not isinstance(machine, str) or not machine:
        raise BadRequest(f"machine must be the name of a state machine, not {machine!r}")
    if type(index) is not int or not 0 <= index <= MOST_INDEX:
        raise BadRequest(f"index must be that of an entry, from 0 on, not {index!r}")
    message = StepOverRequest(machine=machine, index=index, unsafe=unsafe)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, StepOverResponse).index


# ----------------------------------------------------------------
# What the leader is asked to change about the members, as `verbs` are written.


class Members(NamedTuple):
    """Ids of those who are in a group, once a change of it is committed."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]


def change_members(
    verb: str, member_id: str, address: str, dry_run: bool, timeout_ms: float
) -> Verb[Members]:
    for name, text in (("verb", verb), ("member_id", member_id), ("address", address)):
        if not isinstance(text, str) or (not text and name != "address"):
            raise BadRequest(f"{name} must be a text, not {text!r}")
    if verb == "add" and ("=" in member_id or "," in member_id or member_id.split() != [member_id]):
        # Nobody would ever answer under it, and the command would wait.
        raise BadRequest(f"{member_id!r} is no id of a member: it has no blanks, commas and =")
    message = ChangeMembersRequest(verb=verb, member_id=member_id, address=address, dry_run=dry_run)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    response = response_of(request, ChangeMembersResponse)
    return Members(response.voters, response.learners)


# ----------------------------------------------------------------
# What a member is asked of the time marks in its log, as `verbs` are written.


def index_at(time: datetime, from_member: str | None, timeout_ms: float) -> Verb[int]:
    found = yield from _find(FindMarkRequest(time_ms=time_ms_of(time)), from_member, timeout_ms)
    return max(found.index, found.ledger_begin_index)


def time_ms_at(index: int, from_member: str | None, timeout_ms: float) -> Verb[int]:
    """-1: no mark stands in front of it."""
    index = whole("index", index)
    if index < 0:
        raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
    found = yield from _find(FindMarkRequest(index=index), from_member, timeout_ms)
    if not found.ledger_begin_index <= index <= found.committed_index:
        raise IndexOutOfRange(
            f"index {index} is not between ledger_begin_index {found.ledger_begin_index} and"
            f" committed_index {found.committed_index}",
            ledger_begin_index=found.ledger_begin_index,
            committed_index=found.committed_index,
        )
    return found.time_ms


def append_times(first_index: int, from_member: str | None, timeout_ms: float) -> Verb[AppendTimes]:
    """For entries from this one on, which is committed."""
    found = yield from _find(FindMarkRequest(index=first_index), from_member, timeout_ms)
    return AppendTimes(found.time_ms, found.clock_resets)


def clock_resets(from_member: str | None, timeout_ms: float) -> Verb[Resets]:
    """Of the committed log, by index."""
    found = yield from _find(FindMarkRequest(index=0), from_member, timeout_ms)
    return found.clock_resets


def reset_clock(timeout_ms: float) -> Verb[Reset]:
    request = request_of(ResetClockRequest(), LEADER, timeout_ms)
    yield Step((request,), (request,))
    response = response_of(request, ResetClockResponse)
    return Reset(response.index, response.time_ms)


def _find(
    message: FindMarkRequest, from_member: str | None, timeout_ms: float
) -> Verb[FindMarkResponse]:
    request = request_of(message, read_target(from_member), timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, FindMarkResponse)
