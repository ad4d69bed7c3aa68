"""Product: one product's messages to its servers, and its use of their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, LedgerError, ProtocolViolation
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import HelloResponse, check_product, client_hello
from quorumlog.net.rpc.calls import Link
from quorumlog.net.rpc.view import GroupView, ServerView
from quorumlog.wire.client_message import ClientMessage


class Product:
    name: str
    """As in a Hello."""
    group: str
    """Of every frame."""
    probe: ClientMessage
    """Request for the leader; `view_of` reads its answer."""
    closed_error: type[LedgerError] = BadRequest
    """Waiting and later calls raise it once the client is closed."""
    view: GroupView
    """Of the client that it is given to."""

    def __init__(self, cluster_id: str = "") -> None:
        """`cluster_id`: as it was before."""
        self.cluster_id = cluster_id
        """Of the first server that greeted; servers of another one are not asked. Empty: unknown yet."""

    def decoder(self) -> FrameDecoder:
        return FrameDecoder()

    def hello(self, link: Link) -> ClientMessage:
        return client_hello(self.name)

    def greeting_of(self, link: Link, message: ClientMessage) -> HelloResponse:
        """The answer to a Hello. Raises WrongPort, ProtocolViolation; another LedgerError: this server
        is not asked now."""
        if not isinstance(message, HelloResponse):
            raise ProtocolViolation(f"{type(message).__name__} instead of a greeting")
        check_product(message, self.name, link.address)
        return message

    def ungreeted(self, link: Link) -> str:
        """It closed the connection at the Hello: text to add to the error."""
        return f" without a greeting: is this the port of a {self.name}?"

    def view_of(self, message: ClientMessage) -> ServerView | None:
        """None: no view. Raises ProtocolViolation."""
        raise NotImplementedError

    def notice_of(self, message: ClientMessage) -> ServerView | None:
        """The view in a server's notification."""
        return None

    def looks(self, message: ClientMessage) -> bool:
        """A request for a server's status: where connections are refused, a client that sends nothing
        else is briefly accepted."""
        return type(message) is type(self.probe)

    def submitted(self, call: Any) -> None:
        """May set its `order`."""

    def encode(self, link: Link, call: Any, request_id: int, now_ms: float) -> list[Buffer]:
        """Raises Refused for a request that this server would not take."""
        message = msgspec.structs.replace(call.message, request_id=request_id)
        return encode_frame(self.group, message, call.batch)

    def answered(
        self, link: Link, call: Any, message: ClientMessage, batch: EntryBatch | None
    ) -> ServerView | None:
        """Its information about the leader, if any. Raises ProtocolViolation for an invalid answer."""
        return None

    def refused(self, link: Link, call: Any, error: LedgerError) -> None: ...

    def unanswered(self, link: Link, call: Any) -> None:
        """Its connection has ended, and its outcome is unknown."""

    def cancel(self, request_id: int) -> ClientMessage | None:
        """The request that ends this watch."""
        return None
