"""The file `checkpoint`: how far the log was known to be committed (docs/formats.md, checkpoint).

    endIndex=1999
    committedIndex=1999
    committedTerm=3
    committedChain=2882400001

The first two keys are DLedger's, and all that a Java member writes. A member believes its own
checkpoint only if the log holds exactly the entry that the last three lines name; after a loss of data
another entry may stand at that index, and calling that one committed would be a lie.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.store.disk import Disk
from quorumlog.store.files.replaced_file import parse_properties, read_readable, replace_file

CHECKPOINT_NAME = "checkpoint"


class Checkpoint(NamedTuple):
    """Of a Java member: term -1 and chain 0."""

    end_index: int
    committed_index: int
    committed_term: int
    committed_chain: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return (
        f"endIndex={checkpoint.end_index}\n"
        f"committedIndex={checkpoint.committed_index}\n"
        f"committedTerm={checkpoint.committed_term}\n"
        f"committedChain={checkpoint.committed_chain}\n"
    ).encode()


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """None if it does not say which index is committed."""
    values = parse_properties(data.decode(errors="replace"))
    try:
        return Checkpoint(
            int(values.get("endIndex", -1)),
            int(values["committedIndex"]),
            int(values.get("committedTerm", -1)),
            int(values.get("committedChain", 0)),
        )
    except (KeyError, ValueError):
        return None


def load_checkpoint(disk: Disk, directory: str) -> Checkpoint | None:
    """None if it says nothing usable: nothing depends on having one."""
    data, _ = read_readable(disk, f"{directory}/{CHECKPOINT_NAME}")
    return None if data is None else decode_checkpoint(data)


def save_checkpoint(disk: Disk, directory: str, checkpoint: Checkpoint) -> None:
    """Not synced: a start proves it against the log. Raises OSError."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    replace_file(disk, path, encode_checkpoint(checkpoint), synced=False)
