"""SegmentAdoption: a start does to the segment files what the survey of them says (survey_files.py).
What does not belong to the log is set aside; the others become lists of files of full length."""

from __future__ import annotations

import errno
from contextlib import suppress

from quorumlog.errors import DiskFull
from quorumlog.store.disk import Disk, is_lack_of_space, reason_of
from quorumlog.store.files.durable_file import DurableFile, DurablePoint
from quorumlog.store.log.entry_index import IndexSegments
from quorumlog.store.log.segment import Segment
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME, SegmentList, segment_name
from quorumlog.store.log.segment_scan import INDEX_UNIT_BYTES
from quorumlog.store.log.segment_view import SegmentFile, SegmentView, read_pages
from quorumlog.store.repair.set_aside import SetAside
from quorumlog.store.repair.survey_files import Fate, FileSurvey, SegmentFinding

_CHUNK_BYTES = 4 << 20

_CANNOT_BE_MOVED = (errno.EXDEV, errno.EBUSY, errno.ENAMETOOLONG)
"""A mount, or a name that has no room for what a name set aside begins with."""


class SegmentAdoption:
    """The files of one start; the caller closes `data` and `index`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        durable_file: DurableFile,
        found: FileSurvey,
    ) -> None:
        self.lines: list[str] = []
        self.kept_aside: list[str] = []
        """Where what does not belong to the log has gone."""
        self._disk = disk
        self._durable_file = durable_file
        self._found = found
        config = found.config
        self._set_aside = SetAside(disk, directory, config)
        first_unit_position = (found.begin.index + 1) * INDEX_UNIT_BYTES
        index_bytes = config.index_segment_bytes
        self.data = SegmentList(
            disk, f"{directory}/{DATA_NAME}", config.segment_bytes, found.begin.position
        )
        self.index = IndexSegments(
            disk,
            f"{directory}/{INDEX_NAME}",
            index_bytes,
            first_unit_position // index_bytes * index_bytes,
        )

    def adopt(self) -> None:
        """Raises OSError, DiskFull."""
        for path, name in self._found.strangers:
            try:
                self.kept_aside.append(self._set_aside.take(path, name))
                self.lines.append(f"{path} is not a segment, set aside")
            except OSError as error:
                if not (is_lack_of_space(error) or error.errno in _CANNOT_BE_MOVED):
                    raise
                self.lines.append(f"{path} is not a segment and stays where it is: {reason_of(error)}")
        if self._found.lost_from < self._found.known.point.position or self._is_index_lost:
            # Should this start not come to its end, the next one finds files of full length: it has to
            # look for entries in them, and for all the units that they should have.
            self.record_known()
        for files, findings in ((self.data, self._found.data), (self.index, self._found.index)):
            dropped = [each for each in findings if each.fate is Fate.DROPPED]
            for finding in dropped:
                self._disk.unlink(finding.path)
            if dropped:
                self._disk.sync_directory(files.directory)
                names = [segment_name(each.position) for each in (dropped[0], dropped[-1])]
                self.lines.append(
                    f"{files.directory}: {len(dropped)} segments ({names[0]} .. {names[1]}) are no"
                    " longer part of the log, removed"
                )
            for finding in findings:
                if finding.fate is not Fate.DROPPED:
                    self._adopt(files, finding)

    @property
    def _is_index_lost(self) -> bool:
        """Of entries up to the durable point."""
        return self._found.trusted_stop_index <= self._found.known.point.index

    def record_known(self) -> None:
        """The durable point that was found, in both slots and synced."""
        point, synced_position = self._found.known
        if self._is_index_lost:
            synced_position = self._found.begin.position
        synced_position = min(synced_position, self._found.lost_from)
        self._durable_file.record_both_synced(DurablePoint(point, synced_position))

    def _adopt(self, files: SegmentList, finding: SegmentFinding) -> None:
        if finding.line:
            self.lines.append(finding.line)
        if finding.fate is Fate.ASIDE:
            folder = files.directory.rpartition("/")[2]
            name = f"{folder}-{segment_name(finding.position)}"
            self.kept_aside.append(self._set_aside.take(finding.path, name))
            return
        if finding.fate is Fate.REMOVED:
            self._disk.unlink(finding.path)
            self._disk.sync_directory(files.directory)
            return
        if finding.size_bytes < 0:
            files.create_next()
        else:
            size_bytes = finding.size_bytes
            if finding.fate is Fate.LONG:
                self._cut_off(files, finding)
                size_bytes = files.segment_bytes
            file = Segment.open(self._disk, finding.path, finding.position, files.segment_bytes)
            if size_bytes != files.segment_bytes:
                low = finding.position if files is self.index else None  # units can be made again
                file.discard_from(finding.position + size_bytes, low=low)
                file.sync()
            files.adopt(file)
        if finding.fate is Fate.MADE_AGAIN and files is self.data:
            # Best now; else each piece of the repair asks for its own.
            file = files.files[-1]
            with suppress(DiskFull):
                file.reserve(file.base_position, file.end_position)

    def _cut_off(self, files: SegmentList, finding: SegmentFinding) -> None:
        end = finding.position + files.segment_bytes
        held = SegmentFile("", finding.position, finding.size_bytes)
        whole_file = SegmentView(self._disk, files.directory, [held], finding.size_bytes)
        prefix = "" if files is self.data else f"{INDEX_NAME}-"
        self.copy_aside(whole_file, end, finding.position + finding.size_bytes, prefix)
        whole_file.close()
        file = Segment.open(self._disk, finding.path, finding.position, files.segment_bytes)
        file.discard_from(end)
        file.sync()
        file.retire()

    def copy_aside(self, segments: SegmentList, first: int, stop: int, prefix: str = "") -> None:
        """Lack of space for the copy stops nothing: what is cut was acknowledged by nobody. Pages that
        the disk cannot read are zeros in it."""
        path, target = segments.path_of(first), ""
        try:
            target = self._set_aside.new_name(prefix + segment_name(first))
            pieces = (
                read_pages(segments, min(_CHUNK_BYTES, stop - start), start)[0]
                for start in range(first, stop, _CHUNK_BYTES)
            )
            self._set_aside.write(target, pieces)
        except OSError as error:
            if not is_lack_of_space(error):
                raise
            if target and self._disk.exists(target):
                self._disk.unlink(target)
            self.lines.append(f"no space to keep {stop - first} cut bytes of {path} aside")
            return
        self.kept_aside.append(target)
