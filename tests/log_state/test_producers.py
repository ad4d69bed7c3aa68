"""What a log knows of its producers, against the entries themselves."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.entry import EntryKind
from quorumlog.log_state import producers as producers_module
from quorumlog.log_state.control_entries import (
    ANONYMOUS,
    ControlBody,
    ControlEntry,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    encode_body,
    kind_of,
)
from quorumlog.log_state.log_state import EMPTY, RECORD_MAGIC, LogState, LogStates, decode_state, folded
from quorumlog.log_state.producers import (
    MOST_BATCHES,
    MOST_RANGES,
    NO_PRODUCERS,
    Producers,
    SessionRecord,
)
from tests.log_state.many_sessions import many_sessions

TOKEN = b"t" * 16


class Log:
    """A log of control entries and data, and its states."""

    def __init__(self) -> None:
        self.states = LogStates(EMPTY, -1)
        self.term = 1
        self.entries: list[tuple[int, str | None]] = []
        """(term, producer of a data entry)."""

    @property
    def producers(self) -> Producers:
        assert isinstance(self.states.appended, LogState)
        return self.states.appended.producers

    def session(self, producer: str = "p") -> SessionRecord:
        session = self.producers.get(producer)
        assert session is not None
        return session

    def control(self, body: ControlBody | None) -> int:
        index = len(self.entries)
        kind = EntryKind.NOOP if body is None else kind_of(body)
        self.states.append(index, [ControlEntry(index, kind, body, self.term)])
        self.entries.append((self.term, None))
        return index

    def open(self, producer: str = "p", token: bytes = TOKEN, **fields: object) -> ProducerEpoch:
        session = self.producers.get(producer)
        ends = None if session is None else session.epoch
        return ProducerEpoch(
            self.control(OpenProducer(producer, token, **{"ends": ends, **fields})),  # type: ignore[arg-type]
            self.term,
        )

    def batch(self, count: int, producer: str = "p", *, continues: bool = False) -> int:
        """Returns the index of its first entry."""
        session = self.session(producer)
        at = self.control(
            ProducerBatch(producer, session.epoch, session.last_sequence + 1, count, continues)
        )
        self.entries += [(self.term, producer)] * count
        return at + 1

    def cut(self, stop_index: int) -> None:
        """Entries from there on are lost, and a new leader opens its term."""
        self.states.truncate_from(stop_index)
        del self.entries[stop_index:]
        self.term += 1
        self.control(None)


def test_numbers_go_on_across_epochs_and_only_the_one_that_stands_is_ended() -> None:
    log = Log()
    first = log.open()
    log.batch(3)
    second = log.open(token=b"u" * 16)
    assert log.session() == SessionRecord(second, b"u" * 16, 2, log.session().batches)
    log.open(ends=first)
    log.open(ends=None)
    assert log.session().epoch == second
    log.batch(2)
    assert log.session().last_sequence == 4


def test_a_batch_of_another_epoch_or_with_a_hole_counts_for_nothing() -> None:
    log = Log()
    first = log.open()
    second = log.open()
    for epoch, sequence in ((first, 0), (second, 1), (ProducerEpoch(99, 1), 0)):
        log.control(ProducerBatch("p", epoch, sequence, 1))
        assert log.session().last_sequence == -1
    log.control(ProducerBatch("nobody", first, 0, 1))
    assert log.producers.get("nobody") is None


@pytest.mark.parametrize("kept", range(5))
def test_a_cut_batch_ends_where_the_next_term_begins_and_its_rest_joins_it(kept: int) -> None:
    log = Log()
    log.open()
    first = log.batch(2)
    second = log.batch(4)
    log.cut(second + kept)
    assert log.session().last_sequence == 1 + kept
    if kept == 4:
        assert log.session().ranges_of(2, 4) is not None
        return
    assert log.session().ranges_of(2, 4) is None
    rest = log.batch(4 - kept, continues=kept > 0)
    for _ in range(MOST_BATCHES - 1):
        log.batch(1)
    ranges = log.session().ranges_of(2, 4)
    assert ranges is not None
    assert [(each.first_index, each.count, each.term) for each in ranges if each.count] == [
        each for each in ((second, kept, 1), (rest, 4 - kept, 2)) if each[1]
    ]
    assert log.session().ranges_of(0, 2) is None, f"the batch at {first} is the sixth"


def test_a_cut_of_the_announcement_alone_leaves_nothing() -> None:
    log = Log()
    log.open()
    log.batch(2)
    log.cut(log.batch(4))
    assert log.session().last_sequence == 1
    assert len(log.session().batches) == 1


def test_what_is_remembered_of_a_session_is_bounded_however_often_a_batch_is_cut() -> None:
    log = Log()
    log.open()
    count = 3 * MOST_RANGES
    at = log.batch(count)
    for done in range(1, count):
        log.cut(at + 1)
        at = log.batch(count - done, continues=True)
    assert log.session().last_sequence == count - 1
    assert sum(map(len, log.session().batches)) == MOST_RANGES
    assert log.session().ranges_of(count - 3, 3) is not None
    assert log.session().ranges_of(0, count) is None


def test_forgetting_ends_a_session_that_stands_and_no_other() -> None:
    log = Log()
    first = log.open()
    log.batch(3)
    second = log.open()
    log.open(ends=first, forgets=True)
    assert log.session().epoch == second
    log.open(ends=second, forgets=True)
    assert log.producers.get("p") is None
    log.open()
    assert log.session().last_sequence == -1


def test_the_anonymous_one_that_was_used_longest_ago_is_evicted_and_a_named_one_never() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(producers_module, "MOST_PRODUCERS", 4)
        monkeypatch.setattr(producers_module, "EVICTED_TOGETHER", 1)
        check_evictions()


def check_evictions() -> None:
    log = Log()
    for name in ("named", f"{ANONYMOUS}a", f"{ANONYMOUS}b", f"{ANONYMOUS}c"):
        assert log.producers.to_evict() == ()
        log.open(name)
    log.batch(1, f"{ANONYMOUS}a")
    assert log.producers.to_evict() == (f"{ANONYMOUS}b",)
    log.open("more")
    assert log.producers.get("more") is None, "there is no room, and nobody was evicted"
    log.open("more", evicts=log.producers.to_evict())
    assert sorted(log.producers.names()) == ["more", "named", f"{ANONYMOUS}a", f"{ANONYMOUS}c"]
    assert log.producers.count == 4
    log.open("more")
    assert log.producers.count == 4, "one that stands needs no room"


def test_one_entry_can_say_whom_it_evicts_however_long_their_names_are() -> None:
    log = Log()
    for number in range(100):
        log.open(f"{ANONYMOUS}{chr(0x4E00) * 250}{number:04}")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(producers_module, "MOST_PRODUCERS", 100)
        evicts = log.producers.to_evict()
    assert evicts == tuple(sorted(log.producers.names()))[: len(evicts)]
    assert evicts
    encode_body(OpenProducer("more", bytes(16), None, evicts))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from("pq"), st.just(0)),
        st.tuples(st.just("batch"), st.sampled_from("pq"), st.integers(1, 4)),
        st.tuples(st.just("cut"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("commit"), st.just(""), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_last_number_is_the_count_of_the_entries_and_ranges_are_theirs(
    steps: list[tuple[str, str, int]],
) -> None:
    log = Log()
    log.control(None)
    for what, producer, number in steps:
        if what == "open":
            log.open(producer)
        elif what == "batch" and log.producers.get(producer) is not None:
            log.batch(number, producer, continues=number % 2 == 0)
        elif what == "cut":
            log.cut(max(log.states.committed_index + 1, len(log.entries) - number))
        elif what == "commit":
            log.states.commit(max(log.states.committed_index, len(log.entries) - 1 - number))
        for name in log.producers.names():
            theirs = [at for at, (_, who) in enumerate(log.entries) if who == name]
            session = log.session(name)
            assert session.last_sequence == len(theirs) - 1
            for each in (one for batch in session.batches for one in batch):
                numbers = slice(each.first_sequence, each.stop_sequence)
                indices = list(range(each.first_index, each.first_index + each.count))
                assert theirs[numbers] == indices
                assert {log.entries[at][0] for at in indices} == {each.term}
        assert isinstance(log.states.appended, LogState)
        assert decode_state(log.states.appended.encode()) == log.states.appended


def test_a_record_from_before_sessions_has_none() -> None:
    fields = msgspec.msgpack.decode(EMPTY.encode()[8:])
    payload = msgspec.msgpack.encode(fields[:8])
    older = decode_state(RECORD_MAGIC + zlib.crc32(payload).to_bytes(4, "big") + payload)
    assert isinstance(older, LogState)
    assert older.producers == NO_PRODUCERS


@pytest.mark.long
def test_a_hundred_thousand_sessions_take_less_than_forty_megabytes() -> None:
    """Both states of a member, whose last entries are not committed yet; all with full receipts."""
    record = many_sessions().encode()
    tracemalloc.start()
    state = decode_state(record)
    assert isinstance(state, LogState)
    committed = producers = state.producers
    index = 100_000_000
    for name in list(producers.names())[::10]:
        session = producers.get(name)
        assert session is not None
        said = ProducerBatch(name, session.epoch, session.last_sequence + 1, 256)
        producers = producers.with_batch(index, 18, said)
        index += 257
    producers = producers.opened(
        ProducerEpoch(index, 18), OpenProducer("p", TOKEN, evicts=producers.to_evict())
    )
    assert producers.count == 100_000 - producers_module.EVICTED_TOGETHER + 1
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 40 * 1000 * 1000, held
    assert committed.count == 100_000


def test_a_log_without_sessions_makes_no_new_state_of_a_term() -> None:
    entry = ControlEntry(3, EntryKind.NOOP, None, 2)
    assert folded(EMPTY, [entry]) is EMPTY
