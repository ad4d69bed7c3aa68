"""AppendStream: the receipts of one `append_stream`, for code that blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self

from quorumlog.client.ledger_client_base import AppendStreamBase
from quorumlog.client.protocol.append_window import Item
from quorumlog.client.result_streams import Appending
from quorumlog.entry import AppendReceipt

if TYPE_CHECKING:
    from quorumlog.client.blocking_client import LedgerClient


class AppendStream(AppendStreamBase):
    """Receipts of one `append_stream`, in order; one a batch.

    Nothing is sent before the first receipt is asked for. On an error the iteration ends with it:
    `StreamOutcomeUnknown` if some batch's outcome is unknown, else the `Refused` that stopped the
    stream. `progress` says at any time how many records are committed, unknown and not written.
    """

    def __init__(self, client: LedgerClient, items: Iterable[Item], appending: Appending) -> None:
        super().__init__(appending)
        self._client = client
        self._batches = appending.gatherer.all_of(items)

    def __iter__(self) -> Iterator[AppendReceipt]:
        return self

    def __next__(self) -> AppendReceipt:
        self._is_begun = True
        while self._appending.wants_batch:
            self._client._io.submit(self._appending.add_batch(self._appending.next_of(self._batches)))
        receipt = self._client._run(self._appending.next_receipt())
        if receipt is None:
            raise StopIteration
        return receipt

    def close(self) -> None:
        """Send nothing more; `progress` then counts what is in flight as unknown."""
        self._is_begun = True
        self._client._io.cancel(self._appending.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client._io.cancel(self._appending.stop())
