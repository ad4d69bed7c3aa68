"""The proxy does to real sockets what a network does, one direction at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from harness.proxy import CUT, LinkConditions, Network, both_ways
from quorumlog.config import parse_address
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Hello

TIMEOUT_S = 10.0


class Members:
    """Two listening sockets `a` and `b` with the proxy between them."""

    def __init__(self, stack: ExitStack) -> None:
        self._listeners = {
            name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in "ab"
        }
        for listener in self._listeners.values():
            listener.settimeout(TIMEOUT_S)
        addresses = {name: _address(s) for name, s in self._listeners.items()}
        self.network = stack.enter_context(Network(addresses))
        self._stack = stack

    def dial(self, from_id: str, to_id: str) -> socket.socket:
        address = parse_address(self.network.address(from_id, to_id))
        return self._kept(socket.create_connection(address, TIMEOUT_S))

    def accept(self, member_id: str) -> socket.socket:
        return self._kept(self._listeners[member_id].accept()[0])

    def stop_listening(self, member_id: str) -> None:
        self._listeners[member_id].close()

    def hears_nobody(self, member_id: str) -> bool:
        """Nothing has been dialled as far as its kernel knows."""
        self._listeners[member_id].setblocking(False)
        try:
            self._listeners[member_id].accept()
        except BlockingIOError:
            return True
        finally:
            self._listeners[member_id].settimeout(TIMEOUT_S)
        return False

    def _kept(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(TIMEOUT_S)
        return self._stack.enter_context(sock)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


@pytest.fixture
def members() -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(stack)


@contextmanager
def imposed(network: Network, directions: list[tuple[str, str]], what: LinkConditions) -> Iterator[None]:
    number = network.impose(directions, what)
    try:
        yield
    finally:
        network.lift(number)


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"the connection ended after {data!r}"
        data += piece
    return data


def is_silent(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(TIMEOUT_S)
    return False


def test_bytes_pass_both_ways_and_so_does_the_end(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    near.sendall(b"question")
    assert receive(far, 8) == b"question"
    far.sendall(b"answer")
    assert receive(near, 6) == b"answer"
    near.close()
    assert far.recv(1) == b""


def test_megabytes_sent_into_a_cut_arrive_whole_once_it_is_over(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    data = bytes(range(256)) * (1 << 16)
    with ThreadPoolExecutor(1) as pool:
        with imposed(members.network, [("a", "b")], CUT):
            sending = pool.submit(near.sendall, data)
            far.sendall(b"heard")
            assert receive(near, 5) == b"heard"
        assert receive(far, len(data)) == data
        sending.result()


def test_what_is_cut_one_way_still_passes_the_other_way_and_arrives_once_whole(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    with imposed(members.network, [("a", "b")], CUT):
        near.sendall(b"lost")
        # The answer passes after the question went in, so that silence is the proxy's doing.
        far.sendall(b"still heard")
        assert receive(near, 11) == b"still heard"
        assert is_silent(far)
    assert receive(far, 4) == b"lost"


def test_a_cut_holds_on_connections_that_the_other_side_dialled(members: Members) -> None:
    near, far = members.dial("b", "a"), members.accept("a")
    with imposed(members.network, [("a", "b")], CUT):
        far.sendall(b"lost")
        near.sendall(b"still heard")
        assert receive(far, 11) == b"still heard"
        assert is_silent(near)
    assert receive(near, 4) == b"lost"


def test_the_end_of_a_connection_is_not_told_across_a_cut(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    other, other_far = members.dial("b", "a"), members.accept("a")
    with imposed(members.network, [("a", "b")], CUT):
        near.close()
        other.sendall(b"later")
        assert receive(other_far, 5) == b"later"
        assert is_silent(far)
    assert far.recv(1) == b""


def test_nobody_is_reached_by_dialling_into_a_cut_of_either_direction(members: Members) -> None:
    for direction in both_ways([("a", "b")]):
        with imposed(members.network, [direction], CUT):
            near = members.dial("a", "b")
            near.sendall(b"hello")
            members.network.reset([])  # a turn of the proxy's loop has passed
            assert members.hears_nobody("b")
        assert receive(members.accept("b"), 5) == b"hello"


def test_overlapping_cuts_hold_until_the_last_is_over(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    with imposed(members.network, [("a", "b")], CUT):
        with imposed(members.network, both_ways([("a", "b")]), CUT):
            near.sendall(b"lost")
        far.sendall(b"heard")
        assert receive(near, 5) == b"heard"
        assert is_silent(far)
    assert receive(far, 4) == b"lost"


def test_a_reset_is_a_reset_to_both_sides_and_a_new_connection_stands(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    near.sendall(b"x")
    assert receive(far, 1) == b"x"
    members.network.reset([("b", "a")])
    for sock in (near, far):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    near, far = members.dial("a", "b"), members.accept("b")
    near.sendall(b"again")
    assert receive(far, 5) == b"again"


def test_delayed_bytes_arrive_in_order_and_not_before_their_time(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    with imposed(members.network, [("a", "b")], LinkConditions(delay_ms=30, loss=0.5)):
        sent_s = time.monotonic()
        for number in range(50):
            near.sendall(b"%03d" % number)
        assert receive(far, 150) == b"".join(b"%03d" % number for number in range(50))
        assert time.monotonic() - sent_s >= 0.03


def test_a_member_that_does_not_listen_is_told_to_who_dials_it(members: Members) -> None:
    members.stop_listening("b")
    with pytest.raises(ConnectionResetError):
        members.dial("a", "b").recv(1)


def test_a_thin_direction_takes_its_time_and_the_other_one_does_not(members: Members) -> None:
    near, far = members.dial("a", "b"), members.accept("b")
    data = bytes(range(256)) * 256
    with imposed(members.network, [("a", "b")], LinkConditions(bytes_per_second=10 * len(data))):
        began_s = time.monotonic()
        near.sendall(data)
        far.sendall(b"heard")
        assert receive(near, 5) == b"heard"
        assert receive(far, len(data)) == data
        assert time.monotonic() - began_s >= 0.099


def test_at_a_common_address_the_first_frame_says_who_has_dialled(members: Members) -> None:
    """Whatever comes in pieces: nobody is dialled before it is known."""
    address = parse_address(members.network.common_address("b"))

    def dial(hello: Hello) -> bytes:
        sock = members._kept(socket.create_connection(address, TIMEOUT_S))
        said = b"".join(map(bytes, encode_frame("g", hello)))
        sock.sendall(said[:10])
        assert members.hears_nobody("b")
        more = said[:10]  # of the next frame
        sock.sendall(said[10:] + more)
        return said + more

    with imposed(members.network, [("a", "b")], CUT):
        held = dial(Hello(role="control", member_id="a"))
        through = dial(Hello(role="client"))
        heard = members.accept("b")
        assert heard.recv(len(through), socket.MSG_WAITALL) == through
        assert members.hears_nobody("b")
    assert members.accept("b").recv(len(held), socket.MSG_WAITALL) == held
