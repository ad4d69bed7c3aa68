"""What one request to the store may bring, beside commands and questions."""

from __future__ import annotations

import msgspec
import pytest

from quorumlog.errors import ProtocolViolation
from quorumlog.kv.requests import (
    MOST_LEASES,
    MOST_WATCHED_BYTES,
    KeepAliveRequest,
    Request,
    WatchRequest,
    request_decoder,
)
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Hello


@pytest.mark.parametrize(
    ("least", "too_much"),
    [
        (KeepAliveRequest(leases=(1,) * MOST_LEASES), KeepAliveRequest(leases=(1,) * (MOST_LEASES + 1))),
        (WatchRequest(key=b"k" * MOST_WATCHED_BYTES), WatchRequest(key=b"k" * (MOST_WATCHED_BYTES + 1))),
        (WatchRequest(key=b"k"), WatchRequest(key=b"k", end=b"k" * (MOST_WATCHED_BYTES + 1))),
    ],
)
def test_what_is_beyond_its_bound_is_no_request(least: Request, too_much: Request) -> None:
    """Two million leases in one request took the lead away; 300 keys of watches took 545 MB."""

    def received(request: Request) -> int:
        decoder = request_decoder()
        decoder.receive_data(b"".join(encode_frame("kv", Hello(role="client"))))
        frame = b"".join(encode_frame("kv", msgspec.structs.replace(request, request_id=1)))
        return len(decoder.receive_data(frame))

    assert received(least) == 1
    with pytest.raises(ProtocolViolation, match=r"length <= \d+"):
        received(too_much)
