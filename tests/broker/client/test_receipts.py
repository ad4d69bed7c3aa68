"""What a receipt says of where its messages lie."""

from __future__ import annotations

from quorumlog.broker.client.broker_calls import SendReceipt

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def test_a_message_whose_place_is_not_known_has_no_id() -> None:
    """An id made of position -1 would name a message that does not exist."""
    known = SendReceipt("orders", 0, 3, 0x111, 1, 1_000, HOST)
    assert known.message_id == "7F00000100002A9F0000000000000111"
    assert known._replace(queue_offset=-1, physical_offset=-1, store_time_ms=-1).message_id == ""
