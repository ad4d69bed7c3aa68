"""What is too short for a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.broker import BrokerClient, Message
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.wire import SendRequest, broker_decoder, encode
from quorumlog.net.errors import ErrorResponse
from tests.broker.serving.served import dialled, hello, served


@pytest.mark.parametrize("size_bytes", [48, 49, 90])
def test_a_record_that_is_shorter_than_any_is_refused_and_the_next_send_is_taken(
    size_bytes: int, tmp_path: Path
) -> None:
    """An assertion ended the member of a replicated broker, and a classic one never answered."""
    with served(tmp_path, {"t": 1}) as server, dialled(server.address) as sock:
        sock.sendall(hello())
        records = RecordBatch.contiguous(bytearray(size_bytes), [size_bytes])
        sock.sendall(b"".join(encode(SendRequest(request_id=1), records)))
        decoder = broker_decoder()
        answers = []
        while len(answers) < 2:
            answers += decoder.receive_data(sock.recv(1 << 16))
        assert isinstance(answers[1].message, ErrorResponse)
        with BrokerClient(server.address) as broker:
            assert broker.send(Message("t", b"whole")).queue_offset == 0
