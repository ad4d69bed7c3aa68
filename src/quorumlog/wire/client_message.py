"""The base of every message between clients and servers, and the bounds of fields.

The decoder checks bounds: a message beyond them is a ProtocolViolation, and never reaches a member.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""As arrays and files have it."""
MOST_CHARACTERS = 64 * 1024
Text = Annotated[str, Meta(max_length=MOST_CHARACTERS)]


class ClientMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="type", kw_only=True):
    request_id: Int = 0
    passes_limits: ClassVar[bool] = False
    """Of a request: it asks for the leader, keeps alive or ends something existing, and no limit of a
    user or an address refuses it (`net/quotas.py`)."""
    is_answered: ClassVar[bool] = True
    """Of a request."""
    of_watch: ClassVar[bool] = False
    """Of a watch's request, and of its messages."""

    @property
    def only_looks(self) -> bool:
        """Of a request: it only reads a member's status, and is served on a connection accepted beyond a
        limit for that."""
        return self.passes_limits
