"""One machine, on the loop: results of appends, queries in order, and the machine's inputs."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import is_full
from quorumlog.entry import AppendReceipt, SnapshotId
from quorumlog.errors import (
    CommandError,
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    RequestTimeout,
    ResultUnknown,
    StoreFailure,
    UnknownMachine,
)
from quorumlog.figures import now
from quorumlog.log_state.log_state import Machine, SteppedOver
from quorumlog.measures import Histogram
from quorumlog.node.installing import SnapshotFetcher
from quorumlog.node.machine_runner import (
    AppliedResults,
    ApplyResult,
    Lacking,
    LeftOuts,
    MachineFactory,
    MachineRunner,
    Opened,
    Opening,
    SaveStep,
    SlicedSave,
    Stopped,
    Waiting,
)
from quorumlog.node.pending_appends import AppendOutcome, PendingAppends
from quorumlog.node.ports import Member
from quorumlog.node.snapshot_keeper import SnapshotKeeper
from quorumlog.state_machine import MOST_RESULT_BYTES, Applied, words_of
from quorumlog.store.snapshots import LeftOut, SnapshotsUnavailable

AppendCallback = Callable[[AppendOutcome], None]
MOST_HELD_BYTES = 64 << 20
"""And the results of one piece of work."""


class _Held(NamedTuple):
    results: AppliedResults
    size_bytes: int
    is_lost: bool
    """Its values are gone."""


class _WaitingResult:
    __slots__ = ("deadline_ms", "done", "receipt")

    def __init__(self, receipt: AppendReceipt, deadline_ms: float, done: AppendCallback) -> None:
        self.receipt = receipt
        self.deadline_ms = deadline_ms
        self.done = done


class AwaitedResults:
    def __init__(self, oldest_proposed: Callable[[], float]) -> None:
        """`oldest_proposed`: first index of the oldest append that is not committed, or infinity."""
        self._oldest_proposed = oldest_proposed
        self._applied_index = -1
        self.waiting: deque[_WaitingResult] = deque()
        """By index, ascending."""
        self._kept: deque[_Held] = deque()
        """By index, ascending; of entries that somebody waits for, or may."""
        self._held_bytes = 0

    def committed(self, receipt: AppendReceipt, deadline_ms: float, done: AppendCallback) -> None:
        """An append of entries for the machine is committed; `done` gets its receipt, with results."""
        self.waiting.append(_WaitingResult(receipt, deadline_ms, done))
        if receipt.last_index <= self._applied_index:
            self._answer()

    def applied(self, results: list[AppliedResults], applied_index: int) -> None:
        self._applied_index = applied_index
        if self.waiting or self._oldest_proposed() <= applied_index:
            held = [_Held(each, each.size_bytes, False) for each in results]
            size_bytes = sum(each.size_bytes for each in held)
            if self._held_bytes and self._held_bytes + size_bytes > MOST_HELD_BYTES:
                self._lose()
            self._held_bytes += size_bytes
            self._kept += held
            self._answer()

    def _lose(self) -> None:
        """Of appends that are not through: those that are have had theirs."""
        gone = [AppliedResults(each.results.indices, None) for each in self._kept]
        self._kept = deque(_Held(each, 0, True) for each in gone)
        self._held_bytes = 0

    def stopped(self, reason: str) -> None:
        """The remaining entries will not be applied."""
        waiting, self.waiting = self.waiting, deque()
        self._kept.clear()
        self._held_bytes = 0
        self._applied_index = -1
        for each in waiting:
            each.done(unknown_results(each.receipt, reason))

    def expire(self, now_ms: float) -> None:
        if any(each.deadline_ms <= now_ms for each in self.waiting):
            late = [each for each in self.waiting if each.deadline_ms <= now_ms]
            self.waiting = deque(each for each in self.waiting if each.deadline_ms > now_ms)
            for each in late:
                each.done(unknown_results(each.receipt, "the machine has not come to it in time"))
        self._forget()

    def _answer(self) -> None:
        while self.waiting and self.waiting[0].receipt.last_index <= self._applied_index:
            first = self.waiting.popleft()
            first.done(self._with_results(first.receipt))
        self._forget()

    def _with_results(self, receipt: AppendReceipt) -> AppendOutcome:
        values: list[bytes | None] = []
        failures: list[tuple[int, str]] = []
        for results, _, is_lost in self._kept:
            start, stop = results.rows_of(receipt)
            if start == stop:
                continue
            if is_lost:
                return unknown_results(receipt, f"they are above {MOST_HELD_BYTES} bytes in all")
            if results.values is None:
                values += [None] * (stop - start)
                continue
            for value in results.values[start:stop]:
                if isinstance(value, CommandError):
                    failures.append((len(values), words_of(value)))
                    value = None
                elif value is not None and not isinstance(value, bytes):
                    failures.append((len(values), f"the result is {type(value).__name__}, not bytes"))
                    value = None
                values.append(value)
        if len(values) != receipt.count:
            return unknown_results(receipt, "the machine was built again meanwhile")
        return msgspec.structs.replace(receipt, results=tuple(values), failures=tuple(failures))

    def _forget(self) -> None:
        wanted = min(self.waiting[0].receipt.first_index if self.waiting else math.inf, math.inf)
        if self._kept:
            wanted = min(wanted, self._oldest_proposed())
            while self._kept and self._kept[0].results.indices[-1] < wanted:
                self._held_bytes -= self._kept.popleft().size_bytes


def unknown_results(receipt: AppendReceipt, reason: str) -> ResultUnknown:
    entries = f"entry {receipt.first_index}"
    if receipt.count > 1:
        entries = f"entries {receipt.first_index} .. {receipt.last_index}"
    return ResultUnknown(f"{entries} of term {receipt.term} committed, results unknown: {reason}")


# ----------------------------------------------------------------
# Questions: what is asked of one state machine and waits. Each of those who ask has the same share of
# what is answered next, however much he asks.


MOST_QUESTIONS = 64
"""Of one piece of work."""

Reply = bytes | CommandError | AppendReceipt | None


class Question:
    """`behind_index`: it may be answered once this entry is applied. `ask` runs on the apply thread;
    `done` gets its result and the applied index, or the error."""

    __slots__ = ("ask", "behind_index", "deadline_ms", "done", "owner")

    def __init__(
        self,
        behind_index: int,
        ask: Callable[[MachineRunner], Reply],
        deadline_ms: float,
        done: Callable[[Reply | LedgerError, int], None],
        owner: object,
    ) -> None:
        self.behind_index = behind_index
        self.ask = ask
        self.deadline_ms = deadline_ms
        self.done = done
        self.owner = owner


class Questions:
    def __init__(self) -> None:
        self.waiting: OrderedDict[int, deque[Question]] = OrderedDict()
        """Of each owner, by its id; the owner answered last comes last."""
        self.in_progress: dict[Question, None] = {}
        """They are being answered."""
        self._earliest_ms = math.inf
        """No deadline is before this."""

    def __bool__(self) -> bool:
        return bool(self.waiting or self.in_progress)

    def add(self, question: Question) -> None:
        waiting = self.waiting.get(id(question.owner))
        if waiting is None:
            waiting = self.waiting[id(question.owner)] = deque()
        waiting.append(question)
        self._earliest_ms = min(self._earliest_ms, question.deadline_ms)

    def take(self, applied_index: int) -> list[Question]:
        """The queries that may be answered now, except of clients with megabytes of unread answers. They
        are held until `answered`."""
        assert not self.in_progress, "some are being answered"
        if not self.waiting:
            return []
        ready: list[Question] = []
        share = max(1, MOST_QUESTIONS // max(1, len(self.waiting)))
        for owner_id, waiting in list(self.waiting.items()):
            if is_full(waiting[0].owner):
                continue
            most = min(share, MOST_QUESTIONS - len(ready))
            some = list(islice(waiting, MOST_QUESTIONS))
            taken = [each for each in some if each.behind_index <= applied_index][:most]
            if not taken:
                continue
            ready += taken
            for _ in some:
                waiting.popleft()
            chosen = set(map(id, taken))
            waiting.extendleft(each for each in reversed(some) if id(each) not in chosen)
            self.waiting.move_to_end(owner_id)
            if not waiting:
                del self.waiting[owner_id]
            if len(ready) == MOST_QUESTIONS:
                break
        self.in_progress = dict.fromkeys(ready)
        return ready

    def answered(self, ready: list[Question], answers: Sequence[Reply], applied_index: int) -> None:
        """Answers the first questions; the others keep waiting."""
        served = {id(each.owner) for each in ready[: len(answers)]}
        for each in reversed(ready[len(answers) :]):
            if each in self.in_progress:
                del self.in_progress[each]
                owner_id = id(each.owner)
                self.waiting.setdefault(owner_id, deque()).appendleft(each)
                if owner_id not in served:
                    self.waiting.move_to_end(owner_id, last=False)
        for each, answer in zip(ready, answers, strict=False):
            if each in self.in_progress:  # until an answer before it has ended its connection
                del self.in_progress[each]
                each.done(answer, applied_index)

    def discard(self, owner: object) -> None:
        self.waiting.pop(id(owner), None)
        self.in_progress = {each: None for each in self.in_progress if each.owner is not owner}

    def expire(self, now_ms: float) -> list[Question]:
        """Time out questions past their deadline."""
        if now_ms < self._earliest_ms:
            return []
        late = self.take_until(now_ms)
        left = [*self.in_progress, *(each for of in self.waiting.values() for each in of)]
        self._earliest_ms = min((each.deadline_ms for each in left), default=math.inf)
        return late

    def take_until(self, until_ms: float) -> list[Question]:
        late = [each for each in self.in_progress if each.deadline_ms <= until_ms]
        self.in_progress = {each: None for each in self.in_progress if each.deadline_ms > until_ms}
        for owner_id, waiting in list(self.waiting.items()):
            late += [each for each in waiting if each.deadline_ms <= until_ms]
            on_time = deque(each for each in waiting if each.deadline_ms > until_ms)
            if on_time:
                self.waiting[owner_id] = on_time
            else:
                del self.waiting[owner_id]
        return late


def answers_of(questions: list[Question], runner: MachineRunner) -> list[Reply]:
    """Of the first ones, where they are large."""
    answers: list[Reply] = []
    size_bytes = 0
    for each in questions:
        answers.append(answer := each.ask(runner))
        size_bytes += len(answer) if isinstance(answer, bytes) else 0
        if size_bytes >= MOST_RESULT_BYTES:
            break
    return answers


# ----------------------------------------------------------------
# MachineDriver: one state machine as the loop sees it. It gives the thread that applies one piece of
# work at a time, small enough that reads and pushes do not wait for the interpreter behind it.
#
#     unbound      the log does not bind it yet, or its state is not known
#     waiting      its last run ended while it applied something: until a leader has told how far the log
#                  is committed, which may say that the machine leaves an entry out
#     opening      a snapshot is loaded, or what the machine has kept is compared with the log
#     lacking      the log begins after all that is known here: another member is asked for a snapshot
#     running      questions first, then a snapshot if one is due, then what is committed and on disk;
#                  while it is saved, every other piece of work is a slice of that
#     stopped      by an entry, on this member; until a restart


APPLY_ENTRIES = 1024
APPLY_BYTES = 1024 * 1024
"""Of one piece of work at most, but at least one entry."""
RETRY_MS = 500
"""Where damage keeps entries from being read, they are tried again."""
LACKING_RETRY_MS = 10_000
"""A snapshot that an operator has put there is found, too."""
PIN_MS = 60_000
"""So long a snapshot stays that another member has asked for a piece of."""
EXPIRY_INTERVAL_MS = 100
LONG_MS = 10_000
"""A machine that applies one piece for so long may never finish it."""

Answer = tuple[bytes, int] | LedgerError
"""(answer, index of the last entry that it follows from)."""
Problems = StoreFailure | LedgerError


class MachineDriver:
    def __init__(
        self,
        name: str,
        factory: MachineFactory,
        member: Member,
        pending: PendingAppends,
        fetcher: SnapshotFetcher,
        heeds_all: Callable[[], bool],
    ) -> None:
        """`heeds_all`: it leaves out what the log says, committed or not."""
        self.name = name
        self._factory = factory
        self._files, self._store = member.directory.snapshots, member.store
        self._member, self._host = member, member.host
        self._readable = member.readable_range
        self._fetcher = fetcher
        self.snapshots = SnapshotKeeper(name, self._files, self._host, member.config.storage, heeds_all)
        self.save_us = Histogram()
        """How long saves took, in microseconds."""
        self._save_began_ms = 0.0
        self.results = AwaitedResults(lambda: pending.oldest_proposed_index)
        self.applied: Applied | None = None
        """The last entry whose effects the machine holds; None before it is open, or has taken one."""
        self.applied_index = -1
        self.stopped: Stopped | None = None
        self._runner: MachineRunner | None = None
        self._questions = Questions()
        self.lacking = ""
        """Why it cannot continue from the local state, in a sentence."""
        self._waits_for_index = -1
        """Of a snapshot that is ahead of the log."""
        self._life = 0
        """Counts how often it was opened: what an earlier one gives counts for nothing."""
        self._is_busy = False
        self._applying = member.directory.applying_file(name)
        self._ended_within = self._applying.found
        """What the last run was about to apply: entry by entry now, so that if one of them ends the
        process once more, it is known which."""
        self._is_waiting = self._ended_within.is_under_way
        self._applying_since_ms: float | None = None
        self._orders: tuple[SteppedOver, ...] = ()
        """Those of the log, of all machines, as they were looked at last."""
        self._known_left_out: frozenset[LeftOut] = frozenset()
        """What they say of this one."""
        self._left_out: frozenset[LeftOut] = frozenset()
        """What the machine holds nothing of: it may have come with a snapshot, ahead of the log."""
        self._saving: SlicedSave | None = None
        self._is_slice_next = False
        self._abandoned: SlicedSave | None = None
        """Of a machine that was given up; none is opened before it is gone."""
        self._retry_ms = -math.inf
        self._now_ms = self._next_expiry_ms = 0.0

    @property
    def is_running(self) -> bool:
        return self._runner is not None

    @property
    def held_index(self) -> int:
        """Of the last entry whose effects it ever had here, as far as is known."""
        return max(self.applied_index, self._applying.applied_index)

    def heeds(self, orders: Iterable[SteppedOver]) -> bool:
        """The entries that its state and its snapshots leave out."""
        return all((each.index, each.ordered_at_index) in self._left_out for each in orders)

    @property
    def at_rest(self) -> tuple[Applied, MachineRunner] | None:
        """The applied point and its runner, while the applying thread leaves it alone."""
        if self._runner is None or self.applied is None or self._is_busy or self._saving is not None:
            return None
        return self.applied, self._runner

    @property
    def problem(self) -> str:
        if self.lacking:
            return f"the state machine {self.name} does not run on this member yet: {self.lacking}"
        since_ms = self._applying_since_ms
        if since_ms is not None and self._now_ms - since_ms >= LONG_MS:
            so_far = now(f"{self._now_ms - since_ms:.0f} ms")
            return (
                f"the state machine {self.name} has been applying entry {self.applied_index + 1}, or"
                f" a later one, for a long time, and its results wait{so_far}"
            )
        if self.stopped is None:
            return self.snapshots.problem
        return f"the state machine {self.name} has stopped on this member at {self.stopped}"

    # ---------------------------------------------------------------- the loop

    def tick(
        self,
        now_ms: float,
        binding: Machine | None,
        committed_index: int,
        orders: tuple[SteppedOver, ...] = (),
        *,
        may_apply_here: bool = True,
    ) -> None:
        """`committed_index`: up to here entries are committed and on this member's disk. `orders`: the
        committed ones, of all machines. `may_apply_here`: quick work may run on the loop."""
        self._now_ms = now_ms
        if now_ms >= self._next_expiry_ms:
            self.expire(now_ms)
        if self._abandoned is not None:
            self._abandon()
            return
        if binding is None or self._is_busy:
            return
        if orders is not self._orders or self._left_out != self._known_left_out:
            self._heed(orders, committed_index)
        if self.stopped is not None or now_ms < self._retry_ms:
            return
        if self._is_waiting and self._member.raft.reads.knows_commit:
            self._is_waiting, self.lacking = False, ""
        if self._is_waiting:
            self.lacking = (
                f"its last run here ended while it applied {self._ended_within}, and it waits until a"
                " leader reports the committed index"
            )
        elif self._runner is None:
            # It would begin with one that lies there for a moment only.
            if committed_index >= self._waits_for_index and not self.snapshots.going:
                self._open(binding, committed_index)
        elif self._saving is not None and self._is_slice_next and not self._saving.is_away:
            self._write_slice(self._saving)
        elif self._questions.waiting and (ready := self._questions.take(self.applied_index)):
            self._answer(self._runner, ready)
        elif self.applied is not None and self._saving is None and self.snapshots.is_due(now_ms):
            self._save(self._runner, self.applied)
        elif self.applied_index < committed_index:
            before = self.applied_index
            self._apply(self._runner, committed_index, may_apply_here)
            if self.applied_index > before and (
                self._questions.waiting or self.applied_index < committed_index
            ):
                self.tick(now_ms, binding, committed_index, orders, may_apply_here=False)
        elif self._saving is not None and not self._saving.is_away:
            self._write_slice(self._saving)

    def _heed(self, orders: tuple[SteppedOver, ...], committed_index: int) -> None:
        """The log says which entries are left out. What was made with one of them is made anew."""
        own = [each for each in orders if each.name == self.name]
        self._orders = orders
        self._known_left_out = frozenset((each.index, each.ordered_at_index) for each in own)
        if self._runner is None and self.stopped is None:
            return  # it is opened with them
        left_outs = self._left_outs(committed_index)
        held_index = self.applied_index if self.stopped is None else self.stopped.last_index
        if left_outs.contradict(self._left_out, held_index):
            self.rebuild()
        else:
            self._left_out = left_outs.with_later(self._left_out)

    def _left_outs(self, committed_index: int) -> LeftOuts:
        return LeftOuts(self._known_left_out, self._store.begin.index, committed_index)

    def expire(self, now_ms: float) -> None:
        """Answer the requests that have waited too long."""
        self._now_ms = now_ms
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + EXPIRY_INTERVAL_MS
            self.results.expire(now_ms)
            self._expire()
            self.snapshots.unpin(now_ms)

    def next_wakeup_ms(self) -> float:
        if self.results.waiting or self._questions:
            return self._next_expiry_ms
        return self._retry_ms if self._retry_ms > self._now_ms else math.inf

    def log_cut(self, index: int, *, lost_committed: bool) -> None:
        """Entries from `index` on are gone. Committed ones are lost in async mode only; but there a
        machine that keeps its own state may also return with more than this member knows to be
        committed."""
        may_hold_them = self._is_busy and (lost_committed or self._runner is None)
        if may_hold_them or self.applied_index >= index:
            self.rebuild()

    def rebuild(self) -> None:
        """Its state follows from another log than this one: start again from a matching snapshot or from
        the log."""
        self._life += 1
        self._give_up_save()
        self._runner = self.stopped = self.applied = None
        self._left_out = frozenset()
        self.applied_index = self._waits_for_index = -1
        self.lacking = ""
        self._fetcher.forget(self.name)
        self.snapshots.forget()
        self.results.stopped("the machine is built again")

    def close(self, reason: str) -> None:
        self.results.stopped(reason)
        for each in self._questions.take_until(math.inf):
            each.done(RequestTimeout(reason), -1)

    def _submit(
        self, work: Callable[[], object], done: Callable[[object], None], *, also_late: bool = False
    ) -> None:
        life = self._life
        self._is_busy = True
        self._is_slice_next = True

        def ended(result: object) -> None:
            self._is_busy, self._applying_since_ms = False, None
            if life == self._life or also_late:
                done(result)

        self._host.apply_later(work, ended)

    def _read_failed(self, problem: Problems) -> None:
        """The log could not be read just now, or the disk has failed."""
        if isinstance(problem, DirectoryDamaged):
            self._member.found(problem)
        elif isinstance(problem, IndexOutOfRange):
            self.rebuild()  # the log begins after what it has applied, or was cut in async mode
        elif not isinstance(problem, RangeDamaged):
            raise problem
        self._retry_ms = self._now_ms + RETRY_MS

    # ---------------------------------------------------------------- opening

    def _open(self, binding: Machine, committed_index: int) -> None:
        left_outs = self._left_outs(committed_index)
        opening = Opening(
            self.name, binding, self._factory, self._files, self._store, left_outs, self._applying
        )
        self._submit(opening.run, self._opened)

    def _opened(self, result: object) -> None:
        if not isinstance(result, SnapshotsUnavailable):
            self.lacking = ""
        if isinstance(result, Stopped):
            self._left_out = self._known_left_out
            self._stop(result)
        elif isinstance(result, Lacking):
            self.lacking = "; ".join([result.reason, *result.damaged])
            self._retry_ms = self._now_ms + LACKING_RETRY_MS
            self._fetcher.want(self.name, result.least_index, self._arrived)
        elif isinstance(result, Waiting):
            self._waits_for_index = result.snapshot_index
            self.lacking = (
                f"its snapshot is of entry {result.snapshot_index}, which the log here has not reached"
            )
        elif isinstance(result, SnapshotsUnavailable):
            self.lacking = str(result)
            self._retry_ms = self._now_ms + RETRY_MS
        elif isinstance(result, Opened):
            self._fetcher.forget(self.name)
            self._runner = result.runner
            self.applied, self.applied_index = result.applied, result.applied_index
            self._left_out = result.left_out
            self.snapshots.opened(result)
        else:
            assert isinstance(result, Problems), result
            self._read_failed(result)

    def _arrived(self) -> None:
        """A snapshot has arrived from another member."""
        self._retry_ms = self._now_ms

    # ---------------------------------------------------------------- applying

    def _apply(self, runner: MachineRunner, committed_index: int, may_apply_here: bool) -> None:
        store = self._store
        try:
            found = self._readable(self.applied_index + 1, committed_index + 1, APPLY_BYTES)
        except LedgerError as error:
            self._read_failed(error)
            return
        most, left_out = self._most_entries(), self._left_out
        self._applying_since_ms = self._now_ms
        if isinstance(found, EntryBatch):
            piece = _at_most(found, most)
            if may_apply_here and self._saving is None and runner.is_quick(piece, left_out):
                self._applied(_applied_here(runner, piece, left_out))
                self._applying_since_ms = None
            else:
                self._submit(partial(runner.apply, piece, left_out), self._applied)
            return
        cold = found

        def read_and_apply() -> ApplyResult:
            batch = _at_most(store.read_from(*cold, once=True)[1], most)
            try:
                batch.check_bodies()
            except ProtocolViolation as error:
                raise DirectoryDamaged(
                    str(error),
                    path="",
                    position=0,
                    index=batch.first_index,
                    stop_index=batch.last_index + 1,
                ) from error
            return runner.apply(batch, left_out)

        self._submit(read_and_apply, self._applied)

    def _most_entries(self) -> int:
        """Most entries of the next piece."""
        next_index, suspect = self.applied_index + 1, self._ended_within
        if suspect.first_index <= next_index < suspect.stop_index:
            return 1
        if next_index < suspect.first_index and suspect.is_under_way:
            return min(APPLY_ENTRIES, suspect.first_index - next_index)
        return APPLY_ENTRIES

    def _applied(self, result: object) -> None:
        if not isinstance(result, ApplyResult):
            assert isinstance(result, Problems), result
            self._read_failed(result)
            return
        if result.applied is not None:
            assert result.applied.index > self.applied_index, (result.applied, self.applied_index)
            self.applied, self.applied_index = result.applied, result.applied.index
            self.snapshots.applied(result.entries, result.size_bytes, result.log_bytes)
            self.results.applied(result.results, self.applied_index)
        if result.stopped is not None:
            self._stop(result.stopped)

    def _stop(self, stopped: Stopped) -> None:
        self.stopped = stopped
        self._give_up_save()
        self._runner = None  # half of an entry's effects may be in it
        self.close(self.problem)

    # ---------------------------------------------------------------- saving

    def _save(self, runner: MachineRunner, applied: Applied) -> None:
        self.snapshots.begins(applied.index)
        self._save_began_ms = self._now_ms
        self._saving = SlicedSave(runner, self._files, applied)
        self._write_slice(self._saving)

    def _write_slice(self, save: SlicedSave) -> None:
        self._submit(save.write_slice, partial(self._sliced, save))
        self._is_slice_next = False

    def _sliced(self, save: SlicedSave, result: object) -> None:
        assert isinstance(result, SaveStep | str), result
        if isinstance(result, str):
            self._saved(save, result)
        elif result is not SaveStep.MORE:
            save.is_away = True
            work = save.sync if result is SaveStep.SYNC else save.finish
            self._host.read_later(work, partial(self._synced, save, result))

    def _synced(self, save: SlicedSave, step: SaveStep, result: object) -> None:
        assert isinstance(result, str), result
        save.is_away = False
        if save is not self._saving:
            return
        if result:
            self._give_up_save()
        if result or step is SaveStep.END:
            self._saved(save, result)

    def _saved(self, save: SlicedSave, problem: str) -> None:
        self._saving = None
        if not problem:
            self.save_us.add(int(1000 * (self._now_ms - self._save_began_ms)))
        self.snapshots.saved(save.index, problem, self._now_ms)

    def _give_up_save(self) -> None:
        if self._saving is not None:
            self._abandoned, self._saving = self._saving, None

    def _abandon(self) -> None:
        """On the thread that applies, where the machine is: it may keep something for it."""
        save = self._abandoned
        if save is None or save.is_away or self._is_busy:
            return
        self._abandoned = None
        self._submit(save.abandon, lambda result: None)

    def good_snapshot(self, least_index: int, named: SnapshotId | None = None) -> SnapshotId | None:
        """The newest snapshot for another member, unless one is about to be made. `named`: the one named
        to it before, which is named again while it is here."""
        if named is not None and self.snapshots.holds(named):
            return named
        newest = self.snapshots.newest_good
        if newest is not None and newest.index >= least_index:
            return newest if self.snapshots.pin(newest, self._now_ms + PIN_MS) else None
        if self.applied_index >= least_index:
            self.snapshots.hasten(least_index)
        return None

    def holds_snapshot(self, wanted: SnapshotId) -> bool:
        """Another member is getting it: it stays for a while."""
        return self.snapshots.pin(wanted, self._now_ms + PIN_MS)

    # ---------------------------------------------------------------- questions

    def ask(self, question: Question) -> None:
        """Its answer follows from all entries up to `question.behind_index`, at least."""
        if self.stopped is not None:
            question.done(UnknownMachine(self.problem), -1)
        else:
            self._questions.add(question)

    def ask_results(
        self, producer: str, receipt: AppendReceipt, deadline_ms: float, done: AppendCallback
    ) -> None:
        """`done` gets the receipt of a committed append of a session with its results, which it may have
        had before."""

        def on_answer(found: Reply | LedgerError, applied_index: int) -> None:
            if isinstance(found, AppendReceipt):
                done(found)
            else:
                why = str(found) if isinstance(found, LedgerError) else "it is kept no longer"
                done(unknown_results(receipt, why))

        look = partial(MachineRunner.results_of, producer=producer, receipt=receipt)
        self.ask(Question(receipt.last_index, look, deadline_ms, on_answer, None))

    def discard(self, owner: object) -> None:
        self._questions.discard(owner)

    def _expire(self) -> None:
        for each in self._questions.expire(self._now_ms):
            far = f"{self.applied_index}, not up to {each.behind_index} yet"
            if each.behind_index <= self.applied_index:
                far = f"{self.applied_index}, and many others ask"
            each.done(RequestTimeout(f"{self.name} has applied entries up to {far}"), -1)

    def _answer(self, runner: MachineRunner, ready: list[Question]) -> None:
        applied_index = self.applied_index

        def on_answer(result: object) -> None:
            assert isinstance(result, list), result
            self._questions.answered(ready, result, applied_index)

        # An answer of a machine that is built again meanwhile still follows from what was committed.
        self._submit(partial(answers_of, ready, runner), on_answer, also_late=True)


def _applied_here(
    runner: MachineRunner, batch: EntryBatch, left_out: frozenset[LeftOut]
) -> ApplyResult | StoreFailure | LedgerError:
    try:
        return runner.apply(batch, left_out)
    except (StoreFailure, LedgerError) as error:
        return error


def _at_most(batch: EntryBatch, count: int) -> EntryBatch:
    return batch if batch.count <= count else batch.slice(0, count)
