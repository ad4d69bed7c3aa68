"""AppendConditions: appends that are wanted only behind a certain entry (`expected_last`).

Judged where the batch is proposed, against the leader's whole log: what is not committed yet comes
before it as well. Only data counts; a no-op that another election has put behind the expected entry is
none of the writer's business.

An append that is let in needs no more care: it commits together with everything before it, or not at
all. A refusal does. The leader may have been replaced without knowing, or what it judged by may never
commit. So it is answered once a majority has confirmed the leader, as for a linearizable read
(Raft paper, section 8), and the entry that speaks against the append is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import EntryId, EntryKind
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    RangeDamaged,
    StoreFailure,
    WrongLastIndex,
)
from quorumlog.node.pending_appends import PendingAppend, PendingAppends
from quorumlog.node.ports import Host
from quorumlog.node.reading.confirmations import Confirmed
from quorumlog.node.repair.repairer import Repairer
from quorumlog.store.ledger_store import LedgerStore

Confirm = Callable[[Confirmed, object], None]
"""`LedgerNode.confirm_leadership`."""


class Unmet(NamedTuple):
    append: PendingAppend
    error: WrongLastIndex


class AppendConditions:
    def __init__(
        self,
        raft: RaftNode,
        store: LedgerStore,
        pending: PendingAppends,
        host: Host,
        confirm: Confirm,
        repairer: Repairer,
    ) -> None:
        self._raft = raft
        self._store = store
        self._pending = pending
        self._host = host
        self._confirm = confirm
        self._repairer = repairer
        self._term = -1
        """In which this member led when `_last_index` was true: a leader cuts nothing of its log."""
        self._last_index = -1
        """Of the last data entry that this leader holds or has proposed."""
        self._is_looking = False

    def proposed(self, first: EntryId, count: int) -> None:
        self._term, self._last_index = first.term, first.index + count - 1

    def judge(
        self, appends: Sequence[PendingAppend], in_front: int
    ) -> tuple[list[PendingAppend], list[Unmet]]:
        """Who is let in, as if appended in this order behind so many control entries `in_front`, and who
        is not. What cannot be judged yet, since the end of the log has to be read first, is refused here
        and may come again."""
        if all(append.expected_last is None for append in appends):
            return list(appends), []
        met: list[PendingAppend] = []
        unmet: list[Unmet] = []
        is_known = self._term == self._raft.term
        last_index, next_index = self._last_index, self._raft.ledger_end.index + 1 + in_front
        for append in appends:
            expected = append.expected_last
            if expected is not None and not is_known:
                self._look()
                append.answer(
                    LeaderNotReady("a new leader reads what its log ends with", retry_after_ms=5)
                )
                continue
            if expected is not None and not last_index <= expected < next_index:
                unmet.append(Unmet(append, _wrong(expected, last_index, next_index)))
                continue
            assert append.batch is not None
            met.append(append)
            next_index += append.entry_count
            is_known, last_index = True, next_index - 1
        return met, unmet

    def refuse(self, unmet: Sequence[Unmet]) -> None:
        """Once the judgement is certain to be the group's."""
        for append, error in unmet:
            self._pending.answer_once_confirmed(append, error)
            self._confirm(partial(self._confirmed, append, error), append.owner)

    def _confirmed(
        self, append: PendingAppend, error: WrongLastIndex, refusal: LedgerError | None
    ) -> None:
        if refusal is not None:
            self._pending.settle(append, refusal)
        elif error.actual <= self._raft.committed_index:
            self._pending.settle(append, error)
        else:
            self._pending.answer_once_committed(append, error.actual)

    def _look(self) -> None:
        """Read beside the loop: the end of a log that was opened a moment ago is in no memory."""
        if self._is_looking:
            return
        self._is_looking = True
        read = partial(last_data_index, self._store, self._raft.ledger_end.index)
        self._host.read_later(read, partial(self._looked, self._raft.term))

    def _looked(self, term: int, result: int | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        if isinstance(result, DirectoryDamaged):
            self._repairer.found(result)
        elif isinstance(result, RangeDamaged | IndexOutOfRange):
            return  # it is being repaired, or was cut by another leader: the next append asks again
        elif isinstance(result, StoreFailure | LedgerError):
            raise result
        elif self._term < term:
            self._term, self._last_index = term, result


def last_data_index(store: LedgerStore, end_index: int) -> int:
    """Index of the last entry up to `end_index` that is no control entry; the begin of the log, -1 of
    a new one, if it holds none. Runs in any thread. Raises what `LedgerStore.read_from` raises."""
    begin_index = store.begin.index
    for index in range(end_index, begin_index, -1):
        _, batch = store.read_from(index, index + 1, 1)
        if int(batch.headers()["magic"][0]) == EntryKind.NORMAL:
            return index
    return begin_index


def _wrong(expected: int, actual: int, next_index: int) -> WrongLastIndex:
    where = "the log holds no data" if actual < 0 else f"the last data entry is {actual}"
    if expected >= next_index:
        where = f"the log ends at {next_index - 1}; {where}"
    return WrongLastIndex(
        f"expected_last is {expected}, but {where}; nothing was written",
        expected=expected,
        actual=actual,
    )
