"""Clients of the key-value store turn to another member where one cannot serve them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from quorumlog import connect as connect_log
from quorumlog.errors import LeaderNotReady
from quorumlog.kv import connect
from quorumlog.kv.requests import GROUP, request_decoder
from quorumlog.kv.testing import LocalStores
from quorumlog.net.errors import error_response
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import STORE, Hello, HelloResponse
from tests.waiting import eventually, row_of


@contextmanager
def member_without_a_leader() -> Iterator[str]:
    """It greets, and refuses whatever else is asked, as one that is cut off from the others."""
    refusal = LeaderNotReady("no leader is known")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(sock: socket.socket) -> None:
        decoder = request_decoder()
        with sock, suppress(OSError):
            while data := sock.recv(1 << 16):
                for _, request, *_ in decoder.receive_data(data):
                    said = (
                        HelloResponse(product=STORE, member_id="n9", election_timeout_ms=300)
                        if isinstance(request, Hello)
                        else error_response(request.request_id, refusal)
                    )
                    sock.sendall(b"".join(encode_frame(GROUP, said)))

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_member_that_knows_no_leader_is_left_for_one_that_does() -> None:
    """Two of three members are whole, and the third, which is named first, is cut off from them."""
    with (
        member_without_a_leader() as cut_off,
        LocalStores(1) as stores,
        connect(f"{cut_off},{stores.servers}", timeout_ms=20_000) as kv,
    ):
        kv.put("a", b"1")
        assert kv["a"] == b"1"


def test_watches_and_tails_at_a_member_that_is_removed_go_on_at_another() -> None:
    with LocalStores(3) as stores:
        cluster = stores.cluster
        leader = cluster.leader()
        gone = next(member for member in cluster.running if member != leader)
        stores_of = dict(zip(sorted(cluster.running), stores.servers.split(","), strict=True))
        servers = dict(zip(sorted(cluster.running), cluster.servers.split(","), strict=True))
        others = [member for member in stores_of if member != gone]
        with (
            connect(",".join([stores_of[gone], *(stores_of[each] for each in others)])) as kv,
            connect_log(cluster.servers) as log,
            connect_log(servers[gone]) as reader,
            kv.watch("x") as watch,
            connect(",".join(stores_of[each] for each in others)) as writer,
        ):
            first = log.append(b"before").first_index
            tail = reader.tail(first, from_member="any")
            assert next(tail).body == b"before"
            log.change_members("remove", gone)
            # It knows, and nobody feeds it any more: it never hears of what follows.
            eventually(lambda: row_of(log, gone).role == "observer")
            eventually(lambda: not row_of(log, gone).leader_id)
            writer.put("x", b"1")
            log.append(b"behind")
            assert len(watch.batch(timeout_ms=30_000)) == 1
            found: list[bytes] = []
            ends_at = time.monotonic() + 30
            while b"behind" not in found and time.monotonic() < ends_at:
                found.append(next(tail).body)
            assert b"behind" in found
