"""Which servers a client takes for gone."""

from __future__ import annotations

from random import Random

from quorumlog.net.frame import FrameDecoder
from quorumlog.net.rpc.calls import Lane
from quorumlog.net.rpc.link_table import LinkTable
from quorumlog.net.rpc.timings import Timings

A = "a:1"


def dialled(links: LinkTable, lane: Lane, now_ms: float) -> None:
    assert links.open_or_dial(A, lane, now_ms) is None


def test_one_whose_connection_stands_is_not_down_whatever_becomes_of_another_lane() -> None:
    links = LinkTable(Random(0), Timings(), FrameDecoder)
    dialled(links, Lane.CONTROL, 0.0)
    control = links.get(A, Lane.CONTROL)
    assert control is not None
    links.greeted(control, 0.0)
    for now_ms in (1e6, 2e6):
        dialled(links, Lane.READ, now_ms)
        read = links.get(A, Lane.READ)
        assert read is not None
        links.remove(read, now_ms)
    assert not links.is_down(A)
    links.remove(control, 2e6)
    assert links.is_down(A)
