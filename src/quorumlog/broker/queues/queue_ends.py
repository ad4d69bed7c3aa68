"""QueueEnds: how far each queue was known to reach (`ROOT/queues`, a file of ours)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.files.replaced_file import read_readable, replace_file

QUEUE_ENDS_NAME = "queues"


class QueueEnds:
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{QUEUE_ENDS_NAME}"
        self._saved: dict[QueueKey, int] | None = None

    def load(self) -> dict[QueueKey, int]:
        """Empty where it is missing or damaged: then nothing is known."""
        data, _ = read_readable(self._disk, self._path)
        try:
            rows = msgspec.json.decode(data or b"[]", type=list[tuple[str, int, int]])
        except msgspec.MsgspecError:
            return {}
        return {QueueKey(topic, queue_id): end for topic, queue_id, end in rows}

    def save(self, ends: Mapping[QueueKey, int]) -> None:
        """On disk when this returns, and nothing if it is what was saved last. Raises StoreFailure.

        On a full disk the old ones stay, which are true as well, until there is space: a store without
        space refuses messages, and does not stop."""
        if ends == self._saved:
            return
        rows = [(key.topic, key.queue_id, end) for key, end in sorted(ends.items())]
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(rows), synced=True)
        except OSError as error:
            if is_lack_of_space(error):
                return
            raise StoreFailure(refusal(self._path, "written", error)) from error
        self._saved = dict(ends)
