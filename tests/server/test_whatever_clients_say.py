"""Whatever a client says, in whatever values the wire can carry: a request is answered once and in its
own kind, or the connection closes; the member lives, and serves the next one."""

from __future__ import annotations

import socket
import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import closing
from enum import Enum
from typing import Annotated, Any, get_args, get_origin
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import LOG, client_hello
from quorumlog.server.clients.requests import SERVED
from quorumlog.stray_log import StrayLog
from quorumlog.wire.client_messages import (
    RESPONSE_OF,
    AnyClientRequest,
    AppendRequest,
    ReadRequest,
    StatusRequest,
)
from tests.fuzz.ports import control_frame

LAST_ID = 1 << 40
EDGES = (0, 1, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


def test_there_is_a_way_for_each_kind_of_request() -> None:
    assert {AppendRequest, ReadRequest, StatusRequest} | set(SERVED) == set(RESPONSE_OF)
    assert set(get_args(AnyClientRequest)) == set(RESPONSE_OF)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may have on the wire, as MessagePack says it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return values(parts[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, parts))
    if origin in (list, tuple):
        if origin is tuple and parts[-1] is not ...:
            return st.tuples(*map(values, parts))
        return st.lists(values(parts[0]), max_size=3)
    if issubclass(kind, msgspec.Struct):
        return fields_of(kind)
    if issubclass(kind, Enum):
        return st.sampled_from([each.value for each in kind])
    if issubclass(kind, tuple):  # a NamedTuple
        return st.tuples(*map(values, typing.get_type_hints(kind).values()))
    return {
        int: st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1)),
        str: st.one_of(st.sampled_from(("", "n0", "add", "127.0.0.1:1")), st.text(max_size=300)),
        bytes: st.binary(max_size=300),
        bool: st.booleans(),
        float: st.floats(),
        type(None): st.none(),
    }[kind]


def fields_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[list[Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    tag = kind.__struct_config__.tag
    head = [] if tag is None else [st.just(tag)]
    return st.tuples(*head, *(values(hints[name]) for name in kind.__struct_fields__)).map(list)


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=2)),
    max_leaves=6,
)
ENTRIES = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.binary(max_size=50).map(lambda body: bytes(EntryBatch.from_bodies([body]).buffer)),
)
"""One entry, and bytes that are none."""
KINDS = sorted(RESPONSE_OF, key=lambda kind: kind.__name__)
REQUESTS = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(fields_of(kind), ENTRIES))


STUMBLED: list[str] = []
"""Reasons for which a connection was closed that are no reasons."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    def closing(strays: StrayLog, whose: str, violation: object) -> None:
        if "cannot be processed" in str(violation):
            STUMBLED.append(str(violation))

    with patch.object(StrayLog, "closing", closing), LocalCluster(members=1) as made:
        yield made


def answers(cluster: LocalCluster, said: Sequence[bytes]) -> tuple[list[Any], bool]:
    """All that came until an answer to what was asked last; True: the connection was closed instead."""
    host, _, port = cluster.servers.rpartition(":")
    decoder, came = FrameDecoder(), []
    hello, last = (
        b"".join(encode_frame(DEFAULT_GROUP, message))
        for message in (client_hello(LOG), StatusRequest(request_id=LAST_ID))
    )
    with closing(socket.create_connection((host, int(port)), timeout=30)) as connection:
        try:
            connection.sendall(b"".join((hello, *said, last)))
            while data := connection.recv(1 << 16):
                for frame in decoder.receive_data(data):
                    if frame.message.request_id == LAST_ID:
                        return came, False
                    came.append(frame.message)
        except ConnectionError:
            pass
    return came, True


def check_alive(cluster: LocalCluster) -> None:
    assert cluster.running == ("n0",)
    assert not STUMBLED
    with connect(cluster.servers) as log:
        index = log.append(b"after all that").first_index
        assert log.get(index).body == b"after all that"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_request_is_answered_once_in_its_own_kind(
    cluster: LocalCluster, kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    """Or not yet: what waits for an entry, or for a majority."""
    requests = data.draw(st.lists(st.tuples(fields_of(kind), ENTRIES), min_size=1, max_size=4))
    said = []
    for number, (fields, entries) in enumerate(requests, 1):
        fields[1] = number
        said.append(control_frame(DEFAULT_GROUP, fields, entries))
    came, is_closed = answers(cluster, said)
    assert is_closed or came
    assert all(isinstance(each, (RESPONSE_OF[kind], ErrorResponse)) for each in came[1:]), came
    assert len({each.request_id for each in came[1:]}) == len(came[1:])
    check_alive(cluster)


@settings(max_examples=200, deadline=None)
@given(requests=st.lists(st.tuples(REQUESTS, st.integers(0, 12), ANYTHING), min_size=1, max_size=4))
def test_a_field_of_another_type_ends_one_connection_at_most(
    cluster: LocalCluster, requests: Any
) -> None:
    said = []
    for (fields, entries), at, other in requests:
        fields[at % len(fields)] = other
        said.append(control_frame(DEFAULT_GROUP, fields, entries))
    answers(cluster, said)
    check_alive(cluster)


@settings(max_examples=200, deadline=None)
@given(group=ANYTHING, said=ANYTHING, behind=st.binary(max_size=100))
def test_what_is_no_request_ends_no_more_than_a_connection(
    cluster: LocalCluster, group: Any, said: Any, behind: bytes
) -> None:
    answers(cluster, [control_frame(group, said, behind)])
    answers(cluster, [behind])
    check_alive(cluster)
