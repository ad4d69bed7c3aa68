"""StateMachine: what every member makes of the committed entries of one channel, in the same way.

It is called on one thread, never by two at once. What it gives and what it becomes may follow from the
entries alone: no clock, no random, no other service, or the members differ. An entry takes effect once,
in the order of the log, after it is committed and on the member's own disk.

    refuses a command         `CommandError`: answered to who appended it, on every member alike
    raises anything else      the machine stops on this member, before that entry; the log goes on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.errors import CommandError
from quorumlog.state_machine.snapshot_stream import SnapshotReader, SnapshotWriter

Result = bytes | CommandError | None
MOST_RESULT_BYTES = 8 << 20
"""Of results that are there at once, about: a machine gives those of the first commands then."""
MOST_KEPT_BYTES = 64 << 20
"""Of results of sessions, for who repeats a command; in memory, and in each snapshot. A constant, or
members would differ."""
KEPT_RESULT_BYTES = 16
"""Each counts so much more than it has."""


class FirstResults(NamedTuple):
    """From `StateMachine.apply`, where all results of a batch would be too much to hold: it has applied
    the first entries only. The others are given again."""

    results: Sequence[Result]
    """One an entry; at least one."""
    unkept: Sequence[int] = ()
    """Places of those that stand for a result that was not built, as it would be above
    `MOST_KEPT_BYTES`. Nobody keeps such a one, nor any that was kept before it."""


class Applied(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The last entry whose effects a state holds."""

    index: int
    term: int
    chain: int
    """Running digest of the log up to and with it: only a log with the very same entries has it."""

    @classmethod
    def of_last(cls, batch: EntryBatch) -> Applied:
        """Of the last entry of a batch that was just applied."""
        last = batch.headers()[-1]
        return cls(int(last["index"]), int(last["term"]), int(last["chain_crc"]))


class ApplyFailure(Exception):
    """Raised by `StateMachine.apply` from whatever a command raised: which entry it was."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index}")
        self.index = index


MOST_WORDS = 4_096
"""Characters of what an application's exception says."""


def words_of(error: BaseException) -> str:
    """What it says, as members tell it to others: bounded, and of nothing that has no bytes in UTF-8."""
    try:
        words = str(error)
    except BaseException as second:
        words = f"it has no words: {type(second).__name__}"
    if len(words) > MOST_WORDS:
        words = f"{words[:MOST_WORDS]} ... ({len(words)} characters)"
    return words.encode("utf-8", "backslashreplace").decode()


class StateMachine:
    """Override `command`, or `apply` where a batch at once is faster; `save`, `load` for snapshots,
    `save_slices` for large ones."""

    version: int = 1
    """Of what it makes of its entries. Members go over to a higher one at the same entry; see
    `act_as`."""
    may_leave_out: bool = True
    """It goes on where an operator has it leave one of its entries out (`machine step-over`)."""

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result] | FirstResults | None:
        """Entries of the channel, the first at `first_index`; indices of the others are in the headers,
        since those of other channels lie between. Results, one an entry, or None if there are none;
        `FirstResults` where they are large.

        Nobody may write to the batch, and its memory is gone after the call: `bytes(body)` is a copy.
        """
        results: list[Result] = []
        indices = batch.headers()["index"].tolist()
        may_end = type(self).apply is StateMachine.apply  # or its caller would think it has seen to all
        size_bytes = 0
        for index, body in zip(indices, batch.bodies(), strict=True):
            try:
                results.append(result := self.command(bytes(body), index))
                size_bytes += len(result) if isinstance(result, bytes) else 0
            except CommandError as refusal:
                results.append(refusal)
            except BaseException as error:
                raise ApplyFailure(index) from error
            if size_bytes >= MOST_RESULT_BYTES and may_end:
                return FirstResults(results)
        return results

    def command(self, body: bytes, index: int) -> bytes | None:
        """One entry; the result. Raises CommandError, and nothing has changed then."""
        raise NotImplementedError(f"{type(self).__name__} has neither `apply` nor `command`")

    def is_quick(self, batch: EntryBatch) -> bool:
        """These few entries take no longer than messages do, and wait for no disk: they are applied
        between two messages, and nobody waits for another thread."""
        return False

    def query(self, question: bytes) -> bytes:
        """Answer from the state, and change nothing. Raises CommandError."""
        raise CommandError(f"{type(self).__name__} answers no questions")

    def save(self, writer: SnapshotWriter) -> None:
        """The whole state. It takes no commands meanwhile; the log and its appends go on."""
        raise NotImplementedError

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        """Override it in the place of `save` where that takes long: the whole state as it is at the
        first `next`, some at each. Commands and questions come between two slices, so that nobody waits
        for more than one; what they change may not show. It may be closed before its end."""
        self.save(writer)
        yield from ()

    def load(self, reader: SnapshotReader) -> None:
        """Take a saved state over, in the place of whatever this one holds."""
        raise NotImplementedError

    def act_as(self, version: int) -> None:
        """What follows was written for `version`, at most that of this class: called before the first
        entry, behind `load`, and where the log goes over to a higher one. Override it to treat them
        differently."""

    # Only of machines that keep their state on a disk of their own.

    def applied(self) -> Applied | None:
        """The last entry whose effects are kept, as it was kept with them: `Applied.of_last(batch)`. It
        counts only if the log holds that very entry. None: nothing is kept."""
        return None

    def kept_version(self) -> int | None:
        """The version that it was told last, `act_as`, as it was kept with `applied`. None: that is not
        kept; what is kept is forgotten then where the log has gone over to a higher one than 1."""
        return None

    def clear(self) -> None:
        """Forget what is kept: it follows from another log."""
