"""Another port than the one that was meant: who speaks there is named."""

from __future__ import annotations

import pytest

from quorumlog.errors import WrongPort
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import (
    BROKER,
    LOG,
    NOT_SERVED,
    STORE,
    Hello,
    HelloResponse,
    check_product,
    refusal_of_other,
)
from quorumlog.net.strangers import OtherSoftware


@pytest.mark.parametrize(
    ("said", "spoken"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"-ERR unknown command\r\n", "Redis's protocol"),
        (b"\0\0\0\x09", "bytes that begin with b'\\x00\\x00\\x00\\t'"),
    ],
)
def test_other_software_is_known_by_its_first_bytes(said: bytes, spoken: str) -> None:
    with pytest.raises(OtherSoftware, match="not quorumlog") as found:
        FrameDecoder().receive_data(said)
    assert found.value.spoken == spoken


def test_the_port_of_another_product_says_where_the_right_one_is() -> None:
    another_product_is_turned_away()


def another_product_is_turned_away() -> None:
    hello = Hello(role="client", product=BROKER)
    assert refusal_of_other(hello, BROKER, {}) is None
    told = refusal_of_other(hello, LOG, {BROKER: "10.0.0.1:10911"})
    assert told is not None
    assert told.code == NOT_SERVED
    with pytest.raises(WrongPort) as refused:
        check_product(told, BROKER, "10.0.0.1:20911")
    assert str(refused.value) == (
        "10.0.0.1:20911: this port serves a log; its broker listens at 10.0.0.1:10911"
    )
    alone = refusal_of_other(hello, STORE, {})
    assert alone is not None
    assert alone.message == "this port serves a key-value store, not a broker"


def test_a_client_finds_out_by_itself_that_it_greeted_an_earlier_release_of_another_product() -> None:
    check_product(HelloResponse(), LOG, "10.0.0.1:20911")
    with pytest.raises(WrongPort, match=r"10\.0\.0\.1:20911: this port serves a log, not a broker"):
        check_product(HelloResponse(), BROKER, "10.0.0.1:20911")
