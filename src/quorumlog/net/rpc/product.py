"""Product: one product's messages to its servers, and the reading of their answers."""

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
    """The name in a Hello."""
    group: str
    """Group in the header of every frame."""
    probe: ClientMessage
    """Request for the leader; `view_of` reads its answer."""
    closed_error: type[LedgerError] = BadRequest
    """Waiting and later calls raise it once the client is closed."""
    view: GroupView
    """The timings of the client that uses the product."""

    def __init__(self, cluster_id: str = "") -> None:
        """`cluster_id`: the expected one; empty: any."""
        self.cluster_id = cluster_id
        """Cluster id of the first server that greeted; servers of another cluster are not used.
        Empty: unknown yet."""

    def decoder(self) -> FrameDecoder:
        return FrameDecoder()

    def hello(self, link: Link) -> ClientMessage:
        return client_hello(self.name)

    def greeting_of(self, link: Link, message: ClientMessage) -> HelloResponse:
        """Read the answer to a Hello. Raises WrongPort, ProtocolViolation; any other LedgerError: the
        server is not used for now."""
        if not isinstance(message, HelloResponse):
            raise ProtocolViolation(f"{type(message).__name__} instead of a greeting")
        check_product(message, self.name, link.address)
        return message

    def ungreeted(self, link: Link) -> str:
        """Text for the error of a server that closed the connection at the Hello."""
        return f" without a greeting: is this the port of a {self.name}?"

    def view_of(self, message: ClientMessage) -> ServerView | None:
        """The view in an answer; None: no view. Raises ProtocolViolation."""
        raise NotImplementedError

    def notice_of(self, message: ClientMessage) -> ServerView | None:
        """The view in a server's notification."""
        return None

    def looks(self, message: ClientMessage) -> bool:
        """Whether the request is for a server's status: a server that refuses connections briefly
        accepts a client that sends nothing else."""
        return type(message) is type(self.probe)

    def submitted(self, call: Any) -> None:
        """A call was submitted; may set its `order`."""

    def encode(self, link: Link, call: Any, request_id: int, now_ms: float) -> list[Buffer]:
        """The frame of a request. Raises Refused for a request that this server would not accept."""
        message = msgspec.structs.replace(call.message, request_id=request_id)
        return encode_frame(self.group, message, call.batch)

    def answered(
        self, link: Link, call: Any, message: ClientMessage, batch: EntryBatch | None
    ) -> ServerView | None:
        """The information about the leader in an answer, if any. Raises ProtocolViolation for an
        invalid answer."""
        return None

    def refused(self, link: Link, call: Any, error: LedgerError) -> None: ...

    def unanswered(self, link: Link, call: Any) -> None:
        """The call's connection has ended; its outcome is unknown."""

    def cancel(self, request_id: int) -> ClientMessage | None:
        """The request that ends this watch."""
        return None
