"""LogChanges against a twin that keeps the log as the Readys make it, and what each sync has seen."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.consensus.log import LogChanges, TermRuns
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry import NO_ENTRY, EntryKind


class LogChangesMachine(RuleBasedStateMachine):
    """The disk writes entries that are unique numbers; a sync vouches for those it has seen."""

    @initialize()
    def begin(self) -> None:
        self.changes = LogChanges(TermRuns(NO_ENTRY, (), -1))
        self.wanted: list[int] = []
        self.written: list[int] = []
        self.synced: list[int] = []
        self.seen_by_sync: tuple[int, list[int]] | None = None
        self.number = 0
        self.term = 1
        self.unique = 0

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        first = len(self.wanted)
        order = AppendOrder(
            first_index=first,
            count=count,
            term=self.term,
            kind=EntryKind.NORMAL,
            batch=list(range(self.unique, self.unique + count)),
            push_first_index=first,
        )
        self.wanted += order.batch
        self.unique += count
        self.changes.append(order, ((first, self.term),))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.wanted) - 1))
        del self.wanted[index:]
        self.term += 1
        self.changes.truncate_from(index)

    @rule()
    def ready(self) -> None:
        self.number += 1
        truncate_from, loses_committed, appends = self.changes.take(self.number)
        assert not loses_committed
        if truncate_from is not None:
            assert truncate_from < len(self.written)
            del self.written[truncate_from:]
            del self.synced[truncate_from:]
        for order in appends:
            assert order.first_index == len(self.written)
            self.written += order.batch[: order.count]
        assert self.written == self.wanted

    @precondition(lambda self: self.seen_by_sync is None)
    @rule()
    def begin_sync(self) -> None:
        self.seen_by_sync = (self.number, list(self.written))

    @precondition(lambda self: self.seen_by_sync is not None)
    @rule()
    def finish_sync(self) -> None:
        assert self.seen_by_sync is not None
        number, seen = self.seen_by_sync
        self.seen_by_sync = None
        # What was cut since, and what was written since, is not vouched for.
        same = [a for a, b in zip(seen, self.written, strict=False) if a == b]
        self.synced = max(self.synced, same, key=len)
        before = self.changes.durable_index
        moved = self.changes.on_durable(number)
        assert moved == (self.changes.durable_index != before)

    @invariant()
    def nothing_is_called_durable_that_is_not(self) -> None:
        if hasattr(self, "changes"):
            durable = self.wanted[: self.changes.durable_index + 1]
            assert self.synced[: len(durable)] == durable

    @precondition(lambda self: self.seen_by_sync is None)
    @rule()
    def everything_becomes_durable(self) -> None:
        self.ready()
        self.begin_sync()
        self.finish_sync()
        assert self.changes.durable_index == len(self.wanted) - 1


TestLogChanges = LogChangesMachine.TestCase
