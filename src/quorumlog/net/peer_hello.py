"""The check of a peer's first frame: may the two members connect?"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from quorumlog.config import MemberAddress
from quorumlog.entry import Durability
from quorumlog.net.hello import Hello, HelloResponse


def member_list_of(members: Iterable[MemberAddress]) -> str:
    """As it travels: `n0=host:port,...`, sorted by id."""
    return ",".join(f"{m.member_id}={m}" for m in sorted(members, key=lambda m: m.member_id))


class Identity(NamedTuple):
    """The identity of a member: one run of one process, on one directory."""

    directory_id: str
    run_id: str
    """Empty in a release that does not say it: there, every run of a directory is one."""


def identity_of(hello: Hello | HelloResponse | Identity) -> Identity:
    return Identity(hello.directory_id, hello.run_id)


def ids_of(member_list: str) -> list[str]:
    return [item.partition("=")[0] for item in member_list.split(",")]


def differing_addresses(theirs: str, ours: str) -> bool:
    """Do two lists place a member that both of them name elsewhere?"""
    lists = (dict(item.split("=", 1) for item in each.split(",")) for each in (theirs, ours))
    one, other = lists
    return any(other.get(member_id, address) != address for member_id, address in one.items())


def refusal_of(hello: Hello, own: HelloResponse, group: str, known_ids: Collection[str] = ()) -> str:
    """Why the sender of `hello` is refused by the member with `own`; empty: it is not. `known_ids`: of
    members by the log, present or coming; otherwise the configured list counts."""
    me = f"member {own.member_id} of group {group}"
    if hello.to_member_id != own.member_id:
        return f"this is {me}, not {hello.to_member_id}: correct its address in --members"
    if hello.member_id == own.member_id or hello.member_id not in (known_ids or ids_of(own.members)):
        named = ", ".join(sorted({own.member_id, *known_ids})) if known_ids else own.members
        how = f"; `quorumlog member add {hello.member_id}` makes it one" if own.cluster_id else ""
        return f"{hello.member_id} is not among the members of {me}: {named}{how}"
    if hello.segment_bytes != own.segment_bytes:
        return (
            f"segment_bytes is {hello.segment_bytes} on {hello.member_id} and {own.segment_bytes} on"
            f" {me}; make them equal"
        )
    modes = (hello.durability, own.durability)
    if all(modes) and modes.count(Durability.ASYNC) == 1:
        # A directory in `async` mode may forget what it acknowledged and still vote. Its peers obey when
        # a later leader cuts what was committed, and one in another mode never does.
        theirs, ours = map(_option_of, modes)
        return (
            f"{hello.member_id} has {theirs}, {me} has {ours}:"
            " give all members the same --flush; to change it, stop all of them before the first is"
            " started again"
        )
    if hello.cluster_id and own.cluster_id and hello.cluster_id != own.cluster_id:
        return (
            f"{hello.member_id} belongs to cluster {hello.cluster_id}, {me} to {own.cluster_id}:"
            " one of the data directories is of another cluster"
        )
    if not hello.cluster_id and not own.cluster_id and ids_of(hello.members) != ids_of(own.members):
        # Once the group has formed its log says who is a member.
        return f"{hello.member_id} lists the members {hello.members}, {me} lists {own.members}"
    return ""


def _option_of(durability: str) -> str:
    return "store = memory" if durability == Durability.MEMORY else f"flush = {durability}"
