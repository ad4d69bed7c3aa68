"""The client's decisions in virtual time: random runs against model servers, and single rules."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_protocol import ClientProtocol, view_of
from quorumlog.client.protocol.client_requests import Request, Stream, receipt_of
from quorumlog.errors import (
    BadRequest,
    LedgerError,
    NotAuthenticated,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    PendingFull,
    Refused,
    RequestTimeout,
    Unreachable,
)
from quorumlog.log_state.users import User, Users
from quorumlog.net.access import Access
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import ChallengeResponse, Hello, HelloResponse
from quorumlog.net.rpc.calls import LEADER, Link
from quorumlog.net.rpc.view import LeaderView
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    MemberInfo,
    ReadRequest,
    StatusRequest,
    StatusResponse,
)

ADDRESSES = ["s0:1", "s1:1", "s2:1"]


class Wire:
    """One connection: what is on its way in both directions."""

    def __init__(self, connection_id: str) -> None:
        self.connection_id = connection_id
        self.decoder = FrameDecoder()
        self.to_server: list[Frame] = []
        self.to_client: list[Frame] = []
        self.expected: dict[int, int] = {}


class Host:
    """Model servers that share one log; every fault is drawn from one seed."""

    def __init__(self, seed: int, producer: str | None = None) -> None:
        self.random = random.Random(seed)
        self.protocol = ClientProtocol(
            ADDRESSES, group="g", random=random.Random(seed), producer=producer
        )
        self.now = 0.0
        self.wires: dict[Link, Wire] = {}
        self.log: list[bytes] = []
        self.leader = 0
        self.term = 1
        self.faults = True
        self.down: set[str] = set()
        self.sent: list[Request] = []
        self.streams: list[Stream] = []
        self.done: list[Request] = []

    # ---------------------------------------------------------------- the client's side

    def submit(self, stream: Stream | None = None) -> Request:
        body = b"%d/%d" % (stream.number if stream else 0, len(self.sent))
        request = Request(
            AppendRequest(),
            LEADER,
            submitted_ms=self.now,
            deadline_ms=self.now + 5000,
            batch=EntryBatch.from_bodies([body]),
            stream=stream,
        )
        self.sent.append(request)
        self.protocol.submit(request, self.now)
        self.carry_out()
        return request

    def carry_out(self) -> None:
        work = self.protocol.take_work()
        self.done += work.completed
        for link in work.close:
            self.lose(link)
        for link in work.write:
            wire = self.wires.get(link)
            if wire is not None:
                wire.to_server += wire.decoder.receive_data(b"".join(link.outbox))
                link.outbox.clear()
        for link in work.dial:
            if link.address in self.down or (self.faults and self.random.random() < 0.1):
                self.protocol.link_lost(link, "connection refused", self.now)
            else:
                self.wires[link] = Wire(f"c{self.random.randrange(10**9)}")
                self.protocol.link_connected(link, self.now)
        if work.dial or work.write:
            self.carry_out()

    def lose(self, link: Link) -> None:
        """The client sees the end; the server may still carry out some of what it has received."""
        wire = self.wires.pop(link, None)
        if wire is not None:
            for frame in wire.to_server[: self.random.randrange(len(wire.to_server) + 1)]:
                self.serve(link, wire, frame)
            self.protocol.link_lost(link, "reset", self.now)

    def deliver_answer(self, link: Link, wire: Wire) -> None:
        if wire.to_client:
            self.protocol.frames_received(link, [wire.to_client.pop(0)], self.now)
            self.carry_out()

    # ---------------------------------------------------------------- the servers' side

    def serve(self, link: Link, wire: Wire, frame: Frame) -> None:
        message, batch = frame.message, frame.batch
        number = ADDRESSES.index(link.address)
        answer: ClientMessage
        if isinstance(message, Hello):
            answer = HelloResponse(member_id=f"n{number}", connection_id=wire.connection_id)
        elif isinstance(message, StatusRequest):
            answer = self.status(message, number)
        else:
            assert isinstance(message, AppendRequest), message
            assert batch is not None
            answer = self.append(wire, message, batch, number)
        wire.to_client.append(Frame("g", answer, None))  # type: ignore[arg-type]

    def status(self, message: StatusRequest, number: int) -> StatusResponse:
        leads = number == self.leader
        knows = not self.faults or self.random.random() < 0.7
        return StatusResponse(
            request_id=message.request_id,
            group="g",
            id=f"n{number}",
            address=ADDRESSES[number],
            directory_id="",
            cluster_id="",
            role="leader" if leads else "follower",
            term=self.term,
            leader_id=f"n{self.leader}" if leads or knows else "",
            leader_address=ADDRESSES[self.leader] if leads or knows else "",
            ledger_begin_index=0,
            ledger_end_index=0,
            durable_index=0,
            committed_index=0,
            flush="sync",
            members=tuple(MemberInfo(id=f"n{i}", address=a) for i, a in enumerate(ADDRESSES)),
        )

    def append(
        self, wire: Wire, message: AppendRequest, batch: EntryBatch, number: int
    ) -> ClientMessage:
        error: LedgerError | None = None
        if self.faults and self.random.random() < 0.05:
            wire.expected.pop(message.stream, None)  # forgotten, for want of room
        expected = wire.expected.get(message.stream, 1)
        if message.stream and message.number != expected:
            error = OutOfSequence(f"{message.number} came, {expected} is next")
        elif number != self.leader:
            hint = self.random.choice([True, False])
            error = NotLeader(
                "not me",
                leader_id=f"n{self.leader}" if hint else None,
                leader_address=ADDRESSES[self.leader] if hint else None,
            )
        elif self.faults and self.random.random() < 0.15:
            error = PendingFull("full", retry_after_ms=self.random.choice([0, 3, 40]))
        if error is not None:
            return error_response(message.request_id, error)
        wire.expected[message.stream] = expected + 1
        if self.faults and self.random.random() < 0.05:
            if self.random.random() < 0.5:
                self.log.append(bytes(batch.body(0)))
            return error_response(message.request_id, OutcomeUnknown("leadership was lost"))
        self.log.append(bytes(batch.body(0)))
        return AppendResponse(
            request_id=message.request_id,
            term=self.term,
            first_index=len(self.log) - 1,
            count=1,
            durability="sync",
        )

    # ---------------------------------------------------------------- time and chance

    def step(self) -> None:
        chance = self.random.random()
        links = list(self.wires)
        link = self.random.choice(links) if links else None
        if chance < 0.25:
            if self.random.random() < 0.5:
                self.submit()
            else:
                alive = [s for s in self.streams if s.failure is None]
                if not alive or self.random.random() < 0.1:
                    alive = [self.protocol.new_stream()]
                    self.streams += alive
                self.submit(self.random.choice(alive))
        elif chance < 0.55 and link is not None:
            wire = self.wires[link]
            if wire.to_server:
                self.serve(link, wire, wire.to_server.pop(0))
        elif chance < 0.85 and link is not None:
            self.deliver_answer(link, self.wires[link])
        elif chance < 0.88 and link is not None:
            self.lose(link)
            self.carry_out()
        elif chance < 0.90:
            self.term += 1
            self.leader = self.random.randrange(3)
        else:
            self.pass_time(self.random.choice([1.0, 5.0, 30.0, 300.0]))

    def pass_time(self, milliseconds: float) -> None:
        self.now += milliseconds
        self.protocol.advance(self.now)
        self.carry_out()

    def settle(self) -> None:
        """No more faults: everything must come to an end, by answers and not by deadlines."""
        self.faults = False
        began = self.now
        while len(self.done) < len(self.sent):
            for link, wire in list(self.wires.items()):
                while wire.to_server:
                    self.serve(link, wire, wire.to_server.pop(0))
                while wire.to_client and link in self.wires:
                    self.deliver_answer(link, wire)
            self.pass_time(10.0)
            assert self.now - began < 4000, "the client does not come to rest"


def body_of(request: Request) -> bytes:
    assert request.batch is not None
    return bytes(request.batch.body(0))


def check(host: Host) -> None:
    assert len(host.done) == len(set(host.done)) == len(host.sent)
    for request in host.sent:
        times = host.log.count(body_of(request))
        if request.error is None:
            receipt = receipt_of(request)
            assert host.log[receipt.first_index] == body_of(request)
            assert times == 1
        elif isinstance(request.error, OutcomeUnknown):
            assert times <= 1, "an unknown append was sent again"
        else:
            assert isinstance(request.error, Refused), request.error
            assert times == 0, "a refused append was written"
    for stream in host.streams:
        own = [request for request in host.sent if request.stream is stream]
        written = [body for body in host.log if body.startswith(b"%d/" % stream.number)]
        assert written == [body_of(r) for r in own if body_of(r) in written], "order was lost"
        certain = [body_of(r) in host.log for r in own if not isinstance(r.error, OutcomeUnknown)]
        assert certain == sorted(certain, reverse=True), "something was written behind a gap"


@pytest.mark.parametrize("seed", range(150))
def test_random_runs(seed: int) -> None:
    host = Host(seed)
    for _ in range(400):
        host.step()
    host.settle()
    check(host)


def test_the_same_seed_gives_the_same_run() -> None:
    logs = []
    for _ in range(2):
        host = Host(5)
        for _ in range(300):
            host.step()
        logs.append((host.log, [type(r.error) for r in host.sent], host.now))
    assert logs[0] == logs[1]


def test_the_random_runs_meet_every_outcome() -> None:
    """Guards the model: a run without unknown outcomes or resends would prove nothing."""
    outcomes: set[str] = set()
    resent = 0
    for seed in range(20):
        host = Host(seed)
        for _ in range(400):
            host.step()
        host.settle()
        outcomes |= {type(request.error).__name__ for request in host.sent}
        resent += sum(request.attempts > 0 and request.error is None for request in host.sent)
    assert {"NoneType", "OutcomeUnknown", "OutOfSequence"} <= outcomes
    assert resent > 50


# -------------------------------------------------------------------- single rules


def run(host: Host, milliseconds: float, *, silent: str = "") -> None:
    """Let everybody but `silent` answer at once for so long."""
    host.faults = False
    stop = host.now + milliseconds
    while host.now < stop:
        for link, wire in list(host.wires.items()):
            while wire.to_server and link.address != silent:
                host.serve(link, wire, wire.to_server.pop(0))
            while wire.to_client and link in host.wires and link.address != silent:
                host.deliver_answer(link, wire)
        host.pass_time(5.0)


def led_by(number: int) -> Host:
    host = Host(1)
    host.leader = number
    host.submit()
    run(host, 300)
    assert len(host.done) == 1
    return host


def test_a_lost_leader_is_replaced_within_two_rounds_of_asking() -> None:
    host = led_by(0)
    host.down.add(ADDRESSES[0])
    for link in [link for link in host.wires if link.address == ADDRESSES[0]]:
        host.lose(link)
    host.carry_out()
    host.leader, host.term = 2, 2
    request = host.submit()
    run(host, 100)
    assert receipt_of(request).term == 2


def test_silence_alone_never_takes_an_append_from_the_leader() -> None:
    host = led_by(0)
    request = host.submit()
    run(host, 4000, silent=ADDRESSES[0])
    assert not request.is_done
    run(host, 100)
    assert receipt_of(request).term == 1
    assert host.log.count(body_of(request)) == 1


def test_a_silent_leader_that_was_replaced_is_left_with_an_unknown_outcome() -> None:
    host = led_by(0)
    request = host.submit()
    run(host, 200, silent=ADDRESSES[0])
    assert not request.is_done
    host.leader, host.term = 1, 2
    run(host, 200, silent=ADDRESSES[0])
    assert isinstance(request.error, OutcomeUnknown)
    after = host.submit()
    run(host, 50, silent=ADDRESSES[0])
    assert receipt_of(after).term == 2


def test_a_report_of_an_older_term_is_not_believed() -> None:
    host = led_by(0)
    host.leader, host.term = 1, 5
    host.submit()
    run(host, 100)
    assert host.protocol.view.leader is not None
    assert host.protocol.view.leader.address == ADDRESSES[1]
    host.leader, host.term = 0, 4
    stale = host.status(StatusRequest(), 2)
    host.protocol.view.learn(ADDRESSES[2], view_of(stale), host.now)
    assert host.protocol.view.leader.address == ADDRESSES[1]


def test_two_members_that_each_name_the_other_are_not_believed_for_ever() -> None:
    """Both are connected. One follows a directory at another place than its member's, and where that
    member is there is one that has not heard of an election."""
    host = led_by(0)
    for address in ADDRESSES:
        host.protocol.view.leader = LeaderView(address, 1)
        host.submit()
        run(host, 100)
    host.leader, host.term = 2, 2
    told = host.append

    def append(wire: Wire, message: AppendRequest, batch: EntryBatch, number: int) -> ClientMessage:
        if number == host.leader:
            return told(wire, message, batch, number)
        other = 1 - number
        refusal = NotLeader("not me", leader_id=f"n{other}", leader_address=ADDRESSES[other])
        return error_response(message.request_id, refusal)

    host.append = append  # type: ignore[method-assign]
    host.protocol.view.leader = LeaderView(ADDRESSES[0], 1)
    request = host.submit()
    run(host, 1000)
    assert receipt_of(request).term == 2


def test_redials_of_a_dead_server_are_bounded() -> None:
    host = Host(3)
    host.down.update(ADDRESSES)
    request = host.submit()
    dials = 0
    while not request.is_done:
        host.now = max(host.now + 1.0, host.protocol.next_wakeup_ms())
        host.protocol.advance(host.now)
        dials += len(host.protocol._links.to_dial)
        host.carry_out()
    assert isinstance(request.error, Unreachable)
    # 5 s at a pause of 125 to 250 ms for each of three servers, and the first, faster ones.
    assert 60 <= dials <= 3 * 50


def test_what_others_met_long_before_is_told_with_its_age() -> None:
    host = Host(1)
    host.down.update(ADDRESSES)
    first = host.submit()
    host.pass_time(5_000.0)
    assert "before" not in str(first.error)
    host.now += 60_000.0
    late = Request(ReadRequest(first_index=0), LEADER, submitted_ms=host.now, deadline_ms=host.now)
    host.protocol.submit(late, host.now)
    host.protocol.advance(host.now)
    assert isinstance(late.error, Unreachable)
    for address in ADDRESSES:
        assert f"{address} (no answer yet; 65.0 s before: connection refused)" in str(late.error)
    host.carry_out()


def test_an_idle_client_needs_no_wake_up() -> None:
    host = led_by(1)
    assert host.protocol.next_wakeup_ms() == float("inf")


def test_what_cannot_be_encoded_fails_alone() -> None:
    host = Host(1)
    host.faults = False
    nonsense: Any = object()
    request = Request(
        ReadRequest(first_index=nonsense),
        LEADER,
        submitted_ms=0.0,
        deadline_ms=5000.0,
    )
    host.protocol.submit(request, host.now)
    other = host.submit()
    run(host, 1000)
    assert isinstance(request.error, BadRequest)
    assert receipt_of(other).count == 1


def test_a_read_is_late_once_nothing_has_come_for_its_time_out() -> None:
    host = led_by(0)
    read = Request(
        ReadRequest(first_index=0),
        LEADER,
        submitted_ms=host.now,
        deadline_ms=host.now + 2000,
        counts_progress=True,
    )
    host.protocol.submit(read, host.now)
    host.carry_out()
    for link, wire in list(host.wires.items()):
        if wire.to_server and isinstance(wire.to_server[0].message, Hello):
            host.serve(link, wire, wire.to_server.pop(0))
            host.deliver_answer(link, wire)
    [link] = [link for link in host.wires if read in link.pending.values()]
    for _ in range(100):
        host.protocol.bytes_received(link, host.now)  # of an answer in front of it
        host.pass_time(100.0)
    assert not read.is_done
    host.pass_time(2000.0)
    assert isinstance(read.error, RequestTimeout)


def test_a_read_that_a_living_server_does_not_answer_is_late_all_the_same() -> None:
    """Its disk hangs, and it says that it lives whenever it is asked."""
    host = led_by(0)
    host.faults = False
    read = Request(
        ReadRequest(first_index=0),
        LEADER,
        submitted_ms=host.now,
        deadline_ms=host.now + 2000,
        counts_progress=True,
    )
    host.protocol.submit(read, host.now)
    host.carry_out()
    for _ in range(25):
        for link, wire in list(host.wires.items()):
            asked, wire.to_server = wire.to_server, []
            for frame in asked:
                if not isinstance(frame.message, ReadRequest):
                    host.serve(link, wire, frame)
                    host.deliver_answer(link, wire)
        host.pass_time(100.0)
    assert isinstance(read.error, RequestTimeout)


class Asking(Host):
    """Its servers have users."""

    users = Users(True, b"s" * 32, (User("alice", (), verifier_for("sesame")),))
    impostor = False
    """It lets in whoever answers once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asking: dict[Link, Any] = {}
        self.proved: list[str] = []

    def serve(self, link: Link, wire: Wire, frame: Frame) -> None:
        said = frame.message
        try:
            if isinstance(said, Hello):
                shown = SimpleNamespace(user="", peer_name="here:1", certificate=None)
                access = Access()
                access.learn(self.users)
                self.asking[link] = access.greet(shown, said, None), shown  # type: ignore[arg-type]
                challenge = next(self.asking[link][0])
            elif isinstance(said, ChallengeResponse) and not self.impostor:
                challenge = self.asking[link][0].send(said.data)
            elif isinstance(said, ChallengeResponse):
                raise StopIteration
            else:
                super().serve(link, wire, frame)
                return
        except StopIteration:
            self.proved.append(self.asking[link][1].user)
            super().serve(link, wire, Frame("g", Hello(role="client"), None))
        except LedgerError as refusal:
            wire.to_client.append(Frame("g", error_response(0, refusal), None))
        else:
            wire.to_client.append(Frame("g", challenge, None))


def asking(user: ClientUser | None) -> Asking:
    host = Asking(1)
    host.faults = False
    host.protocol = ClientProtocol(ADDRESSES, group="g", random=host.random)
    host.protocol.user = user
    return host


def test_a_client_proves_who_it_is_before_it_is_let_in() -> None:
    host = asking(ClientUser("alice", "sesame"))
    request = host.submit()
    run(host, 1000)
    assert receipt_of(request).count == 1
    assert set(host.proved) == {"alice"}


def test_a_wrong_password_and_a_name_that_nobody_has_are_refused_alike() -> None:
    told = []
    for user in (ClientUser("alice", "wrong"), ClientUser("mallory", "sesame")):
        host = asking(user)
        request = host.submit()
        run(host, 6000)
        assert isinstance(request.error, NotAuthenticated)
        assert host.proved == []
        told.append(str(request.error))
    assert told[0] == told[1]
    assert "sesame" not in told[0]


def test_a_server_that_does_not_know_the_user_is_not_believed() -> None:
    host = asking(ClientUser("alice", "sesame"))
    host.impostor = True
    request = host.submit()
    run(host, 6000)
    assert isinstance(request.error, NotAuthenticated)
    assert "does not prove" in str(request.error)


def test_a_client_without_a_user_is_let_in_as_nobody() -> None:
    host = asking(None)
    host.submit()
    run(host, 1000)
    assert set(host.proved) == {""}
