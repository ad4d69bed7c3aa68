"""Clients of a log at ports of others: whoever listens there is named at once, with the option."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumlog import LocalCluster
from quorumlog.errors import WrongPort
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import NOT_SERVED, HelloResponse
from tests.broker.client.test_wrong_ports import Answer, http, listening, tls
from tests.cli.conftest import Cli, cli
from tests.client.both_clients import Client

__all__ = ["cli"]
FOR_EVER_MS = 3_600_000
"""A test that is told only then does not end."""


def redis(said: bytes) -> bytes:
    assert b"\r\n" in said, "a server of lines waits for the end of one"
    return b"-ERR unknown command\r\n"


def ssh(said: bytes) -> bytes:
    return b"SSH-2.0-OpenSSH_9.6\r\n"


OTHERS = {
    "HTTP": (http, "answers with HTTP, not quorumlog"),
    "TLS": (tls, "speaks TLS: name the CA to trust with --tls-ca"),
    "Redis": (redis, "answers with Redis's protocol, not quorumlog"),
    "SSH": (ssh, "answers with SSH, not quorumlog"),
}


@pytest.mark.parametrize(("answer", "words"), OTHERS.values(), ids=OTHERS)
def test_other_software_is_named_to_both_clients(
    answer: Answer, words: str, new_client: Callable[..., Client]
) -> None:
    with listening(answer) as address:
        log = new_client(address, timeout_ms=FOR_EVER_MS)
        for ask in (lambda: log.append(b"x"), lambda: log.get(0), log.producers):
            with pytest.raises(WrongPort) as told:
                ask()
            assert str(told.value) == f"{address} {words}"


def test_the_port_for_slaves_of_a_broker_is_named(new_client: Callable[..., Client]) -> None:
    words = "this is the port for the slaves of broker a; it listens at 127.0.0.1:10911"
    response = HelloResponse(code=NOT_SERVED, message=words, product="replica")
    with listening(lambda said: b"".join(encode_frame("replica", response))) as address:
        log = new_client(address, timeout_ms=FOR_EVER_MS)
        with pytest.raises(WrongPort) as told:
            log.append(b"x")
    assert str(told.value) == f"{address}: {words}"


def test_one_wrong_address_of_several_stops_nobody(new_client: Callable[..., Client]) -> None:
    with LocalCluster(members=1) as cluster, listening(http) as address:
        log = new_client(f"{address},{cluster.servers}")
        assert log.append(b"x").count == 1


def test_a_command_names_its_option(cli: Cli) -> None:
    with listening(http) as address:
        for line in (("append", "--servers"), ("kv", "get", "k", "--servers"), ("read", "--servers")):
            result = cli(*line, address, "--timeout", FOR_EVER_MS / 1000, input=b"x\n")
            assert result.exit_code == 1
            told = f"{address} answers with HTTP, not quorumlog; correct --servers"
            assert told in result.stderr, result.stderr
        result = cli("broker", "status", "--servers", address)
        assert f"{address} answers with HTTP, not quorumlog; correct --servers\n" in result.stderr
