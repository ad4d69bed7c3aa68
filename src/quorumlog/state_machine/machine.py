"""StateMachine: application state computed from the committed entries of one channel, alike on every
member.

It is called on one thread, never by two at once. Its results and state may depend on the entries alone:
no clock, no random, no other service, or the members differ. An entry takes effect once, in the order of
the log, after it is committed and on the member's own disk.

    refuses a command         `CommandError`: answered to its appender, on every member alike
    raises anything else      the machine stops on this member, before that entry; the log continues
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
"""Of results of sessions, for repeated commands; in memory, and in each snapshot. A constant, or members
would differ."""
KEPT_RESULT_BYTES = 16
"""Each counts so much more than it has."""


class FirstResults(NamedTuple):
    """Returned by `StateMachine.apply` if all results of a batch would be too large: it has applied
    only the first entries, and gets the others again."""

    results: Sequence[Result]
    """One per applied entry; at least one."""
    unkept: Sequence[int] = ()
    """Places of results not built, as they would be above `MOST_KEPT_BYTES`. Such a one is not kept, nor
    any kept before it."""


class Applied(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The last entry whose effects a state includes."""

    index: int
    term: int
    chain: int
    """Running digest of the log up to and including it, which only an identical log has."""

    @classmethod
    def of_last(cls, batch: EntryBatch) -> Applied:
        """For the last entry of a batch that was just applied."""
        if batch.count == 1:
            one = batch.first_header
            return cls(one.index, one.term, one.chain_crc)
        last = batch.headers()[-1]
        return cls(int(last["index"]), int(last["term"]), int(last["chain_crc"]))


class ApplyFailure(Exception):
    """Raised by `StateMachine.apply` to identify the entry that failed."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index}")
        self.index = index


MOST_WORDS = 4_096
"""Characters of an application's exception text."""


def words_of(error: BaseException) -> str:
    """The error's text as members send it: bounded, and valid UTF-8."""
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
    """Version of how it interprets its entries. All members change to a higher one at the same entry;
    see `act_as`."""
    may_leave_out: bool = True
    """An operator may make it skip an entry (`machine step-over`)."""

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result] | FirstResults | None:
        """Apply entries of the channel, the first at `first_index`; the indices of the others are in
        the headers, since entries of other channels lie between. Returns one result per entry, or None
        for none; `FirstResults` if they are large. Do not write to the batch; its memory is invalid
        after the call: `bytes(body)` is a copy."""
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
        """Apply one entry; returns its result. Raises CommandError to refuse it, without any change."""
        raise NotImplementedError(f"{type(self).__name__} has neither `apply` nor `command`")

    def is_quick(self, batch: EntryBatch) -> bool:
        """Whether these few entries take no longer than a message, and wait for no disk: then they are
        applied on the event loop, without a change of threads."""
        return False

    def query(self, question: bytes) -> bytes:
        """Answer from the state without changing it. Raises CommandError."""
        raise CommandError(f"{type(self).__name__} answers no questions")

    def save(self, writer: SnapshotWriter) -> None:
        """Write the whole state. No commands are applied meanwhile; the log and its appends continue."""
        raise NotImplementedError

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        """Override it instead of `save` if that takes long: yields the whole state as of its first
        `next`, a slice at a time. Commands and questions are handled between two slices; their changes
        must not show. It may be closed before its end."""
        self.save(writer)
        yield from ()

    def load(self, reader: SnapshotReader) -> None:
        """Replace the state by a saved one."""
        raise NotImplementedError

    def act_as(self, version: int) -> None:
        """Interpret the following entries as `version`, at most that of this class: called before the
        first entry, after `load`, and when the log changes to a higher version."""

    # Only of machines that keep their state on a disk of their own.

    def applied(self) -> Applied | None:
        """The last entry whose effects are stored, `Applied.of_last(batch)`, as stored with them. It is
        used only if the log has exactly that entry. None: nothing is stored."""
        return None

    def kept_version(self) -> int | None:
        """The version last given to `act_as`, stored together with `applied`. None: not stored; then
        the stored state is discarded if the log's version is above 1."""
        return None

    def clear(self) -> None:
        """Discard the stored state: it belongs to another log."""
