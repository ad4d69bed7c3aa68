"""quorumlog append: a line, an entry; and ask, a question to a state machine."""

from __future__ import annotations

import base64
import json
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, cast

import typer

from quorumlog.cli.interrupts import EXIT_OF_SIGNAL
from quorumlog.cli.options import LogServers, argument, option, refuse_dead_servers
from quorumlog.cli.output import (
    EXIT_REFUSED,
    describe,
    entry_progress,
    error_line,
    is_json,
    note,
    tell,
    text_fields,
)
from quorumlog.errors import BodyTooLarge, ConfigError, LedgerError, OutcomeUnknown, ResultUnknown

if TYPE_CHECKING:
    from quorumlog.client import AppendStream
    from quorumlog.client.protocol.appending import StreamProgress
    from quorumlog.entry import AppendReceipt


CHUNK_BYTES = 1 << 20
MAX_BATCH_LINES = 4096


class _Interrupted(Exception):
    """Ctrl-C or SIGTERM while waiting for a line."""


class LineSource:
    """Lines as batches: all lines of one read, so that a slow writer is not delayed.

    The first Ctrl-C or SIGTERM ends the source; what is in flight is waited for and accounted for. The
    second one is an ordinary KeyboardInterrupt, and so is the first while nothing is in flight.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._reading = False
        self.skip = 0
        """Lines to leave out at the begin."""
        self.skipped = 0
        self.taken = 0
        """Lines handed out."""
        self.done_bytes = 0
        """Of the lines that are committed, and of those left out."""
        self.signal = 0
        """Number of the signal that ended it; 0: none."""
        self.may_leave: Callable[[], bool] = lambda: False
        """Nothing is in flight whose outcome an interrupt would have to wait for."""
        self._stopped = False
        self.has_ended = False
        """All of it was read."""
        self._rest = b""
        """Read and not handed out yet."""
        self._is_amid_line = False
        """What is not read yet begins with the end of a line that was handed out."""
        self._in_flight: deque[tuple[int, list[bytes]]] = deque()
        """Batches without a receipt, each with the number of its first line, from 1."""

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self.stop()
        if self._reading:
            raise _Interrupted
        if self.may_leave():
            raise KeyboardInterrupt

    @contextmanager
    def leaving_if(self, may_leave: Callable[[], bool]) -> Iterator[None]:
        """Inside, an interrupt ends the wait at once where `may_leave` says so; one before it, too."""
        if self.signal and may_leave():
            raise KeyboardInterrupt
        self.may_leave = may_leave
        try:
            yield
        finally:
            self.may_leave = lambda: False

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def on_receipt(self) -> None:
        """The oldest batch in flight is committed."""
        _, lines = self._in_flight.popleft()
        self._are_done(lines)

    def _are_done(self, lines: list[bytes]) -> None:
        self.done_bytes += sum(map(len, lines)) + len(lines)

    def longest_refused(self) -> tuple[int, int]:
        """(number from 1, bytes) of the longest line in the oldest batch without a receipt."""
        first, lines = self._in_flight[0]
        sizes = [len(line) for line in lines]
        return first + sizes.index(max(sizes)), max(sizes)

    def batches(self) -> Iterator[list[bytes]]:
        yield from self._until_stopped()
        # Whatever was handed out is under way by now, and may still wait for a server.
        if self.signal and self.may_leave():
            raise KeyboardInterrupt

    def _until_stopped(self) -> Iterator[list[bytes]]:
        from quorumlog.config import FRAME_LIMIT_BYTES

        while not self._stopped:
            try:
                at_end = not self._read()
            except _Interrupted:
                return
            self.has_ended = at_end
            if at_end and not self._rest:
                return
            *lines, self._rest = self._rest.split(b"\n")
            never_ends = not at_end and len(self._rest) > FRAME_LIMIT_BYTES
            if at_end or never_ends:  # the last line had no end, or its end may never come
                lines, self._rest = [*lines, self._rest], b""
            lines = self._left_of(lines)
            for first in range(0, len(lines), MAX_BATCH_LINES):
                batch = lines[first : first + MAX_BATCH_LINES]
                if self._stopped:
                    self._rest = b"\n".join([*lines[first:], self._rest])
                    return
                self._in_flight.append((self.skipped + self.taken + 1, batch))
                self.taken += len(batch)
                yield batch
            if never_ends:  # it is refused, and nothing after it is sent
                self._is_amid_line = True
                return

    def _left_of(self, lines: list[bytes]) -> list[bytes]:
        count = min(self.skip - self.skipped, len(lines))
        self.skipped += count
        self._are_done(lines[:count])
        return lines[count:]

    def _read(self) -> int:
        """Take in whatever there is, without waiting for a full chunk; 0 at the end.

        A signal may end the wait, and not the reading: what was taken would be in no account.
        """
        with suppress(OSError):  # what is no file has no number, and nothing to wait for
            poll = select.poll()
            poll.register(self._file.fileno(), select.POLLIN)
            self._reading = True
            try:
                poll.poll()
            finally:
                self._reading = False
        chunk = self._file.read1(CHUNK_BYTES)
        self._rest += chunk
        return len(chunk)

    def count_rest(self) -> int:
        """Lines never handed out. Reads to the end, which standard input may never come to."""
        count, last = self._rest.count(b"\n"), self._rest[-1:]
        while not self.has_ended and (chunk := self._file.read(CHUNK_BYTES)):
            count += chunk.count(b"\n")
            last = chunk[-1:]
        return max(0, count + (last not in (b"", b"\n")) - self._is_amid_line)


def append(
    at: LogServers,
    file: Annotated[Path | None, argument("File of lines; standard input if left out.", "FILE")] = None,
    expected_last: Annotated[
        int | None,
        option(
            "Append all lines as one batch, only if this is the index of the last data entry; -1: the"
            " log is empty.",
            "INDEX",
            min=-1,
        ),
    ] = None,
    producer: Annotated[
        str | None,
        option(
            "Append each line exactly once, as this producer; when repeated, only missing lines are"
            " appended.",
            "ID",
        ),
    ] = None,
    machine: Annotated[
        str | None, option("Each line is a command for this state machine; print its results.", "NAME")
    ] = None,
) -> None:
    """Append every line of FILE or of standard input as one entry; print the first and last index.

    On a terminal it shows how much of FILE is committed.

    If it is refused or interrupted it reports how many lines are committed, unknown (perhaps in the
    log) and not sent. With --producer the same command may be repeated until all lines are in the log:
    line n has sequence number n - 1, and lines that are in the log already are skipped.

    With --machine it prints a line for each command: its result, or why it was refused (status 1 then).

    Example: seq 1000 | quorumlog append --servers 127.0.0.1:20911
    """
    for name, given in (("--producer", producer), ("--machine", machine)):
        if given is not None and expected_last is not None:
            raise ConfigError(f"{name} and --expected-last exclude each other: leave one of them out")
    with ExitStack() as stack:
        source = LineSource(
            stack.enter_context(_open(file)) if file else cast(BufferedReader, sys.stdin.buffer)
        )
        log = stack.enter_context(at.client(producer_id=producer))
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, source.on_interrupt)
            stack.callback(signal.signal, number, before)
        appended = _Appended()
        stream: AppendStream | _Batches
        if machine is not None:
            stream = _Batches(source.batches(), partial(log.append_batch, machine=machine))
        elif expected_last is not None:
            # As one batch: a condition on a part of them would be worth nothing.
            lines = [line for batch in source.batches() for line in batch]
            send = partial(log.append_batch, expected_last=expected_last)
            stream = _Batches(iter([lines] if lines else []), send, len(lines))
        else:
            stream = log.append_stream(source.batches())
        status, why = 0, ""
        output_failure: OSError | None = None
        try:
            with source.leaving_if(lambda: True):
                refuse_dead_servers(log, at.timeout)
                if producer is not None:
                    source.skip = log.last_sequence() + 1
            # Where rows are printed, they show how far it is.
            with _progress(None if is_json() or machine is not None else file, source) as report:
                for receipt in _receipts(source, stream):
                    source.on_receipt()
                    report()
                    try:
                        appended.add(receipt)
                    except OSError as failure:
                        output_failure = failure
                        appended.prints_rows = False
                        source.stop()
        except BodyTooLarge as error:
            line, size_bytes = source.longest_refused()
            # Of all lines as one batch, the sum may be too large and none of them.
            where = f"line {line} of {size_bytes} bytes: " if expected_last is None else ""
            why, status = f"{where}{describe(error)}", EXIT_REFUSED
        except LedgerError as error:
            why, status = describe(error), EXIT_REFUSED
        except KeyboardInterrupt:
            stream.close()
        if isinstance(stream, _Batches) and stream.refused:
            status = EXIT_REFUSED
        if source.signal:
            status = EXIT_OF_SIGNAL + source.signal
        if why and not is_json():
            error_line(why)
        # A pipe with a name, or a device, may have no end to be read to.
        is_file = file is not None and file.is_file()
        account = appended.account(source, stream.progress, is_file=is_file)
        try:
            if output_failure is not None:
                raise output_failure
            if status and is_json():
                error_line(f"{why or 'ended early'}; {account}", status)
            elif status:
                typer.echo(account, err=machine is not None)
            elif machine is None or not appended.count:
                appended.print_summary(source.skipped)
                if source.skipped < source.skip:
                    note(
                        f"the log holds {source.skip} lines of producer {producer}, and the input has"
                        f" {source.skipped}, which count as the first of them whatever they contain."
                        " Append new lines at the end of the same input, or with another --producer"
                    )
        except OSError:
            # What is committed is worth telling, also where the results find no room.
            typer.echo(account, err=True)
            raise
        if status:
            raise typer.Exit(status)


@contextmanager
def _progress(file: Path | None, source: LineSource) -> Iterator[Callable[[], None]]:
    """How much of a file is committed, on standard error if that is a terminal."""
    if file is None or not sys.stderr.isatty():
        yield lambda: None
        return
    size = file.stat().st_size or None  # of a pipe nobody knows it
    with entry_progress(f"appending {file}", in_bytes=True) as report:
        yield lambda: report(source.done_bytes, size)


def _receipts(source: LineSource, stream: AppendStream | _Batches) -> Iterator[AppendReceipt]:
    def nothing_is_sent() -> bool:
        progress = stream.progress
        return progress.unwritten_records > 0 and progress.unknown_records == 0

    while True:
        with source.leaving_if(nothing_is_sent):
            receipt = next(stream, None)
        if receipt is None:
            return
        yield receipt


class _Batches:
    """Each batch has its receipt before the next one leaves. Used as the stream of a client is, so that
    both end alike."""

    def __init__(
        self,
        batches: Iterator[list[bytes]],
        send: Callable[[list[bytes]], AppendReceipt],
        unwritten: int = 0,
    ) -> None:
        self._batches, self._send = batches, send
        self._committed = self.refused = 0
        self._tell(unwritten=unwritten)

    def _tell(self, *, unknown: int = 0, unwritten: int = 0) -> None:
        from quorumlog.client.protocol.appending import StreamProgress

        self.progress = StreamProgress(self._committed, unknown, unwritten)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> AppendReceipt:
        lines = next(self._batches)
        self._tell(unknown=len(lines))
        try:
            receipt = self._send(lines)
        except LedgerError as error:
            if isinstance(error, ResultUnknown):
                self._committed += len(lines)
                self._tell()
            elif not isinstance(error, OutcomeUnknown):
                self._tell(unwritten=len(lines))
            raise
        self._committed += receipt.count
        self.refused += len(receipt.failures)
        self._tell()
        return receipt

    def close(self) -> None:
        """What has no answer has an unknown outcome."""


class _Appended:
    """What is committed so far."""

    def __init__(self) -> None:
        self.prints_rows = True
        self.count = 0
        self.first_index = self.last_index = self.term = -1

    def add(self, receipt: AppendReceipt) -> None:
        if self.count == 0:
            self.first_index = receipt.first_index
        self.count += receipt.count
        self.last_index, self.term = receipt.last_index, receipt.term
        if self.prints_rows and receipt.results:
            sys.stdout.writelines(lines_of(receipt))
        elif self.prints_rows and is_json():
            rows = ((at, one.term) for one in receipt.parts for at in one.indices)
            sys.stdout.writelines(f'{{"index":{index},"term":{term}}}\n' for index, term in rows)
        else:
            return
        sys.stdout.flush()

    def print_summary(self, skipped: int) -> None:
        """`skipped`: lines that were in the log before."""
        known = f"{skipped} lines were in the log already"
        if is_json():
            if skipped:
                note(known)
            return
        before = f"; {known}" if skipped else ""
        if self.count == 0:
            typer.echo(f"nothing to append{before}")
        else:
            typer.echo(
                f"appended {self.count} entries: first index {self.first_index},"
                f" last index {self.last_index}, term {self.term}{before}"
            )

    def account(self, source: LineSource, progress: StreamProgress, *, is_file: bool) -> str:
        """What became of every line."""
        committed, unknown = progress.committed_records, progress.unknown_records
        not_sent = source.taken - committed - unknown
        has_end = is_file or source.has_ended
        if has_end:
            not_sent += source.count_rest()
        where = f" (first index {self.first_index}, last index {self.last_index})" if self.count else ""
        where += f"; in the log already: {source.skipped}" if source.skipped else ""
        rest = "" if has_end else ", and the rest of the input"
        return f"lines committed: {committed}{where}; unknown: {unknown}; not sent: {not_sent}{rest}"


def _open(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(
            f"FILE {file}: {error.strerror}; name a file of lines, or leave FILE out for standard input"
        ) from None


def as_text(result: bytes | None) -> str:
    """A line; binary data is in base64."""
    if result is None:
        return ""
    try:
        text = result.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else "base64:" + base64.b64encode(result).decode()


def lines_of(receipt: AppendReceipt) -> Iterator[str]:
    """A line for each command: its result, or why the machine has refused it."""
    refused = dict(receipt.failures)
    places = [(index, part.term) for part in receipt.parts for index in part.indices]
    for place, (index, term) in enumerate(places):
        why, result = refused.get(place), receipt.results[place]
        if is_json():
            row = text_fields("result", result) if why is None else {"refused": why}
            yield json.dumps({"index": index, "term": term, **row}, separators=(",", ":")) + "\n"
        else:
            yield (f"refused: {why}" if why is not None else as_text(result)) + "\n"


def ask(
    at: LogServers,
    name: Annotated[str, argument("Name of the state machine.", "NAME")],
    question: Annotated[str, argument("The question; empty if left out.", "QUESTION")] = "",
) -> None:
    """Ask a state machine a question; the answer reflects every command acknowledged before.

    A binary answer is printed in base64.

    Example: quorumlog ask --servers 127.0.0.1:20911 counter
    """
    with at.connected() as log:
        answer = log.ask(name, question.encode())
    tell(text_fields("answer", answer), as_text(answer))
