"""RecordAssembler: whole records out of pieces of a commit log that may be cut anywhere."""

from __future__ import annotations

import struct

from quorumlog.broker.message import BLANK_BYTES
from quorumlog.broker.record_batch import RecordBatch, Stop, scan_records
from quorumlog.broker.store.log_files import LogRecords, verified
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation

_SIZE = struct.Struct(">I")


class RecordAssembler:
    def __init__(self, position: int, file_bytes: int) -> None:
        """`position`: where a record begins, which is the first one that will come."""
        self.position = position
        """Of the next byte that is expected."""
        self.whole_position = position
        """Behind the last record that has come whole, and behind the blank that follows it."""
        self._file_bytes = file_bytes
        self._pending = bytearray()
        self._filler_bytes = 0

    def feed(self, data: Buffer) -> list[LogRecords]:
        """What is whole now. A blank has no records, and its file ends with it. Raises
        ProtocolViolation."""
        view = memoryview(data).cast("B")
        self.position += len(view)
        found: list[LogRecords] = []
        while len(view):
            if self._filler_bytes:
                skipped = min(self._filler_bytes, len(view))
                self._filler_bytes -= skipped
                view = view[skipped:]
                continue
            if self._pending:
                wanted = self._wanted()
                self._pending += view[:wanted]
                view = view[wanted:]
                if self._wanted() == 0:
                    whole, self._pending = self._pending, bytearray()
                    rest = self._take(memoryview(whole), found)
                    assert not rest, len(rest)
                continue
            view = self._take(view, found)
            if len(view) and not self._filler_bytes:
                self._pending = bytearray(view)
                break
        return found

    def _wanted(self) -> int:
        """How many bytes the record that has begun still lacks, as far as that is known."""
        held = len(self._pending)
        if held < BLANK_BYTES:
            return BLANK_BYTES - held
        scan = scan_records(self._pending)
        return 0 if scan.stop is not Stop.BYTES or len(scan.starts) else scan.wanted_bytes - held

    def _take(self, view: memoryview, found: list[LogRecords]) -> memoryview:
        """The whole records that `view` begins with, and a blank; returns what follows."""
        position = self.whole_position
        scan = scan_records(view)
        if len(scan.starts):
            records = RecordBatch(view[: scan.stop_at], scan.starts, scan.sizes)
            run = LogRecords(position, records, position + scan.stop_at)
            _, problem = verified(run, check_bodies=False)
            if problem:
                raise ProtocolViolation(f"what was sent of {position} on {problem}")
            if run.next_position > self._file_stop(position):
                raise ProtocolViolation(f"the records from {position} on run over the end of a file")
            found.append(run)
            self.whole_position = run.next_position
            view = view[scan.stop_at :]
        if scan.stop is Stop.BLANK:
            position = self.whole_position
            size = _SIZE.unpack_from(view)[0]
            stop = self._file_stop(position)
            if position + size != stop:
                raise ProtocolViolation(f"the blank at {position} does not end with its file")
            head = RecordBatch.contiguous(view[:BLANK_BYTES], [])
            found.append(LogRecords(position, head, stop))
            self.whole_position = stop
            self._filler_bytes = size - BLANK_BYTES
            return view[BLANK_BYTES:]
        if scan.stop is not Stop.BYTES or scan.wanted_bytes > self._file_bytes:
            raise ProtocolViolation(f"what was sent of {self.whole_position} on is no record")
        return view

    def _file_stop(self, position: int) -> int:
        return (position // self._file_bytes + 1) * self._file_bytes
