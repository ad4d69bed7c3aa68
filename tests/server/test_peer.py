"""Which of the two connections a message takes, and who is let in while the members change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.config import GroupConfig, MemberAddress
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Replica
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.hello import DUPLICATE, REFUSED, WELCOME, Hello, HelloResponse
from quorumlog.net.peer_hello import Identity
from quorumlog.server.peers import peer_table
from quorumlog.server.peers.dialler import Dialler, NameLookup
from quorumlog.server.peers.peer import RemoteMember
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.server.peers.peer_table import MOST_INVITED, Admission, PeerAdmission, PeerTable

N1 = Replica("n1", "n1-directory")


def push(kind: PushType, number: int = 0) -> Envelope:
    message = PushEntryRequest(
        term=1, push=kind, committed_index=4, number=number, previous=EntryId(4, 1)
    )
    return Envelope(N1, message)


def test_a_commit_goes_with_the_heartbeats_and_one_that_asks_with_the_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, PushType, int]] = []

    def record(link: PeerLink, message: PushEntryRequest) -> bool:
        sent.append((link.role, message.push, message.number))
        return True

    async def send_three() -> None:
        nothing: Any = lambda *arguments: None  # noqa: E731
        address = MemberAddress("n1", "127.0.0.1", 1)
        loop = asyncio.get_running_loop()
        peer = RemoteMember(
            Dialler(LoopTurn(loop), NameLookup(loop)),
            "default",
            address,
            nothing,
            nothing,
            nothing,
            nothing,
        )
        peer.control.up = peer.data.up = HelloResponse(directory_id=N1.directory_id)
        peer.send(push(PushType.COMMIT))
        peer.send(push(PushType.COMMIT, number=7))
        peer.send(push(PushType.APPEND))

    monkeypatch.setattr(PeerLink, "send", record)
    asyncio.run(send_three())
    assert sent == [
        ("control", PushType.COMMIT, 0),
        ("data", PushType.COMMIT, 7),
        ("data", PushType.APPEND, 0),
    ]


def test_of_who_was_parted_from_nothing_is_kept() -> None:
    """A server that runs for years sees many come and go."""
    nothing: Any = lambda *arguments: None  # noqa: E731

    async def come_and_go() -> None:
        loop = asyncio.get_running_loop()
        dialler = Dialler(LoopTurn(loop), NameLookup(loop))
        hello: Any = lambda role, to: Hello(role=role, member_id="n0")  # noqa: E731
        table = PeerTable(
            "n0",
            lambda address: RemoteMember(dialler, "default", address, hello, nothing, nothing, nothing),
        )
        table.start()
        for port in (1, 2, 3):
            table.follow({"n1": f"127.0.0.1:{port}"})
        assert len(table._closing) == 2
        await asyncio.wait(tuple(table._closing))
        await asyncio.sleep(0)
        assert not table._closing
        table.close()
        await table.ended()

    asyncio.run(come_and_go())


@pytest.mark.parametrize(
    ("own_cluster", "their_cluster", "leader_id", "is_let_in"),
    [
        ("", "c", "", True),  # its directory was lost
        ("c", "c", "", True),  # it was away
        ("c", "c", "n9", True),
        ("c", "c", "n1", False),  # its leader says who is a member
        ("c", "d", "", False),
        ("", "", "", False),  # two that have not formed go by their lists
    ],
)
def test_a_member_that_the_own_list_does_not_name_is_heard_where_nobody_leads(
    own_cluster: str, their_cluster: str, leader_id: str, is_let_in: bool
) -> None:
    nothing: Any = lambda *arguments: None  # noqa: E731

    async def judge() -> Admission:
        loop = asyncio.get_running_loop()
        dialler = Dialler(LoopTurn(loop), NameLookup(loop))
        table = PeerTable(
            "n0",
            lambda address: RemoteMember(
                dialler, "default", address, nothing, nothing, nothing, nothing
            ),
        )
        table.follow({"n1": "127.0.0.1:1"})
        own = HelloResponse(
            member_id="n0", cluster_id=own_cluster, members="n0=127.0.0.1:2,n1=127.0.0.1:1"
        )
        members = (MemberAddress("n0", "127.0.0.1", 2), MemberAddress("n1", "127.0.0.1", 1))
        admission = PeerAdmission(
            GroupConfig("n0", members, store="memory"),
            table,
            lambda: own,
            lambda: (),
            lambda: True,
            lambda: leader_id,
            table.invite,
        )
        hello = Hello(
            role="control",
            member_id="n9",
            directory_id="d",
            to_member_id="n0",
            cluster_id=their_cluster,
            members="n0=127.0.0.1:2,n9=127.0.0.1:9",
        )
        verdict = admission.judge(hello, Connection(dialler.loop_turn, nothing, nothing, "n9"))
        assert ("n9" in table) is is_let_in
        if is_let_in:
            assert str(table["n9"].address) == "127.0.0.1:9"
        for number in range(200):
            table.invite(f"m{number}", "127.0.0.1:9")
        assert len(table._invited) == MOST_INVITED
        table.close()
        return verdict

    assert (asyncio.run(judge()).code == WELCOME) is is_let_in


def test_a_directory_that_votes_is_let_in_beside_another_one_of_its_name_and_goes_with_its_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody answers at the address of n1, as which one directory is connected and another one comes."""
    monkeypatch.setattr(peer_table, "STAYS_S", 0.0)
    nothing: Any = lambda *arguments: None  # noqa: E731
    first, second, third = (Replica("n1", name) for name in ("first", "second", "third"))

    def hello_of(replica: Replica, listens_on: str = "127.0.0.1:2") -> Hello:
        return Hello(
            role="control",
            member_id="n1",
            directory_id=replica.directory_id,
            to_member_id="n0",
            cluster_id="c",
            segment_bytes=1,
            durability="sync",
            run_id=replica.directory_id,
            listens_on=listens_on,
        )

    async def judged() -> None:
        loop = asyncio.get_running_loop()
        dialler = Dialler(LoopTurn(loop), NameLookup(loop))
        table = PeerTable(
            "n0",
            lambda address: RemoteMember(
                dialler, "default", address, nothing, nothing, nothing, nothing
            ),
        )
        voters = {first, second}
        table.follow({"n1": "127.0.0.1:1"}, voters)
        members = (MemberAddress("n0", "127.0.0.1", 1), MemberAddress("n1", "127.0.0.1", 1))
        own = HelloResponse(member_id="n0", cluster_id="c", segment_bytes=1, durability="sync")
        config = GroupConfig("n0", members, store="memory")
        admission = PeerAdmission(
            config,
            table,
            lambda: own,
            lambda: voters,
            lambda: True,
            lambda: "",
            table.invite,
        )

        def verdict_on(replica: Replica, **says: str) -> Admission:
            return admission.judge(hello_of(replica, **says), connection)

        connection = Connection(dialler.loop_turn, nothing, nothing, "n1")
        table["n1"].welcomed(hello_of(first), connection)
        assert verdict_on(second) == Admission(WELCOME, beside=True)
        assert verdict_on(third).code != WELCOME, "it does not vote"
        for nowhere in ("", "nonsense"):
            verdict = verdict_on(second, listens_on=nowhere)
            assert verdict.code != WELCOME, "nobody knows where it would be dialled"
        beside = table.admit(hello_of(second), connection, beside=True)
        assert str(beside.address) == "127.0.0.1:2"
        assert table.leading_to(second) is beside
        assert table.leading_to(first) is table["n1"] is not beside
        assert table.everybody() == [table["n1"], beside]
        table.follow({"n1": "127.0.0.1:1"}, {first})
        assert table.leading_to(second) is table["n1"]
        # Where it listens another directory answers by now, or it answers where its name is.
        for peer_of, answers in ((second, first), (second, second)):
            table.follow({"n1": "127.0.0.1:1"}, voters)
            beside = table.admit(hello_of(peer_of), connection, beside=True)
            assert beside.on_answered(beside, Identity("second", ""))
            where = beside if answers == first else table["n1"]
            assert where.on_answered(where, Identity(answers.directory_id, "")) is (where is not beside)
            assert table.everybody() == [table["n1"]]

    asyncio.run(judged())


def test_who_was_removed_until_one_member_was_left_is_told_so() -> None:
    """Its list still names the others."""
    nothing: Any = lambda *arguments: None  # noqa: E731

    async def judged() -> Admission:
        loop = asyncio.get_running_loop()
        members = (MemberAddress("n0", "127.0.0.1", 1), MemberAddress("n1", "127.0.0.1", 7))
        own = HelloResponse(member_id="n0", cluster_id="c", members="n0=127.0.0.1:1,n1=127.0.0.1:7")
        config = GroupConfig("n0", members, store="memory")
        admission = PeerAdmission(
            config, {}, lambda: own, lambda: (), lambda: True, lambda: "n0", nothing
        )
        hello = Hello(
            role="control", member_id="n1", directory_id="d", to_member_id="n0", cluster_id="c"
        )
        return admission.judge(hello, Connection(LoopTurn(loop), nothing, nothing, "n1"))

    verdict = asyncio.run(judged())
    assert verdict.code == REFUSED
    assert "n1 is not among the members of member n0" in verdict.reason


def test_the_member_is_who_answers_at_its_address() -> None:
    nothing: Any = lambda *arguments: None  # noqa: E731

    async def judged() -> None:
        loop = asyncio.get_running_loop()
        dialler = Dialler(LoopTurn(loop), NameLookup(loop))
        peer = RemoteMember(
            dialler,
            "default",
            MemberAddress("n1", "127.0.0.1", 7),
            nothing,
            nothing,
            nothing,
            nothing,
        )
        members = (MemberAddress("n0", "127.0.0.1", 1), peer.address)
        own = HelloResponse(member_id="n0", cluster_id="c", segment_bytes=1, durability="sync")
        config = GroupConfig("n0", members, store="memory")
        admission = PeerAdmission(
            config, {"n1": peer}, lambda: own, lambda: (), lambda: True, lambda: "", nothing
        )
        connection = Connection(dialler.loop_turn, nothing, nothing, "n1")

        def code_of(directory_id: str, run_id: str, listens_on: str) -> int:
            hello = Hello(
                role="control",
                member_id="n1",
                directory_id=directory_id,
                to_member_id="n0",
                cluster_id="c",
                segment_bytes=1,
                durability="sync",
                run_id=run_id,
                listens_on=listens_on,
            )
            return admission.judge(hello, connection).code

        assert code_of("d", "1", "127.0.0.1:9") == WELCOME
        peer.control.up = HelloResponse(directory_id="d", run_id="1")
        assert code_of("d", "1", "127.0.0.1:9") == WELCOME
        assert code_of("d", "2", "127.0.0.1:7") == DUPLICATE, "whatever it says of where it listens"
        assert code_of("d", "2", "127.0.0.1:9") == DUPLICATE, "a copy of the directory"
        assert code_of("e", "2", "127.0.0.1:7") == DUPLICATE

    asyncio.run(judged())
