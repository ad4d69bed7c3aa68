"""Entries of a running group. Planning asks every member for its status, and the leader for its
committed index. If the plan's member fails, a task continues with another one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from quorumlog.append_times import milliseconds_of
from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, MemberStatusRow, leader_of
from quorumlog.client.status_rows import STATUS_TIMEOUT_MS
from quorumlog.config import MIB
from quorumlog.errors import (
    NO_RIGHT,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    RequestTimeout,
    UnknownGroup,
    Unreachable,
)
from quorumlog.log_state.log_state import Resets
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls
from quorumlog.spark.options import COMMIT_INDEX, READ_INDEX, LedgerOptions, LogBounds, skip_lost_entries
from quorumlog.spark.partitions import (
    NO_READERS,
    EntryPoint,
    LedgerPartition,
    RangeCheck,
    RangeMismatch,
    Readers,
)

_logger = logging.getLogger(__name__)

MEMBER_TIMEOUT_MS = 2000
"""For one request, before another member is asked. Too short costs a detour, no rows."""
_AVOID_S = 10.0
"""For so long a member that did not answer is asked last."""
_ASKED_AT_ONCE = 8
"""Threads of a plan that ask for entries."""
_FEW = 2
"""A task asks for no more, one after the other."""
_HEADS_OF_BYTES = 8 * MIB
"""Of the log, whose headers come together."""
_BYTES_IN_FLIGHT = 64 * MIB
"""That all tasks of a machine together have asked for; one batch each at least."""
T = TypeVar("T")
_PAUSE_S = 0.05
"""Between two rounds in which no member could serve."""
_LEAST_LOOK_MS = 250
"""A look that members have no time to answer would say that none of them does."""


def readers_of(rows: Sequence[MemberStatusRow]) -> Readers:
    """Followers are preferred, to spare the leader. Without any, any member that answers will do."""
    serving = sorted(
        (row.id, row.role == "follower") for row in rows if row.reachable and row.role != "unformed"
    )
    followers = tuple(member for member, follows in serving if follows)
    others = tuple(member for member, follows in serving if not follows)
    newest = max(rows, key=lambda row: row.membership_index, default=None)
    servers = tuple(member.address for member in newest.members if member.address) if newest else ()
    return Readers(followers, others, servers) if followers else Readers(others, servers=servers)


def batches_in_flight(options: LedgerOptions) -> int:
    """Of one task; each core runs one. Answers arrive in order: a task that ends early, and the next
    user of the connection, wait for all batches requested."""
    share = _BYTES_IN_FLIGHT // (os.cpu_count() or 1) // options.batch_bytes
    return max(min(options.batches_ahead, share), 1)


def _answer_of(rows: Sequence[MemberStatusRow]) -> str:
    """What each member says, or why it says nothing."""
    return "; ".join(f"{row.id or row.address}: {row.problem or row.role}" for row in rows)


def groups_at(options: LedgerOptions) -> list[str]:
    """See `served_groups`."""
    return client_of(options).client.groups(timeout_ms=min(STATUS_TIMEOUT_MS, options.timeout_ms))


def _said(order: Sequence[str | None], problems: Sequence[Exception]) -> str:
    """By each that was asked; the last ones may not have been."""
    return "; ".join(
        f"{_name_of(member)}: {problem}" for member, problem in zip(order, problems, strict=False)
    )


def _left_ms(deadline: float, most_ms: float) -> int:
    left_ms = int((deadline - time.monotonic()) * 1000)
    return max(_LEAST_LOOK_MS, min(left_ms, int(most_ms)))


class ServerSource:
    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._group = options.served_group
        self._client, self._failures = client_of(options)
        self._readers = NO_READERS
        stated = (each for each in (options.starting, options.ending) if isinstance(each, int))
        self._stated = max(stated, default=0)

    # ---------------------------------------------------------------- planning

    def bounds(self, reached: int = 0) -> LogBounds:
        """See docs/spark.md, readConsistency. Raises Unreachable after `timeoutMs`, UnknownGroup."""
        deadline = self._deadline()
        reached = max(reached, self._stated)
        rows = self._status(deadline)
        if not any(row.reachable for row in rows):
            self._check_group_is_served()
        while True:
            try:
                found = self._found(rows, deadline)
                if found.stop_index < reached:
                    # These members may lag. That the log ends before there only its leader can say.
                    found = self._confirmed(rows, deadline)
            except NO_RIGHT:
                raise
            except (LedgerError, ProtocolViolation) as error:
                problem = error
            else:
                self._readers = readers_of(rows)
                return found
            if time.monotonic() + _PAUSE_S >= deadline:
                raise Unreachable(
                    f"group {self._group!r} at {self._options.servers} cannot be read after"
                    f" {self._options.timeout_ms} ms (option timeoutMs): {problem}"
                )
            time.sleep(_PAUSE_S)
            rows = self._status(deadline)

    def _status(self, deadline: float) -> list[MemberStatusRow]:
        return self._client.status(timeout_ms=_left_ms(deadline, STATUS_TIMEOUT_MS))

    def _found(self, rows: Sequence[MemberStatusRow], deadline: float) -> LogBounds:
        if self._options.read_consistency in (READ_INDEX, COMMIT_INDEX):
            return self._confirmed(rows, deadline)
        if self._options.max_staleness_ms < 0:
            return self._known(rows)
        return self._fresh_enough(rows, deadline)

    def _fresh_enough(self, rows: Sequence[MemberStatusRow], deadline: float) -> LogBounds:
        """What a member knows to be committed that is not older than it may be."""
        fresh = self._client.freshness(
            max_staleness_ms=self._options.max_staleness_ms,
            timeout_ms=_left_ms(deadline, MEMBER_TIMEOUT_MS),
        )
        begins = [row.ledger_begin_index for row in rows if row.id == fresh.member_id]
        begin_index = max([0, *begins])
        return LogBounds(self._group, begin_index, max(fresh.index + 1, begin_index))

    def _confirmed(self, rows: Sequence[MemberStatusRow], deadline: float) -> LogBounds:
        """Nothing is missing that was acknowledged before."""
        leader = leader_of(rows)
        if leader is None:
            raise Unreachable(f"no member leads: {_answer_of(rows)}")
        end_index = self._client.end_index(timeout_ms=_left_ms(deadline, MEMBER_TIMEOUT_MS))
        return LogBounds(self._group, max(leader.ledger_begin_index, 0), end_index + 1)

    def _known(self, rows: Sequence[MemberStatusRow]) -> LogBounds:
        """The most that any member knows to be committed."""
        reachable = [row for row in rows if row.reachable and row.role != "unformed"]
        if not reachable:
            raise Unreachable(f"no formed member answers: {_answer_of(rows)}")
        newest = max(reachable, key=lambda row: row.committed_index)
        begin_index = max(newest.ledger_begin_index, 0)
        return LogBounds(self._group, begin_index, max(newest.committed_index + 1, begin_index))

    def _check_group_is_served(self) -> None:
        """`status` shows a refusal as a row; a wrong group name is no outage and is told at once."""
        try:
            self._client.get(0, from_member="any")
        except (UnknownGroup, *NO_RIGHT):
            raise
        except (LedgerError, ProtocolViolation):
            return

    def readers(self) -> Readers:
        return self._readers

    def follow(self, partition: LedgerPartition) -> None:
        self._readers = Readers(partition.members, servers=partition.servers)
        if partition.servers:  # those of the option may all have gone
            self._client.add_servers(partition.servers)

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        """From the leader, or else another member. Raises Unreachable after `timeoutMs`, IndexOutOfRange
        for an entry that no member holds any more."""
        deadline = self._deadline()
        if len(indices) <= _FEW:
            return [self._point_of(index, deadline) for index in indices]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
            return list(threads.map(lambda index: self._point_of(index, deadline), indices))

    def _point_of(self, index: int, deadline: float) -> EntryPoint:
        known = [*self._readers.others, *self._readers.preferred] or ["any"]

        def members() -> Iterator[str | None]:
            for number, member in enumerate((*sorted(known, key=self._failed_lately), None)):
                if number == 0 or time.monotonic() < deadline:
                    yield member

        def ask(member: str | None) -> EntryPoint:
            batches = self._client.read_batches(
                index, index + 1, from_member=member, batch_bytes=1, heads=True
            )
            header = next(batches).first_header
            return EntryPoint(header.pos, header.chain_crc)

        return self._answer_of(ask, f"entry {index}", members, deadline)

    def time_ms_at(self, index: int) -> int:
        """From the leader, or from any member that holds the entry. Raises Unreachable after
        `timeoutMs`."""
        time_at = self._answer_of(
            lambda member: self._client.time_at(index, from_member=member),
            f"the time of entry {index}",
            waits_for=index,
        )
        return -1 if time_at is None else milliseconds_of(time_at)

    def clock_resets(self) -> Resets:
        """The same."""
        return self._answer_of(
            lambda member: self._client.clock_resets(from_member=member),
            "the resets of the clock",
        )

    def _answer_of(
        self,
        ask: Callable[[str | None], T],
        what: str,
        members: Callable[[], Iterator[str | None]] | None = None,
        deadline: float | None = None,
        waits_for: int = -1,
    ) -> T:
        """Raises IndexOutOfRange where no member holds it any more. `waits_for`: an entry that a new
        leader, or a member that lags, may not know to be committed yet."""
        members, deadline = members or self._most_knowing, deadline or self._deadline()
        while True:
            order: list[str | None] = []
            errors: list[Exception] = []
            for member in members():
                order.append(member)
                try:
                    return ask(member)
                except NO_RIGHT:
                    raise
                except (LedgerError, ProtocolViolation) as failure:
                    errors.append(failure)
                    self._note_failure(member, failure)
            gone = [
                each
                for each in errors
                if isinstance(each, IndexOutOfRange) and each.committed_index >= waits_for
            ]
            if len(gone) == len(errors):
                raise gone[0]
            if time.monotonic() >= deadline:
                raise Unreachable(
                    f"no member gives {what} of group {self._group!r} within {self._options.timeout_ms}"
                    f" ms (option timeoutMs): {_said(order, errors)}"
                ) from errors[-1]
            time.sleep(_PAUSE_S)

    def _most_knowing(self) -> Iterator[str | None]:
        """The leader, then the members that know most: one that lags may not know the newest resets."""
        yield None
        rows = [row for row in self._client.status() if row.reachable and row.role != "unformed"]
        yield from (row.id for row in sorted(rows, key=lambda row: -row.committed_index))

    def chain_before(self, index: int) -> int | None:
        if index == 0:
            return None
        with suppress(IndexOutOfRange):
            [point] = self.points_of([index - 1])
            return point.chain
        layout = self._client.layout("any", timeout_ms=self._options.timeout_ms)
        return layout.begin_chain if layout.begin_index == index - 1 else None

    def cluster_id(self) -> str:
        return self._client.layout("any", timeout_ms=self._options.timeout_ms).cluster_id

    def begin_reader(self, name: str, index: int, *, hold: bool) -> None:
        wants_hold = True if hold else None
        self._client.reader(
            name, hold=wants_hold, first_index=index, timeout_ms=self._options.timeout_ms
        )

    def commit_reader(self, name: str, index: int) -> None:
        self._client.reader(name, timeout_ms=self._options.timeout_ms).commit(index)

    def note_skipped(self, name: str, first_index: int, stop_index: int) -> None:
        try:
            reader = self._client.reader(name, timeout_ms=self._options.timeout_ms)
            reader.note_skipped(first_index, stop_index)
        except LedgerError as error:  # the query goes on without them: it need not end for the count
            _logger.warning(
                "entries %d .. %d are not counted at reader %s: %s",
                *(first_index, stop_index - 1, name, error),
            )

    # ---------------------------------------------------------------- a task

    def batches(self, check: RangeCheck, *, heads: bool = False) -> Generator[EntryBatch]:
        """The client checks every body. Raises RangeMismatch if every member sends something damaged,
        Unreachable if none could serve for `timeoutMs`, LedgerDataLoss if the entries are gone and
        `failOnDataLoss` is true."""
        partition = check.partition
        # Last comes the present leader: the members of the plan may all be gone.
        members = sorted(partition.members, key=self._failed_lately)
        order: list[str | None] = [*members, None]
        deadline = self._deadline()
        while not check.is_complete:
            problems: list[Exception] = []
            for member in order:
                before = check.next_index
                try:
                    yield from self._read(check, member, heads)
                except NO_RIGHT:
                    raise
                except (LedgerError, ProtocolViolation, RangeMismatch) as error:
                    problems.append(error)
                    self._note_failure(member, error)
                if check.is_complete:
                    return
                if check.next_index > before:
                    deadline = self._deadline()
            begin_index = _lost_below(problems, check.next_index)
            if begin_index is not None:
                gone_below = min(begin_index, partition.stop_index)
                bounds = LogBounds(partition.group, begin_index, partition.stop_index)
                fail = self._options.fail_on_data_loss
                skip_lost_entries(check.next_index, gone_below, bounds, fail_on_data_loss=fail)
                if self._options.reader:
                    self.note_skipped(self._options.reader, check.next_index, gone_below)
                check.skip_to(gone_below)
                continue
            self._give_up(check, order, problems, late=time.monotonic() >= deadline)
            time.sleep(_PAUSE_S)

    def _read(self, check: RangeCheck, member: str | None, heads: bool) -> Generator[EntryBatch]:
        batches = self._client.read_batches(
            check.next_index,
            check.partition.stop_index,
            from_member=member,
            batch_bytes=_HEADS_OF_BYTES if heads else self._options.batch_bytes,
            prefetch=batches_in_flight(self._options),
            heads=heads,
        )
        for batch in batches:
            check.accept(batch, _name_of(member))
            yield batch

    def _note_failure(self, member: str | None, error: Exception) -> None:
        """A member that is down costs one task of this worker a time-out, not each."""
        if member is not None and isinstance(error, Unreachable | RequestTimeout):
            self._failures[member] = time.monotonic()

    def _failed_lately(self, member: str) -> bool:
        return time.monotonic() - self._failures.get(member, -_AVOID_S) < _AVOID_S

    def _give_up(
        self, check: RangeCheck, order: list[str | None], problems: list[Exception], *, late: bool
    ) -> None:
        """Raises if another round makes no sense: nobody's entries are sound, or the time is over."""
        damaged = all(
            isinstance(each, ProtocolViolation | RangeDamaged | RangeMismatch) for each in problems
        )
        if not damaged and not late:
            return
        text = (
            f"entries {check.next_index} .. {check.partition.stop_index - 1} of group {self._group!r}"
            f" cannot be read from any member: {_said(order, problems)}"
        )
        if damaged:
            raise RangeMismatch(text)
        raise Unreachable(f"{text} (tried for {self._options.timeout_ms} ms, option timeoutMs)")

    def _deadline(self) -> float:
        return time.monotonic() + self._options.timeout_ms / 1000.0

    def close(self) -> None:
        """The client stays: the next task of this worker uses its connections again."""


def _name_of(member: str | None) -> str:
    return member or "the leader"


def _lost_below(problems: Sequence[Exception], next_index: int) -> int | None:
    """The lowest begin if every member says that `next_index` is below its own; else None."""
    begins = [
        each.ledger_begin_index
        for each in problems
        if isinstance(each, IndexOutOfRange) and each.ledger_begin_index > next_index
    ]
    return min(begins) if begins and len(begins) == len(problems) else None


# ---------------------------------------------------------------- what a worker keeps between tasks


class SharedClient(NamedTuple):
    """A client, and when each member last failed to answer (seconds of the monotonic clock)."""

    client: LedgerClient
    failures: dict[str, float]


def client_of(options: LedgerOptions) -> SharedClient:
    """Of its one group."""
    timeout_ms = min(MEMBER_TIMEOUT_MS, options.timeout_ms)
    group = options.served_group
    return shared_client(options.servers, group, options.tls, options.as_user, timeout_ms)


_shared: dict[tuple[int, str, str, int, ClientTls | None, ClientUser | None], SharedClient] = {}
_shared_lock = threading.Lock()


def shared_client(
    servers: str,
    group: str,
    tls: ClientTls | None,
    user: ClientUser | None = None,
    timeout_ms: int = MEMBER_TIMEOUT_MS,
) -> SharedClient:
    """The one of this process: Spark forks its workers, and a client's thread does not survive that."""
    key = (os.getpid(), servers, group, timeout_ms, tls, user)
    with _shared_lock:
        shared = _shared.get(key)
        if shared is None:
            client = LedgerClient(servers, group=group, timeout_ms=timeout_ms, tls=tls, user=user)
            shared = _shared[key] = SharedClient(client, {})
        return shared
