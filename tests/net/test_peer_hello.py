"""Which members may speak to each other, by what their first frames say."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.config import MemberAddress
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.peer_hello import member_list_of, refusal_of

LIST = member_list_of(MemberAddress(f"n{i}", "127.0.0.1", 20911 + i) for i in (2, 0, 1))


def refusal(own: dict[str, Any] | None = None, **theirs: Any) -> str:
    common: dict[str, Any] = {"members": LIST, "segment_bytes": 1024, "durability": "sync"}
    hello = Hello(role="data", **{**common, "member_id": "n1", "to_member_id": "n0", **theirs})
    return refusal_of(hello, HelloResponse(**{**common, "member_id": "n0", **(own or {})}), "g")


def test_members_that_are_configured_alike_may_speak() -> None:
    assert LIST == "n0=127.0.0.1:20911,n1=127.0.0.1:20912,n2=127.0.0.1:20913"
    assert refusal() == ""
    assert refusal(cluster_id="a") == ""
    assert refusal(own={"cluster_id": "a"}) == ""
    assert refusal(members=LIST.replace("20912", "30912")) == ""


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"to_member_id": "n2"}, "this is member n0 of group g, not n2"),
        ({"member_id": "n9"}, "n9 is not among the members"),
        ({"member_id": "n0"}, "n0 is not among the members"),
        ({"segment_bytes": 512}, "segment_bytes is 512 on n1 and 1024 on member n0 of group g"),
        ({"members": "n0=127.0.0.1:20911,n1=127.0.0.1:20912"}, "lists the members"),
    ],
)
def test_what_differs_is_named(theirs: dict[str, Any], named: str) -> None:
    assert named in refusal(**theirs)


def test_clusters_that_differ_are_both_named() -> None:
    text = refusal(own={"cluster_id": "aaaa"}, cluster_id="bbbb")
    assert "aaaa" in text
    assert "bbbb" in text


@pytest.mark.parametrize(
    ("theirs", "ours", "named"),
    [
        ("async", "sync", ("flush = async", "flush = sync")),
        ("sync", "async", ("flush = async", "flush = sync")),
        ("memory", "async", ("store = memory", "flush = async")),
        ("memory", "sync", ()),
        ("async", "async", ()),
        ("memory", "memory", ()),
        ("", "async", ()),
    ],
)
def test_who_may_forget_what_it_acknowledged_goes_only_with_its_like(
    theirs: str, ours: str, named: tuple[str, ...]
) -> None:
    """A member in memory forgets its directory id too, so nobody counts on it afterwards. A release
    that does not name its mode is let in, as it always was."""
    text = refusal(own={"durability": ours}, durability=theirs)
    assert bool(text) == bool(named)
    assert all(option in text for option in (*named, *(("--flush",) if named else ())))


def test_lists_are_compared_until_a_group_has_formed() -> None:
    """Then its log says who is a member, and who is to become one may be let in."""
    longer = "n0=a:1,n1=b:1,n2=c:1,n3=d:1"
    assert "lists the members" in refusal(members=longer)
    assert not refusal(own={"cluster_id": "c"}, members=longer)
    assert not refusal(own={"cluster_id": "c"}, members=longer, cluster_id="c")
