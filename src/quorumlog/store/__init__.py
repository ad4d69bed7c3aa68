"""Storage. Nothing here knows a role, a socket or a loop; files are accessed in `disk.py` only.

    DIR/
      member                    group, ids, segment sizes, founding list: two lines of text
      hardstate                 term and vote        | 4096-byte slot | 4096-byte slot |
      durable                   what is on disk      | 4096-byte slot | 4096-byte slot |
      checkpoint                committed index: text, as in DLedger
      lock                      held by the process that uses the directory
      data/00000000000000000000     | entry | entry | ... | blank |   named by the first byte
      data/00000000001073741824     | entry | entry | zeros             |
      index/00000000000000000000    | 32-byte unit per entry | zeros     |
      start                     where the log begins | 128 KiB | 128 KiB |   absent: at entry 0
      states/00000000001073741824    the state of the log before a segment
      damaged                   damaged entries; mostly absent
      set-aside/                bytes that recovery cut off, kept for people

Segments and `checkpoint` are DLedger's; all integers are big-endian (docs/formats.md).
Reading order:

    disk.py               every call of the operating system; memory_disk.py, volatile
    log_points.py         points and ranges of a log
    slot_file.py          a value overwritten atomically; durable_file.py, one of them
    state_files.py        the other small files of a directory
    snapshots.py          those of state machines
    segment.py            one file of entries; segments.py, all of them; segment_view.py, read only
    placement.py          where entries lie; entry_index.py, by index; ledger_space.py, reserved space
    flush.py              syncs
    log_reader.py         reads
    log_begin.py          the log's begin once its first entries are deleted
    time_marks.py         which time holds at an index
    recovery_scan.py      reading the files, damage included
    recovery.py           repair at a start; rewriting.py, repair later
    ledger_store.py       all of this as one log
    directory_kind.py     the product that owns a directory, which every command checks first
    member_directory.py   a member's directory as a whole; made_directories.py, those made of others
    directory_reader.py   any directory, ours or Java's, read only; verification.py, in full
"""
