"""Where bytes lie. Nothing here knows a role, a socket or a loop; files are touched in `disk.py` only.

    DIR/
      member                    group, ids, segment sizes, founding list: two lines of text
      hardstate                 term and vote        | 4096-byte slot | 4096-byte slot |
      durable                   what is on disk      | 4096-byte slot | 4096-byte slot |
      currterm, checkpoint      text that a Java DLedger member reads as well
      lock                      held by the process that uses the directory
      data/00000000000000000000     | entry | entry | ... | blank |   named by the first byte
      data/00000000001073741824     | entry | entry | zeros             |
      index/00000000000000000000    | 32-byte unit per entry | zeros     |
      quarantine/               what recovery cut off

    entry   magic 4 | size 4 | index 8 | term 8 | pos 8 | channel 4 | chain_crc 4 | body_crc 4 |
            body_len 4 | body
    blank   FF FF FF FF | bytes left in the segment 4 | zeros
    unit    magic 4 | position 8 | size 4 | index 8 | term 8
    slot    magic 8 | sequence 8 | payload 492 | crc 4       one 512-byte sector; zeros to 4096

Entries, blanks, units, `currterm` and `checkpoint` are DLedger's; all integers are big-endian
(docs/formats.md). Reading order:

    disk.py               every call of the operating system
    ledger_store.py       what a member asks of its log
    segment_scan.py       records, one behind the other
    mmap_ledger_store.py  the log in files: mmap_file_list.py, mmap_file.py, placement.py, log_ends.py,
                          entry_index.py, recent_units.py, log_reader.py, flush.py, ledger_space.py,
                          page_cache.py
    memory_disk.py        the same on a disk in memory, for members that keep nothing
    slot_file.py          a small value that survives anything; durable_file.py, hard_state_file.py
    replaced_file.py      a small text that is replaced; member_file.py, checkpoint_file.py
    survey.py             what a log holds and what of it is damaged: survey_files.py, segment_view.py,
                          damage_search.py; a start applies it: recovery.py, segment_adoption.py,
                          quarantine.py, set_aside.py, term_run_search.py
    healing.py            damage found later, and another member's copy written over it
    member_directory.py   all of it opened as a whole: opened_directory.py;
                          directory_recovery.py when it forgot too much
    directory_reader.py   any stopped directory, ours (own_survey.py) or Java's (java_survey.py):
                          log_extent.py, stored_entries.py, missing_entries.py; then inspection.py,
                          verification.py
"""

from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.directory_recovery import recover_directory
from quorumlog.store.disk import Disk, DiskFile, DiskLock, DiskUsage, OsDisk
from quorumlog.store.inspection import Inspection, inspect_directory
from quorumlog.store.ledger_store import LOG_ORIGIN, LedgerStore, LogPoint, LogRange, SyncTask
from quorumlog.store.log_extent import Damage
from quorumlog.store.member_directory import (
    MemberDirectory,
    open_directory_of,
    open_member_directory,
)
from quorumlog.store.member_file import MemberRecord, cluster_id_of
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.mmap_ledger_store import MmapLedgerStore
from quorumlog.store.verification import (
    Comparison,
    Verification,
    compare_directories,
    verify_directory,
)

__all__ = [
    "LOG_ORIGIN",
    "Comparison",
    "Damage",
    "DirectoryReader",
    "Disk",
    "DiskFile",
    "DiskLock",
    "DiskUsage",
    "Inspection",
    "LedgerStore",
    "LogPoint",
    "LogRange",
    "MemberDirectory",
    "MemberRecord",
    "MemoryDisk",
    "MmapLedgerStore",
    "OsDisk",
    "SyncTask",
    "Verification",
    "cluster_id_of",
    "compare_directories",
    "inspect_directory",
    "open_directory_of",
    "open_member_directory",
    "recover_directory",
    "verify_directory",
]
