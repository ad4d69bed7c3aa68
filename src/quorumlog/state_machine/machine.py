"""StateMachine: what every member makes of the committed entries of one channel, in the same way.

It is called on one thread, never by two at once. What it gives and what it becomes may follow from the
entries alone: no clock, no random, no other service, or the members differ. An entry takes effect once,
in the order of the log, after it is committed and on the member's own disk.

    refuses a command         `CommandError`: answered to who appended it, on every member alike
    raises anything else      the machine stops on this member, before that entry; the log goes on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.errors import CommandError
from quorumlog.state_machine.snapshot_stream import SnapshotReader, SnapshotWriter

Result = bytes | CommandError | None


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

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result] | None:
        """Entries of the channel, the first at `first_index`; indices of the others are in the headers,
        since those of other channels lie between. Results, one an entry, or None if there are none.

        Nobody may write to the batch, and its memory is gone after the call: `bytes(body)` is a copy.
        """
        results: list[Result] = []
        indices = batch.headers()["index"].tolist()
        for index, body in zip(indices, batch.bodies(), strict=True):
            try:
                results.append(self.command(bytes(body), index))
            except CommandError as refusal:
                results.append(refusal)
            except BaseException as error:
                raise ApplyFailure(index) from error
        return results

    def command(self, body: bytes, index: int) -> bytes | None:
        """One entry; the result. Raises CommandError, and nothing has changed then."""
        raise NotImplementedError(f"{type(self).__name__} has neither `apply` nor `command`")

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

    def clear(self) -> None:
        """Forget what is kept: it follows from another log."""
