"""Where bytes lie. Nothing here knows a role, a socket or a loop; files are touched in `disk.py` only.

    DIR/
      member                    group, ids, segment sizes, founding list: two lines of text
      hardstate                 term and vote        | 4096-byte slot | 4096-byte slot |
      durable                   what is on disk      | 4096-byte slot | 4096-byte slot |
      checkpoint                how far it is committed: text, as DLedger has it
      lock                      held by the process that uses the directory
      data/00000000000000000000     | entry | entry | ... | blank |   named by the first byte
      data/00000000001073741824     | entry | entry | zeros             |
      index/00000000000000000000    | 32-byte unit per entry | zeros     |
      start                     where the log begins | 128 KiB | 128 KiB |   absent: at entry 0
      states/00000000001073741824    the state of the log before a segment
      damaged                   which entries are; mostly absent
      set-aside/                what recovery cut off, kept for people

Segments and `checkpoint` are DLedger's; all integers are big-endian (docs/formats.md).
Reading order:

    disk.py               every call of the operating system; memory_disk.py, where nothing is kept
    ledger_store.py       what a member asks of its log
    slot_file.py          a value that is overwritten and survives anything; durable_file.py, one of them
    state_files.py        the other small files of a directory
    snapshots.py          those of state machines
    segment.py            one file of entries; segments.py, all of them; segment_view.py, read only
    placement.py          where entries lie; entry_index.py, by index; ledger_space.py, the room for more
    flush.py              what comes to disk, and when
    log_reader.py         reads
    log_begin.py          where the log begins once its first entries are gone
    recovery_scan.py             what lies in the files, damage included
    recovery.py           what a start finds and mends; rewriting.py, what is mended later
    file_ledger_store.py  all of this as one log
    directory_kind.py     whose a directory is, which every command asks first
    member_directory.py   a member's directory as a whole; made_directories.py, those made of others
    directory_reader.py   any directory, ours or Java's, only looked at; verification.py, in full
"""
