"""What every message between clients and servers has."""

from __future__ import annotations

import msgspec


class ClientMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="type", kw_only=True):
    request_id: int = 0
