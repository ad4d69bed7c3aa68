"""What the survey of a log of ours (survey.py) says to people: damage by file, position and entries."""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.config import StoreConfig
from quorumlog.store.disk import Disk
from quorumlog.store.files.durable_file import DurablePoint
from quorumlog.store.files.member_file import MemberRecord
from quorumlog.store.ledger_store import DamagedRange, LogStart
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.log.segment_view import IndexUnits, SegmentView
from quorumlog.store.offline.log_extent import Damage, LogExtent, LogSegment, SegmentSearch
from quorumlog.store.repair.survey import LogSurvey, survey_log
from quorumlog.store.repair.survey_files import FileSurvey, survey_files


def survey_own(
    disk: Disk,
    directory: str,
    record: MemberRecord,
    known: DurablePoint,
    damaged: Sequence[DamagedRange] | None,
    start: LogStart | None,
    surveyed_index: int = -1,
) -> tuple[LogExtent, SegmentView, IndexUnits]:
    """`known`: the durable point. `damaged`: of the file `damaged`, None if it is unreadable.
    `surveyed_index`: see `survey_log`."""
    config = StoreConfig(
        segment_bytes=record.segment_bytes, index_segment_bytes=record.index_segment_bytes
    )
    files = survey_files(disk, directory, config, known, start)
    known = files.known
    folder = f"{directory}/{DATA_NAME}"
    data = SegmentView(disk, folder, files.data_files, record.segment_bytes)
    folder = f"{directory}/{INDEX_NAME}"
    index = SegmentView(disk, folder, files.index_files, record.index_segment_bytes)
    log = survey_log(
        data,
        index,
        files,
        damaged,
        lambda scan, tail_bytes: None,
        must_be_bounded=False,
        surveyed_index=surveyed_index,
    )
    search = SegmentSearch(data, IndexUnits(index))
    segments = _segments(search, files, log)
    damage = _damage_of_log(data, index, files, known, log)
    damage += [
        each
        for each in search.damage
        if not any(r.before.position <= each.position < r.last.position for r in log.ranges)
    ]
    tail = ""
    if log.cut_pieces:
        where = data.name_of(log.cut_pieces[0][0])
        tail = f"{where}: {log.tail or 'bytes behind the end of the log'}"
    return LogExtent(segments, log.end, tuple(damage), tail), data, search.units


def _segments(search: SegmentSearch, files: FileSurvey, log: LogSurvey) -> tuple[LogSegment, ...]:
    segments: list[LogSegment] = []
    for file in files.data_files:
        if file.position < log.end.position:
            low_index = segments[-1].first_index + 1 if segments else files.begin.index + 1
            segment = search.segment_of(file, file.position, low_index, log.end.index)
            if segment is not None:
                segments.append(segment)
    return tuple(segments)


def _damage_of_log(
    data: SegmentView, index: SegmentView, files: FileSurvey, known: DurablePoint, log: LogSurvey
) -> list[Damage]:
    lost = {data.name_of(each.position): each for each in files.data if each.problem}
    named = [each.path for each in log.ranges]  # they say the same of the file
    damage = [
        Damage(name, file.position, -1, file.problem) for name, file in lost.items() if name not in named
    ]
    damage += [
        Damage(
            each.path,
            each.before.position,
            each.first_index,
            lost[each.path].problem if each.path in lost else each.problem,
            each.stop_index,
        )
        for each in log.found
    ]
    if log.contradiction is not None:
        wrong = log.contradiction
        problem = f"the entries do not lead to the durable entry {known.point.index}"
        damage.append(Damage(data.name_of(wrong.position - 1), wrong.position, wrong.index, problem))
    for segments, pages in ((data, log.unreadable), (index, log.unreadable_units)):
        for page in pages:
            problem = f"{page.problem}; it lies behind the end of the log, and a start writes it again"
            damage.append(Damage(segments.name_of(page.position), page.position, -1, problem))
    return damage
