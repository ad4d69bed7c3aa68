"""Who is asked, and what becomes of a request, as a broker's clients have it: in virtual time."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from quorumlog.broker.client.broker_calls import BrokerCalls, BrokerProduct, UniqKeys, encode_messages
from quorumlog.broker.errors import (
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
    NotMaster,
    StaleEpoch,
    TopicNotPermitted,
)
from quorumlog.broker.group_commands import (
    Command,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    ResetOffsets,
    UpdateTopic,
    encode,
)
from quorumlog.broker.message import Message
from quorumlog.broker.wire import (
    GROUP,
    AssignmentResponse,
    CommitRequest,
    DoneResponse,
    EarlierHello,
    EarlierHelloResponse,
    FailoverRequest,
    GroupAnswer,
    GroupCommandRequest,
    GroupHeartbeatRequest,
    GroupQuestionRequest,
    LeaveRequest,
    OffsetResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    PullRequest,
    PullResponse,
    ReplicaRequest,
    RoleNotice,
    RoleRequest,
    RoleResponse,
    SendRequest,
    SendResponse,
    SessionSendRequest,
    TopicRouteRequest,
    TopicRouteResponse,
    broker_request_decoder,
)
from quorumlog.errors import (
    ClusterChanged,
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    PendingFull,
    RequestTimeout,
    ResultUnknown,
    Unreachable,
)
from quorumlog.net.errors import ErrorResponse, error_response
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import BROKER, Hello, HelloResponse
from quorumlog.net.rpc.calls import CLOSED, Call, Link, LinkState
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.wire.client_message import ClientMessage

A, B = "a:1", "b:1"
IN_SESSION = SessionSendRequest(producer="p", epoch=(1, 1), sequence=0)
REFUSED = TopicNotPermitted("the topic takes no messages")
STORED = SendResponse(queue_offset=0, physical_offset=0, message_count=1, store_time_ms=1)
LOST = "lost"
SILENT = "silent"
Answer = ClientMessage | LedgerError | str


class Brokers:
    """Two brokers in virtual time: `master` says of itself that it is one, in `term`. What they are
    asked beside who is master is answered by `answers`, one after the other."""

    def __init__(self, *answers: Answer, servers: str = f"{A},{B}", timeout_ms: float = 1_000) -> None:
        self.answers = list(answers)
        self.master, self.term = A, 1
        self.asked: list[str] = []
        """Address of each request that came."""
        self.stops_at_greetings = 0
        self.turned_away: list[LedgerError] = []
        """At the next greetings."""
        self.down: set[str] = set()
        """They accept no connection."""
        self.clusters = {A: "one", B: "one"}
        """Which each is of."""
        self.hung: set[str] = set()
        """They say nothing any more."""
        self.now_ms = 0.0
        self.calls = BrokerCalls(servers, timeout_ms)
        product = BrokerProduct()
        self.protocol = RpcProtocol(servers.split(","), product, random=Random(1))
        self._decoders: dict[Link, FrameDecoder] = {}

    def call(self, message: ClientMessage, wait_ms: int = 0) -> Call:
        encoded = encode_messages([Message("orders", b"1")], 0, UniqKeys(), bytes(8))
        is_send = isinstance(message, SendRequest | SessionSendRequest)
        call = self.calls.made(message, encoded if is_send else None, wait_ms)
        call.deadline_ms += self.now_ms - call.submitted_ms
        call.submitted_ms = self.now_ms
        call.on_done = lambda call: None
        self.protocol.submit(call, self.now_ms)
        return call

    def run(self, call: Call, most_ms: float = 100_000) -> Call:
        until_ms = self.now_ms + most_ms
        while not call.is_done and self.now_ms < until_ms:
            self._work()
            self.now_ms += 1.0
            self.protocol.advance(self.now_ms)
        return call

    def outcome(self, message: ClientMessage) -> ClientMessage | LedgerError:
        call = self.run(self.call(message))
        assert call.is_done
        return call.error if call.response is None else call.response

    def break_off(self) -> None:
        for link in list(self._decoders):
            if link.state is not LinkState.CLOSED:
                self.protocol.link_lost(link, CLOSED, self.now_ms)

    def tell(self, role: str, master: str) -> None:
        """The master of before says so, unasked."""
        (link,) = [each for each in self._decoders if each.address != master]
        notice = RoleNotice(role=role, broker_id=1, term=self.term, master=master)
        self.protocol.frames_received(link, [Frame(GROUP, notice, None)], self.now_ms)

    def _work(self) -> None:
        work = self.protocol.take_work()
        for link in work.close:
            self._decoders.pop(link, None)
        for link in work.dial:
            if link.address in self.down:
                self.protocol.link_lost(link, "refused", self.now_ms)
                continue
            self._decoders[link] = broker_request_decoder()
            self.protocol.link_connected(link, self.now_ms)
        for link in (*work.write, *work.dial):
            out, link.outbox = link.outbox, []
            if link in self._decoders and link.address not in self.hung:
                for frame in self._decoders[link].receive_data(b"".join(map(bytes, out))):
                    self._take(link, frame.message)

    def _take(self, link: Link, message: ClientMessage) -> None:
        if isinstance(message, Hello | EarlierHello) and self.stops_at_greetings:
            self.stops_at_greetings -= 1
            self.protocol.link_lost(link, CLOSED, self.now_ms)
        elif isinstance(message, Hello) and self.turned_away:
            self._say(link, error_response(0, self.turned_away.pop(0)))
        elif isinstance(message, EarlierHello):
            self._say(link, EarlierHelloResponse(request_id=message.request_id))
        elif isinstance(message, Hello):
            self._say(link, HelloResponse(product=BROKER, cluster_id=self.clusters[link.address]))
        elif isinstance(message, RoleRequest):
            leads = link.address == self.master
            self._say(
                link,
                RoleResponse(
                    request_id=message.request_id,
                    member_id=link.address[0],
                    role="SYNC_MASTER" if leads else "SLAVE",
                    broker_id=0 if leads else 1,
                    term=self.term,
                    master=self.master,
                    brokers=[("a", 0, A), ("b", 1, B)],
                ),
            )
        else:
            self.asked.append(link.address)
            answer = self.answers.pop(0)
            if answer is SILENT:
                self.hung.add(link.address)
            elif isinstance(answer, str):
                self.protocol.link_lost(link, CLOSED, self.now_ms)
            elif isinstance(answer, LedgerError):
                self._say(link, error_response(message.request_id, answer))
            else:
                self._say(link, msgspec.structs.replace(answer, request_id=message.request_id))

    def _say(self, link: Link, message: ClientMessage) -> None:
        if link.state is not LinkState.CLOSED:
            self.protocol.frames_received(link, [Frame(GROUP, message, None)], self.now_ms)


def test_a_refusal_behind_a_copy_that_may_be_stored_is_no_refusal() -> None:
    for unknown in (LOST, OutcomeUnknown("the leader has changed")):
        error = Brokers(unknown, REFUSED).outcome(IN_SESSION)
        assert isinstance(error, OutcomeUnknown), error
        assert "takes no messages" in str(error)
    late = Brokers(LOST, *[PendingFull("full", retry_after_ms=9_999)] * 1_000)
    assert isinstance(late.outcome(IN_SESSION), OutcomeUnknown)


def test_what_was_certainly_refused_is_told_as_it_is() -> None:
    error = Brokers(PendingFull("full", retry_after_ms=1), REFUSED).outcome(IN_SESSION)
    assert isinstance(error, TopicNotPermitted)


@pytest.mark.parametrize("servers", [f"{A},{B}", A])
def test_who_is_told_when_to_come_back_waits_so_long_and_goes_on(servers: str) -> None:
    much = Overloaded("much", retry_after_ms=700)
    brokers = Brokers(much, STORED, servers=servers)
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    assert 700 <= brokers.now_ms < 900
    brokers = Brokers(Overloaded("much", retry_after_ms=7_000), servers=servers)
    assert isinstance(brokers.outcome(SendRequest()), Overloaded), "its time-out comes first"
    brokers = Brokers(STORED, servers=servers)
    brokers.turned_away = [much] * len(servers.split(","))
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    assert 700 <= brokers.now_ms < 900


def test_a_plain_send_that_may_be_stored_is_not_sent_again() -> None:
    brokers = Brokers(LOST, STORED)
    assert isinstance(brokers.outcome(SendRequest()), OutcomeUnknown)
    assert brokers.answers == [STORED]


def command(said: Command) -> GroupCommandRequest:
    return GroupCommandRequest(body=encode(said))


@pytest.mark.parametrize(
    "request_",
    [
        command(CreateTopic("orders", 1)),  # one that somebody has deleted since would be there again
        command(UpdateTopic("orders", perm=2)),  # what somebody else has set since would be undone
        command(DeleteTopic("orders")),  # one that was made anew since would go, with its messages
        command(CreateGroup("billing")),
        command(DeleteGroup("billing")),
        command(ResetOffsets("billing", (("orders", 0, 1),))),  # what was done since would come again
        CommitRequest(group="billing", offsets=[("orders", 0, 1)]),  # a reset would be undone
        FailoverRequest(verb="resign"),  # it may lead anew by then
        *(
            ReplicaRequest(verb=verb)
            for verb in ("promise", "lead", "resume", "add", "remove", "copies")
        ),
    ],
)
def test_what_would_be_another_effect_behind_somebody_elses_act_is_not_sent_again(
    request_: ClientMessage,
) -> None:
    brokers = Brokers(LOST, LOST)
    assert isinstance(brokers.outcome(request_), OutcomeUnknown)
    assert len(brokers.asked) == 1


@pytest.mark.parametrize("unknown", [LOST, OutcomeUnknown("the leader has changed")])
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (
            GroupHeartbeatRequest(group="g", member="m", topics=[]),
            AssignmentResponse(generation=1, queues=[]),
        ),
        (LeaveRequest(group="g", member="m"), DoneResponse()),
        (CommitRequest(group="g", member="m", generation=1, offsets=[]), DoneResponse()),
        (
            OpenSessionRequest(producer="p", token=bytes(16)),
            OpenSessionResponse(opened=True, epoch=(1, 1), last_sequence=-1),
        ),
        (GroupQuestionRequest(body=b""), GroupAnswer(body=b"")),
        (TopicRouteRequest(topic="orders"), TopicRouteResponse(queues=1, perm=6)),
    ],
)
def test_what_is_the_same_once_more_is_sent_again(
    request_: ClientMessage, answer: ClientMessage, unknown: Answer
) -> None:
    brokers = Brokers(unknown, answer)
    assert type(brokers.outcome(request_)) is type(answer)
    assert len(brokers.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        ErrorResponse(code=599, message="refused by a rule of a newer release"),
        FlushSlaveTimeout("written, and too few slaves acknowledged it"),
        ResultUnknown("the result is too large"),
    ],
)
def test_what_would_come_again_is_told_at_once(answer: Answer) -> None:
    brokers = Brokers(answer)
    error = brokers.outcome(CommitRequest(group="g", member="m", generation=1, offsets=[]))
    assert isinstance(error, OutcomeUnknown)
    assert type(error) is type(answer) or "unknown code 599: refused by a rule" in str(error)
    assert len(brokers.asked) == 1


@pytest.mark.parametrize("refusal", [NotMaster("a slave"), StaleEpoch("of before")])
def test_a_send_goes_on_to_the_next_master(refusal: LedgerError) -> None:
    brokers = Brokers(refusal, STORED)
    call = brokers.call(SendRequest())
    brokers.run(call, 5.0)
    assert brokers.asked == [A]
    brokers.master, brokers.term = B, 2
    brokers.run(call)
    assert call.error is None
    assert brokers.asked == [A, B]


def test_who_lacks_slaves_is_asked_again_and_another_one_that_leads_by_then() -> None:
    brokers = Brokers(InSyncReplicasNotEnough("1 of 2"), InSyncReplicasNotEnough("1 of 2"), STORED)
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    late = Brokers(*[InSyncReplicasNotEnough("1 of 2")] * 1_000)
    assert isinstance(late.outcome(SendRequest()), InSyncReplicasNotEnough)


def test_a_master_says_unasked_that_it_is_none() -> None:
    """What it owes may come; what is new goes to the other one."""
    brokers = Brokers(STORED, STORED)
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    brokers.master, brokers.term = B, 2
    brokers.tell("SLAVE", B)
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    assert brokers.asked == [A, B]


def test_a_master_that_hangs_is_left_for_the_next_one() -> None:
    """A read goes there; whether a send is stored nobody knows."""
    brokers = Brokers(SILENT, PullResponse(next_offset=1, min_offset=0, max_offset=1))
    call = brokers.call(PullRequest(topic="t", queue_id=0, offset=0))
    brokers.run(call, 20.0)
    brokers.master, brokers.term = B, 2
    assert isinstance(brokers.run(call).response, PullResponse)
    brokers = Brokers(SILENT, STORED)
    call = brokers.call(SendRequest())
    brokers.run(call, 20.0)
    brokers.master, brokers.term = B, 2
    assert isinstance(brokers.run(call).error, OutcomeUnknown)
    assert brokers.now_ms < 1_000


def test_a_hung_master_is_noticed_while_a_pull_waits_for_something_new() -> None:
    brokers = Brokers(SILENT, PullResponse(next_offset=1, min_offset=0, max_offset=1))
    call = brokers.call(PullRequest(topic="t", queue_id=0, offset=0, wait_ms=60_000), wait_ms=60_000)
    brokers.run(call, 20.0)
    brokers.master, brokers.term = B, 2
    assert isinstance(brokers.run(call, 3_000.0).response, PullResponse)


def test_only_a_broker_that_was_asked_may_take_the_time_to_wait_for_something() -> None:
    brokers = Brokers()
    brokers.down = {A, B}
    call = brokers.call(PullRequest(topic="t", queue_id=0, offset=0, wait_ms=60_000), wait_ms=60_000)
    assert isinstance(brokers.run(call).error, Unreachable)
    assert brokers.now_ms < 1_100


def test_a_broker_that_is_asked_alone_is_asked_once() -> None:
    """Whatever it is, it answers; and that it is down is told at once."""
    brokers = Brokers(NotMaster("a slave"), servers=B)
    assert isinstance(brokers.outcome(SendRequest()), NotMaster)
    assert brokers.now_ms < 10
    brokers = Brokers(servers=A)
    brokers.down = {A}
    error = brokers.outcome(SendRequest())
    assert str(error) == f"{A}: refused"
    assert brokers.now_ms < 10


@pytest.mark.parametrize("down", [set(), {B}])
def test_where_all_that_answer_are_of_another_cluster_it_is_told_at_once(down: set[str]) -> None:
    """Whoever is left of the one before may never come back, as behind a recovery."""
    brokers = Brokers(STORED, STORED, timeout_ms=60_000)
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    brokers.clusters, brokers.down = {A: "two", B: "two"}, down
    brokers.break_off()
    for _ in range(2):
        error = brokers.outcome(SendRequest())
        assert isinstance(error, ClusterChanged), error
        assert "belongs to another cluster (two, not one)" in str(error)
    assert brokers.now_ms < 1_500
    assert brokers.answers == [STORED]


def test_one_of_another_cluster_stops_nobody() -> None:
    brokers = Brokers(STORED, STORED, timeout_ms=60_000)
    brokers.master = B
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    brokers.clusters[A] = "two"
    brokers.break_off()
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)
    assert brokers.asked == [B, B]


def test_a_question_whose_time_is_over_is_no_send_whose_outcome_is_unknown() -> None:
    brokers = Brokers(SILENT, servers=A)
    assert isinstance(brokers.outcome(PullRequest(topic="t", queue_id=0, offset=0)), RequestTimeout)
    brokers = Brokers(SILENT, servers=A)
    assert isinstance(brokers.outcome(SendRequest()), OutcomeUnknown)


def test_a_broker_that_was_stopped_at_a_greeting_is_greeted_again_when_it_is_back() -> None:
    """It is none of an earlier release for that."""
    brokers = Brokers(STORED, servers=A)
    brokers.stops_at_greetings = 1
    assert isinstance(brokers.outcome(SendRequest()), SendResponse)


def test_what_is_no_answer_to_a_question_is_none() -> None:
    brokers = Brokers(STORED, STORED, PullResponse(next_offset=1, min_offset=0, max_offset=1))
    pull = PullRequest(topic="t", queue_id=0, offset=0)
    assert isinstance(brokers.outcome(pull), PullResponse)
    for request in (SendRequest(), IN_SESSION):
        brokers = Brokers(*[OffsetResponse(offset=0)] * 1_000)
        assert isinstance(brokers.outcome(request), OutcomeUnknown)
