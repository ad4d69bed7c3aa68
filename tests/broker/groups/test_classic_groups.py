"""Topics and groups of a classic broker, on a simulated disk: what is acknowledged outlives the process,
the power and retention, and a broker that becomes master answers once it has read all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

import pytest

from quorumlog.broker.broker_port import BrokerSession
from quorumlog.broker.errors import TopicNotPermitted, UnknownTopic
from quorumlog.broker.group_commands import (
    REAL_QUEUE,
    REAL_TOPIC,
    Command,
    CreateTopic,
    DeleteTopic,
    GroupRow,
    GroupsQuestion,
    TopicRow,
    TopicsQuestion,
    UpdateTopic,
    encode,
    read_answer,
)
from quorumlog.broker.groups.classic_group_log import (
    COMMANDS,
    SNAPSHOT_COMMANDS,
    SNAPSHOTS,
    ClassicGroupLog,
)
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.groups.group_state import saved_bytes
from quorumlog.broker.message import DELAY, SCHEDULE_TOPIC, Message, PutMessageResult, encode_records
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.store.log_files import BrokerRole, PutOutcome, PutRequest
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    AssignmentResponse,
    CommitRequest,
    DoneResponse,
    GroupAnswer,
    GroupCommandRequest,
    GroupHeartbeatRequest,
    GroupQuestionRequest,
    OpenSessionRequest,
)
from quorumlog.errors import LeaderNotReady, LedgerError, OutcomeUnknown, StoreFailure
from quorumlog.testing.disk import SimDisk
from tests.broker.store.store_making import ROOT, SMALL, Clock, open_store, release

CONFIG = replace(SMALL, message_delay_level="1s " * 17 + "1s", mapped_file_size_commit_log=16_384)


class Still(Clock):
    """It goes on when it is told to."""

    def __call__(self) -> float:
        return self.now_ms


class Loop:
    """What is to be called soon, in its order."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[..., None], *given: object) -> None:
        self.calls.append(lambda: call(*given))

    call_soon_threadsafe = call_soon

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def read() -> None:
            try:
                result = work()
            except (LedgerError, StoreFailure) as error:
                result = error
            done(result)

        self.calls.append(read)


class Puts:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        self._store.commit_log.put([PutRequest(records, waits, answer)])


class Session(BrokerSession):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def answer(self, message: AnyBrokerMessage, records: object = None) -> None:
        self.told.append(message)

    def refuse(self, request_id: int, error: LedgerError) -> None:
        self.told.append(error)


@dataclass
class Lead:
    """Whether this broker is master."""

    takes_messages: bool = True
    epoch: int = 1


class Broker:
    def __init__(self, topics: dict[str, int] | None = None, lead: Lead | None = None) -> None:
        self.disk = SimDisk()
        self.clock = Still()
        self.topics = {"t": 2} if topics is None else topics
        self.lead = lead
        self.start()

    def start(self) -> None:
        self.store = self.opened()
        self.loop = Loop()
        self.groups = ClassicGroupLog(
            self.store, GroupService(), self.lead, wall_ms=lambda: self.clock.now_ms
        )
        self.store.reput.dispatched = self.groups.grown
        puts, loop = Puts(self.store), cast(Any, self.loop)
        self.puts = self.groups.open(puts, loop, loop)
        self.turn()

    def opened(self) -> MessageStore:
        return open_store(self.disk, CONFIG, self.clock, topics=self.topics)

    def turn(self, rounds: int = 8) -> None:
        """Its threads and its loop do what there is to do; half a second passes."""
        self.clock.now_ms += 500
        for _ in range(rounds):
            self.store.flush_once()
            self.store.reput_once()
            self.groups.tick(self.clock.now_ms)
            calls, self.loop.calls[:] = list(self.loop.calls), []
            for call in calls:
                call()

    def crash(self, random: Random | None) -> None:
        """`random`: the power is lost; None: only the process is killed."""
        self.disk.kill() if random is None else self.disk.lose_power(random)
        self.start()

    def take(self, session: Session, message: AnyBrokerMessage) -> None:
        assert self.groups.request(cast(Any, session), message, cast(Any, None))

    def ask(self, message: AnyBrokerMessage) -> Any:
        session = Session()
        session.proceed(message.request_id, lambda: self.take(session, message))
        for _ in range(20):
            if session.told:
                return session.told[0]
            self.turn()
        raise AssertionError("no answer comes")

    def command(self, command: Command) -> object:
        answer = self.ask(GroupCommandRequest(body=encode(command)))
        return read_answer(answer.body, object) if isinstance(answer, GroupAnswer) else answer

    def topic_rows(self) -> dict[str, int]:
        answer = self.ask(GroupQuestionRequest(body=encode(TopicsQuestion())))
        return {row.topic: row.queues for row in read_answer(answer.body, list[TopicRow])}

    def offsets(self) -> dict[tuple[str, int], int]:
        answer = self.ask(GroupQuestionRequest(body=encode(GroupsQuestion("billing"))))
        (row,) = read_answer(answer.body, list[GroupRow])
        return {(topic, queue_id): at for topic, queue_id, at in row.offsets}

    def join(self, topic: str = "orders") -> AssignmentResponse:
        answer = self.ask(
            GroupHeartbeatRequest(group="billing", member="m", topics=[(topic, "*")], wait_ms=5_000)
        )
        assert isinstance(answer, AssignmentResponse), answer
        return answer

    def commit(self, generation: int, offset: int, topic: str = "orders") -> None:
        request = CommitRequest(
            group="billing", member="m", generation=generation, offsets=[(topic, 0, offset)]
        )
        answer = self.ask(request)
        assert isinstance(answer, DoneResponse), answer

    def put(self, body: bytes, topic: str = "orders", queue_id: int = 0, **more: str) -> PutOutcome:
        records = RecordBatch.contiguous(
            *encode_records([Message(topic, body, properties=more)], queue_id, 0)
        )
        outcomes: list[PutOutcome] = []
        self.puts.add(records, True, outcomes.append)
        self.turn()
        return outcomes[0]

    def delay(self, body: bytes, topic: str = "orders") -> None:
        outcome = self.put(body, SCHEDULE_TOPIC, 1, **{DELAY: "2", REAL_TOPIC: topic, REAL_QUEUE: "0"})
        assert isinstance(outcome, PutMessageResult), outcome

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        key = QueueKey(topic, queue_id)
        queue = self.store.queues.get(key)
        begin = 0 if queue is None else queue.min_offset
        begin = max(begin, self.groups.topics.begin(key) or 0)
        pulled = self.store.reader.pull(key, begin, 10_000, 1 << 30)
        return [each.body for each in pulled.records.messages()]

    @property
    def state(self) -> bytes:
        return saved_bytes(self.groups.follower.machine.state)


@pytest.mark.parametrize("power", [False, True])
def test_what_is_acknowledged_outlives_the_process_and_the_power(power: bool) -> None:
    broker = Broker()
    random = Random(7)
    assert broker.command(CreateTopic("orders", 3)) is None
    for number in range(9):
        assert isinstance(broker.put(b"%d" % number), PutMessageResult)
    for offset in (3, 5):
        joined = broker.join()
        broker.commit(joined.generation, offset)
        state = broker.state
        broker.crash(random if power else None)
        assert broker.state == state
        assert broker.offsets() == {("orders", 0): offset}
    assert broker.topic_rows().get("orders") == 3
    # Nobody was ever told that it was done, and it may be there or not; but the queue goes on.
    broker.groups.propose(lambda: CreateTopic("late", 1), lambda outcome: None)
    broker.crash(random if power else None)
    assert broker.command(CreateTopic("later", 1)) is None
    assert {"orders", "later"} <= broker.topic_rows().keys()


def test_topics_that_it_was_started_with_become_such_that_change() -> None:
    broker = Broker({"t": 2, "gone": 1})
    assert broker.topic_rows()["t"] == 2
    assert broker.store.commit_log.max_offset == 0, "nothing is written before somebody wants it"
    assert isinstance(broker.put(b"1", "t"), PutMessageResult)
    joined = broker.join("t")
    assert {("t", 0), ("t", 1)} <= {(topic, queue_id) for topic, queue_id, _ in joined.queues}
    broker.commit(joined.generation, 1, "t")
    assert broker.offsets() == {("t", 0): 1}
    assert broker.command(UpdateTopic("t", perm=4)) is None
    assert isinstance(broker.put(b"2", "t"), TopicNotPermitted)
    assert isinstance(broker.put(b"1", "gone"), PutMessageResult)
    assert broker.command(DeleteTopic("gone")) is None
    assert isinstance(broker.put(b"2", "gone"), UnknownTopic)
    with pytest.raises(UnknownTopic):
        broker.bodies("gone")
    broker.crash(None)
    assert "gone" not in broker.topic_rows()
    assert broker.command(CreateTopic("gone", 1)) is None
    assert isinstance(broker.put(b"new", "gone"), PutMessageResult)
    assert broker.bodies("gone") == [b"new"]


def test_nobody_else_writes_where_commands_lie_and_there_are_no_sessions() -> None:
    broker = Broker()
    assert isinstance(
        broker.put(b"12345678" + encode(CreateTopic("x", 1)), "%GROUPS%"), TopicNotPermitted
    )
    assert isinstance(broker.put(b"about %GROUPS% and SCHEDULE_TOPIC_XXXX", "t"), PutMessageResult)
    outcomes: list[PutOutcome] = []
    hidden = Message("%GROUPS%", b"12345678" + encode(CreateTopic("x", 1)))
    parts = [encode_records([each], 0, 0) for each in (Message("t", b"1"), hidden)]
    joined = RecordBatch.contiguous(
        bytearray().join(buffer for buffer, _ in parts), [size for _, sizes in parts for size in sizes]
    )
    broker.puts.add(joined, True, outcomes.append)
    broker.turn()
    assert "for one queue of one topic" in str(outcomes[0])
    with pytest.raises(UnknownTopic):
        broker.bodies("%GROUPS%")
    refused = broker.ask(OpenSessionRequest(producer="p", token=bytes(16)))
    assert "--role dledger" in str(refused)


def test_delayed_messages_come_when_they_are_due_also_behind_a_kill() -> None:
    broker = Broker({"orders": 1, SCHEDULE_TOPIC: 18})
    old = RecordBatch.contiguous(*encode_records([Message(SCHEDULE_TOPIC, b"old")], 1, 0))
    broker.store.commit_log.put([PutRequest(old, True, lambda outcome: None)])  # of an earlier release
    broker.turn()
    broker.delay(b"first")
    assert broker.bodies() == []
    for _ in range(6):
        broker.turn()
    assert broker.bodies() == [b"first"]
    broker.delay(b"second")
    broker.delay(b"nowhere", topic="nosuch")
    broker.crash(None)
    for _ in range(6):
        broker.turn()
    assert broker.bodies() == [b"first", b"second"]
    assert broker.bodies("%UNDELIVERED%") == [b"nowhere"]
    broker.crash(None)
    for _ in range(6):
        broker.turn()
    assert broker.bodies() == [b"first", b"second"], "what is released is not released again"


@pytest.mark.parametrize("told", [None, '{"offsetTable":{2:1,3:0}}', "{cut"])
def test_of_a_java_store_what_it_has_not_delivered_is_released(told: str | None) -> None:
    broker = Broker({"orders": 1})
    levels = {1: 2, 2: 1}
    for queue_id, count in levels.items():
        for number in range(count):
            properties = {DELAY: str(queue_id + 1), REAL_TOPIC: "orders", REAL_QUEUE: "0"}
            message = Message(SCHEDULE_TOPIC, b"%d:%d" % (queue_id, number), properties=properties)
            records = RecordBatch.contiguous(*encode_records([message], queue_id, 0))
            broker.store.commit_log.put([PutRequest(records, True, lambda outcome: None)])
    broker.turn()
    if told is not None:
        broker.disk.make_directory("store/config")
        broker.disk.write_file("store/config/delayOffset.json", told.encode())
    assert broker.command(CreateTopic("new", 1)) is None
    for _ in range(6):
        broker.turn()
    pending = [b"1:1", b"2:0"] if told is not None and told.endswith("}") else []
    assert sorted(broker.bodies()) == pending


def test_retention_takes_old_commands_and_never_what_the_state_is_made_from() -> None:
    broker = Broker()
    broker.command(CreateTopic("orders", 1))
    year_ms = 366 * 86_400_000
    for number in range(60):
        assert isinstance(broker.put(bytes(900)), PutMessageResult)
        broker.commit(broker.join().generation, number + 1)
        if number % 20 == 19:
            broker.clock.now_ms += year_ms - broker.clock.now_ms % 86_400_000 + 4 * 3_600_000
            broker.store.cleaner.run_once()
    commands, snapshots = (broker.store.queues.get(key) for key in (COMMANDS, SNAPSHOTS))
    assert commands is not None
    assert snapshots is not None
    assert commands.min_offset > 20
    assert broker.store.commit_log.min_offset > 0
    held = broker.groups.follower.needed_position
    assert held >= broker.store.commit_log.min_offset
    state = broker.state
    broker.crash(Random(3))
    assert broker.state == state
    assert broker.offsets() == {("orders", 0): 60}
    assert broker.groups.follower.since_snapshot < 60, "it began with a snapshot"
    # Without a master nothing is saved, and everything that is needed stays.
    broker.groups.follower.needed_position = 0
    assert broker.store.holds_from() == 0


def is_old(broker: Broker) -> None:
    """All that it holds is above a year old, in the hour of deletion."""
    year_ms = 366 * 86_400_000
    broker.clock.now_ms += year_ms - broker.clock.now_ms % 86_400_000 + 4 * 3_600_000


def fills(broker: Broker, messages: int) -> None:
    """A file takes 36. They are shown, and the loop has not turned."""
    for _ in range(messages):
        message = RecordBatch.contiguous(*encode_records([Message("t", bytes(900))], 0, 0))
        broker.store.commit_log.put([PutRequest(message, True, lambda outcome: None)])
    broker.store.flush_once()
    broker.store.reput_once()


def test_retention_takes_no_command_that_was_not_read_yet() -> None:
    """The first one: nothing is known of what the state is made from."""
    broker = Broker()
    order = encode(CreateTopic("orders", 3))
    broker.groups._put(COMMANDS, bytes(8) + order, lambda outcome: None)
    fills(broker, 40)
    is_old(broker)
    broker.store.cleaner.run_once()
    for _ in range(4):
        broker.turn()
    assert broker.topic_rows().get("orders") == 3
    broker.crash(None)
    assert broker.topic_rows().get("orders") == 3


def test_retention_takes_no_snapshot_that_was_not_read_yet() -> None:
    """As of a slave that begins behind all commands: the snapshot alone has the state."""
    source, broker = Broker(), Broker(lead=Lead(takes_messages=False))
    assert source.command(CreateTopic("orders", 3)) is None
    follower, behind = source.groups.follower, broker.groups.follower
    assert follower.next_command is not None
    behind.next_command, behind.is_whole = follower.next_command, False
    for part in follower.state_to_keep(follower.next_command, 1 << 20):
        broker.groups._put(SNAPSHOTS, part, lambda outcome: None)
    fills(broker, 40)
    is_old(broker)
    broker.store.cleaner.run_once()
    broker.turn()
    assert "orders" in broker.groups.state.topics
    broker.crash(None)
    assert "orders" in broker.groups.state.topics


class Batched(Puts):
    """What is put is written a moment later, in its order."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self.held: list[Callable[[], None]] = []

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        self.held.append(lambda: super(Batched, self).add(records, waits, answer))


def test_a_command_that_waits_while_the_state_is_saved_is_needed_beside_the_snapshot() -> None:
    broker = Broker()
    for number in range(20):
        assert broker.command(CreateTopic(f"topic-{number}", 1)) is None
    broker.groups._puts = puts = Batched(broker.store)
    broker.groups.propose(lambda: CreateTopic("last", 1), lambda outcome: None)
    broker.groups.follower.since_snapshot = SNAPSHOT_COMMANDS
    broker.turn()
    for write in puts.held:
        write()
    broker.turn()
    newest, commands = broker.groups.follower.newest_snapshot(), broker.store.queues.get(COMMANDS)
    assert newest is not None
    assert commands is not None
    (last,) = broker.groups.reader.pull(COMMANDS, commands.max_offset - 1, 1).records.messages()
    assert newest.next_command <= last.queue_offset
    assert newest.position <= last.physical_offset, "retention would take it"


def test_a_state_too_large_for_a_message_is_saved_in_parts_and_half_of_one_is_passed_over() -> None:
    lead = Lead()
    broker = Broker(lead=lead)
    for number in range(120):
        broker.command(CreateTopic(f"topic-{number:03d}-{'x' * 60}", 1))
    follower = broker.groups.follower
    snapshots = broker.store.queues.get(SNAPSHOTS)
    assert snapshots is not None
    assert snapshots.max_offset > 3
    lead.takes_messages = False  # nothing is saved meanwhile
    broker.turn()
    newest = follower.newest_snapshot()
    assert newest is not None
    parts = follower.state_to_keep(broker.groups.end_of(COMMANDS), 1_000)
    assert len(parts) > 5
    for part in parts[:-1]:
        broker.groups._put(SNAPSHOTS, part, lambda outcome: None)
    broker.turn()
    assert follower.newest_snapshot() == newest
    state = broker.state
    broker.crash(None)
    assert broker.state == state


def test_a_broker_that_becomes_master_answers_once_it_has_read_its_log() -> None:
    lead = Lead()
    broker = Broker(lead=lead)
    broker.command(CreateTopic("orders", 1))
    at = broker.store.commit_log.max_offset
    lead.takes_messages = False
    broker.turn()
    refused = broker.ask(GroupCommandRequest(body=encode(CreateTopic("more", 1))))
    assert isinstance(refused, LeaderNotReady)
    # What the earlier master wrote last is not confirmed here yet.
    broker.store.commit_log.replicated_offset = at
    body = bytes(8) + encode(CreateTopic("last", 1))
    broker.groups._put(COMMANDS, body, lambda outcome: None)
    broker.turn()
    lead.takes_messages, lead.epoch = True, 2
    broker.turn()
    assert not broker.groups.is_master
    assert isinstance(broker.ask(GroupQuestionRequest(body=encode(TopicsQuestion()))), LeaderNotReady)
    broker.store.commit_log.replicated_offset = broker.store.commit_log.max_offset
    broker.turn()
    assert broker.groups.is_master
    assert {"orders", "last"} <= broker.topic_rows().keys()


class Replicated(Broker):
    """Whose log may be cut."""

    def opened(self) -> ReplicaStore:
        clock = self.clock
        self.replica_store = ReplicaStore(
            ROOT, CONFIG, disk=self.disk, wall_clock=clock, clock=clock, topics=self.topics
        )
        return self.replica_store

    def turn(self, rounds: int = 8) -> None:
        self.store.commit_log.replicated_offset = self.store.commit_log.max_offset
        super().turn(rounds)


def test_of_a_log_that_is_cut_below_what_was_carried_out_all_is_read_anew() -> None:
    """A master that was given up with --unsafe meets the next one, whose commands have the same
    numbers."""
    lead = Lead()
    broker = Replicated(lead=lead)
    broker.command(CreateTopic("orders", 1))
    at = broker.store.commit_log.max_offset
    broker.command(CreateTopic("given-up", 1))
    broker.command(CreateTopic("given-up-2", 1))
    lead.takes_messages = False
    broker.turn()
    broker.replica_store.cut(at)
    broker.replica_store.count_queues()
    broker.groups._put(COMMANDS, bytes(8) + encode(CreateTopic("last", 1)), lambda outcome: None)
    lead.takes_messages, lead.epoch = True, 2
    broker.groups.look()
    assert not broker.groups.is_master
    broker.turn()
    assert broker.groups.is_master
    rows = broker.topic_rows()
    assert {"t", "orders", "last"} <= rows.keys()
    assert not {"given-up", "given-up-2"} & rows.keys()


def test_what_is_on_its_way_when_a_master_is_none_any_more_is_an_unknown_outcome() -> None:
    lead = Lead()
    broker = Broker(lead=lead)
    broker.command(CreateTopic("orders", 1))
    broker.store.commit_log.replicated_offset = broker.store.commit_log.max_offset
    told: list[bytes | LedgerError] = []
    broker.groups.propose(lambda: CreateTopic("more", 1), told.append)
    broker.turn()
    assert told == []
    lead.takes_messages = False
    broker.turn()
    (outcome,) = told
    assert type(outcome) is OutcomeUnknown
    assert broker.store.commit_log.role is not BrokerRole.SLAVE
    release(broker.store)


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_of_many_lives_takes_back_nothing_that_it_acknowledged(seed: int) -> None:
    """Killed and without power at any moment; what it answered stays, and what it released is there."""
    random = Random(seed)
    broker = Broker()
    topics: set[str] = set()
    offset, delayed = 0, set[bytes]()
    assert broker.command(CreateTopic("orders", 1)) is None
    for number in range(40):
        chance = random.random()
        if chance < 0.3:
            assert isinstance(broker.put(bytes(random.choice((10, 900)))), PutMessageResult)
        elif chance < 0.6:
            end = broker.groups.stored_offset(QueueKey("orders", 0))
            offset = max(offset, random.randint(0, end))
            broker.commit(broker.join().generation, offset)
        elif chance < 0.7:
            name = f"topic-{number}"
            assert broker.command(CreateTopic(name, 1)) is None
            topics.add(name)
        elif chance < 0.8:
            body = b"delayed %d" % number
            broker.delay(body)
            delayed.add(body)
        else:
            if random.random() < 0.5:  # something is on its way
                name = f"perhaps-{number}"
                broker.groups.propose(lambda name=name: CreateTopic(name, 1), lambda outcome: None)
            broker.crash(random if random.random() < 0.5 else None)
        if offset:
            assert broker.offsets()["orders", 0] >= offset
        assert topics <= broker.topic_rows().keys()
    for _ in range(8):
        broker.turn()
    assert delayed <= set(broker.bodies())
    assert broker.offsets().get(("orders", 0), 0) == offset if offset else True
