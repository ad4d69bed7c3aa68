"""QueueEnds: from where to where each queue was known to reach (`ROOT/queues`, a file of ours)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.state_files import read_readable, replace_file

QUEUE_ENDS_NAME = "queues"


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queue_id: int
    end: int
    begin: int = -1
    """Of its first message; -1: an older release did not say it."""
    log_begin: int = -1
    """Where the commit log began, or was about to begin, when `begin` was noted; -1: as above, or more
    messages than `begin` may have been before it."""
    alive_from: int = 0
    """See `ConsumeQueue`."""


class QueueEnds:
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{QUEUE_ENDS_NAME}"
        self._saved: list[QueueEnd] | None = None

    def load(self) -> list[QueueEnd]:
        """Empty where it is missing or damaged: then nothing is known."""
        data, _ = read_readable(self._disk, self._path)
        try:
            return msgspec.json.decode(data or b"[]", type=list[QueueEnd])
        except msgspec.MsgspecError:
            return []

    def save(self, ends: Sequence[QueueEnd]) -> None:
        """On disk when this returns, and nothing if it is what was saved last. Raises StoreFailure.

        On a full disk the old ones stay, which are true as well, until there is space: a store without
        space refuses messages, and does not stop."""
        if ends == self._saved:
            return
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(ends), synced=True)
        except OSError as error:
            if is_lack_of_space(error):
                return
            raise StoreFailure(refusal(self._path, "written", error)) from error
        self._saved = list(ends)
