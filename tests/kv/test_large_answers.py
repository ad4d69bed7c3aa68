"""Commands with answers larger than anybody wants to hold: their effect stays, on all members alike."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryKind
from quorumlog.errors import ResultUnknown
from quorumlog.kv import requests, service
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import (
    FROM_KEY,
    AnswerResponse,
    Command,
    Compact,
    Compare,
    DeleteRange,
    Event,
    EventsResponse,
    Grant,
    History,
    LeaseKeys,
    LeaseKeysAnswer,
    Leases,
    LeasesAnswer,
    Put,
    Range,
    RangeAnswer,
    Relation,
    Response,
    Revoke,
    StoreStats,
    Target,
    Txn,
    TxnAnswer,
    WatchRequest,
    decode_command,
    encode,
    read_answer,
)
from quorumlog.kv.service import CommandBatches, WatchHub
from quorumlog.kv.store import engine as rocks_engine
from quorumlog.kv.store import keyspace, machine
from quorumlog.kv.store import keyspace as ranges
from quorumlog.kv.store.engine import RocksEngine
from quorumlog.kv.store.keyspace import SLICE_BYTES, Changed, Feed
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.log_state.control_entries import MachineBinding, encode_body
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.node import kept_results
from quorumlog.node.machine_runner import MachineRunner
from quorumlog.state_machine import Applied, ApplyFailure, FirstResults
from tests.kv import large_answers
from tests.kv.applied import KINDS, AppliedStore, Saved, saved
from tests.kv.large_answers import KEPT_BYTES, saved_by

ANSWER_BYTES = 500_000
SAVED = Path(__file__).parents[1] / "fixtures" / "kv-version-1" / "saved.txt"
"""By the last release that had version 1 only, behind each stretch of the log."""


@contextmanager
def smaller_bounds() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_results, "MOST_BYTES", KEPT_BYTES)
        patch.setattr(machine, "MOST_ANSWER_BYTES", {1: KEPT_BYTES - 16, 2: ANSWER_BYTES})
        yield patch


@pytest.fixture(autouse=True)
def small_bounds() -> Iterator[None]:
    with smaller_bounds():
        yield


def apply(runner: MachineRunner, stretch: EntryBatch) -> list[bytes]:
    """What it has given for commands."""
    given = []
    while stretch.count:
        turn = runner.apply(stretch)
        assert turn.stopped is None, turn
        assert turn.applied is not None
        given += [value for results in turn.results for value in results.values or ()]
        stretch = stretch.slice(turn.applied.index + 1 - stretch.first_index, stretch.count)
    return given  # type: ignore[return-value]


def test_version_1_saves_what_the_release_before_has_saved() -> None:
    version_1_saves_what_the_release_before_has_saved()


def version_1_saves_what_the_release_before_has_saved() -> None:
    with smaller_bounds():
        _version_1_saves_the_same()


def _version_1_saves_the_same() -> None:
    runner = large_answers.runner(KeyValueMachine(), 1)
    for stretch, expected in zip(large_answers.log(), SAVED.read_text().splitlines(), strict=True):
        apply(runner, stretch)
        assert saved_by(runner) == expected


# ---------------------------------------------------------------- what is built

PUT = Put(b"z", b"done")
EVERYTHING = Range(b"\0", FROM_KEY)
LARGE = {
    "many ranges": Txn([], [PUT, *[EVERYTHING] * 100]),
    "in inner transactions": Txn([], [PUT, Txn([], [Txn([], [EVERYTHING] * 50), *[EVERYTHING] * 20])]),
    "one range": Txn([], [PUT, EVERYTHING]),
    "backwards": Txn([], [PUT, Range(b"\0", FROM_KEY, descending=True)]),
    "of the past": Txn([], [PUT, *[Range(b"\0", FROM_KEY, revision=300)] * 9]),
    "sorted": Txn([], [PUT, *[Range(b"\0", FROM_KEY, sort_by=Target.VALUE, descending=True)] * 9]),
    "sorted, and many of them": Txn([], [PUT, Range(b"\0", FROM_KEY, 490, sort_by=Target.MOD)]),
    "deletions": Txn([], [PUT, DeleteRange(b"k", b"l", prev_kv=True)]),
    "one deletion": DeleteRange(b"k", b"l", prev_kv=True),
    "what was put over": Txn(
        [], [PUT, *[Put(b"large %d" % number, b"", prev_kv=True) for number in range(11)]]
    ),
}
SMALL = {
    "a comparison": Txn([Compare(b"k", Target.VALUE, Relation.NOT_EQUAL, b"x", b"l")], [PUT]),
    "counting": Txn([], [PUT, *[Range(b"\0", FROM_KEY, count_only=True)] * 9]),
    "counting the past": Txn([], [PUT, Range(b"\0", FROM_KEY, revision=300, count_only=True)]),
    "the first ones of the past": Txn([], [PUT, Range(b"\0", FROM_KEY, 9, revision=300)]),
    "the first ones by value": Txn(
        [], [PUT, Range(b"\0", FROM_KEY, 9, sort_by=Target.VALUE, descending=True)]
    ),
    "the first ones by value, of the past": Txn(
        [], [PUT, Range(b"\0", FROM_KEY, 9, 300, sort_by=Target.VALUE, keys_only=True)]
    ),
    "keys by value": Txn([], [PUT, Range(b"\0", FROM_KEY, sort_by=Target.VALUE, keys_only=True)]),
    "deletions": Txn([], [PUT, DeleteRange(b"k", b"l")]),
    "a lease with all keys": Revoke(7),
}


def filled(version: int) -> AppliedStore:
    """2 MB in 500 keys, half of them of a lease, and 11 of 100 kB."""
    store = AppliedStore()
    store.machine.act_as(version)
    store.do(Grant(5000, 7))
    for number in range(500):
        store.do(Put(b"k%03d" % number, b"%03d" % (number % 7) + bytes(4000), lease=7 * (number % 2)))
    for number in range(11):
        store.do(Put(b"large %d" % number, bytes(100_000)))
    return store


def built_by(work: Callable[[], Any]) -> int:
    """Bytes in Python's memory, at most at one time, that were not there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("command", LARGE.values(), ids=LARGE)
def test_what_is_above_the_bound_is_carried_out_and_not_built(version: int, command: Command) -> None:
    _is_carried_out_and_not_built(version, command)


def many_ranges_are_not_built() -> None:
    with smaller_bounds():
        _is_carried_out_and_not_built(2, LARGE["many ranges"])


def _is_carried_out_and_not_built(version: int, command: Command) -> None:
    store = filled(version)
    batch = store.batch(command)
    given: list[FirstResults] = []
    built = built_by(lambda: given.append(store.machine.apply(batch, store.index)))
    (results,) = given
    assert results.results == [requests.CARRIED_OUT]
    assert list(results.unkept) == [0] * (version == 1), "as if it had been there"
    assert built < {1: KEPT_BYTES, 2: ANSWER_BYTES}[version] * 1.2 + SLICE_BYTES
    assert store.revision == store.index
    if isinstance(command, Txn):
        assert store.get(b"z") == b"done"
    if "deletion" in str(command):
        assert store.ask(Range(b"k", b"l", count_only=True)).count == 0


@pytest.mark.parametrize("command", SMALL.values(), ids=SMALL)
def test_an_answer_that_is_small_is_not_built_out_of_much(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(2)
    monkeypatch.setattr(keyspace, "SLICE_KEYS", 20)
    monkeypatch.setattr(keyspace, "MOST_WRITTEN_BYTES", 50_000)
    monkeypatch.setattr(ranges, "SLICE_BYTES", 50_000)
    batch = store.batch(command)
    given: list[FirstResults] = []
    built = built_by(lambda: given.append(store.machine.apply(batch, store.index)))
    (result,) = given[0].results
    assert isinstance(result, bytes)
    read_answer(result, KINDS[type(command)])
    assert built < 1_000_000
    assert store.revision == store.index


def test_who_reads_a_refusal_hears_that_the_outcome_is_known_and_the_answer_is_not() -> None:
    with pytest.raises(ResultUnknown, match="carried out; its answer is above 33554432 bytes"):
        read_answer(requests.CARRIED_OUT, TxnAnswer)


def test_the_words_that_all_members_keep_are_the_same_for_ever() -> None:
    assert requests.CARRIED_OUT == (
        b"\x93\xcd\x01\xc4\xd9Dit was carried out; its answer is above 33554432 bytes: give a limit\x00"
    )


def test_the_log_says_from_which_entry_on_refusals_are_kept() -> None:
    """Before it, who repeats such a command finds nothing, as with the release before."""
    stretches = large_answers.log()
    runner = large_answers.runner(KeyValueMachine(), 1)
    for stretch in stretches[:13]:
        apply(runner, stretch)
    apply(runner, stretches[13])
    assert runner._kept.encode() == b""
    binding = EntryBatch.control(EntryKind.MACHINE, encode_body(MachineBinding("kv", 1, 2)))
    binding.stamp(stretches[13].last_index + 1, 1, np.zeros(1), 0)
    apply(runner, binding)
    session = stretches[13]
    session.stamp(binding.last_index + 1, 1, np.zeros(session.count), 0)
    assert apply(runner, session) == [requests.CARRIED_OUT]
    receipt = AppendReceipt(1, session.last_index, 1, Durability.SYNC)
    found = runner.results_of("p", receipt)
    assert found is not None
    assert found.results == (requests.CARRIED_OUT,)


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_saved_does_not_depend_on_how_much_is_applied_at_once(version: int) -> None:
    stretches = large_answers.log()
    saved = []
    for batch in (stretches, [EntryBatch.concatenate(stretches)]):
        store = KeyValueMachine()
        store.act_as(version)
        runner = large_answers.runner(store, version)
        for stretch in batch:
            apply(runner, stretch)
        saved.append(large_answers.saved_whole(runner))
    assert saved[0] == saved[1]


def test_a_batch_whose_answers_are_large_in_all_is_applied_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "MOST_RESULT_BYTES", 300_000)
    store = filled(2)
    command = Txn([], [PUT, Range(b"k", b"k1")])
    batch = store.batch(*[command] * 10)
    taken = 0
    while batch.count:
        results = store.machine.apply(batch, batch.first_index).results
        assert sum(len(result) for result in results) < 300_000 + ANSWER_BYTES  # type: ignore[arg-type]
        assert 0 < len(results) < 10
        taken += len(results)
        batch = batch.slice(len(results), batch.count)
    assert taken == 10
    assert store.ask(Range(b"z")).kvs[0].version == 10


def test_a_question_whose_answer_would_be_large_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "MAX_ANSWER_BYTES", ANSWER_BYTES)
    store = filled(2)
    questions = [EVERYTHING, Txn([], [EVERYTHING] * 100), Range(b"\0", FROM_KEY, revision=300)]
    for question in questions:
        assert built_by(partial(store.machine.query, encode(question))) < 2 * ANSWER_BYTES
        with pytest.raises(InvalidRequest, match="above 500000 bytes: give a limit"):
            read_answer(store.machine.query(encode(question)), RangeAnswer)


def test_leases_are_listed_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(2)
    assert len(read_answer(store.machine.query(encode(LeaseKeys(7))), LeaseKeysAnswer)[1].keys) == 250
    assert read_answer(store.machine.query(encode(Leases())), LeasesAnswer)[1].leases == [(7, 5000, 1)]
    monkeypatch.setattr(machine, "MAX_ANSWER_BYTES", 1000)
    store.do_all(*[Grant(5000) for _ in range(200)])
    for question in (Leases(), LeaseKeys(7)):
        with pytest.raises(InvalidRequest, match="above 1000 bytes"):
            read_answer(store.machine.query(encode(question)), LeasesAnswer)


def test_history_comes_in_pieces_and_never_part_of_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_ANSWER_BYTES", 20_000)
    store = filled(2)
    asked = History(2, b"k", b"l", limit_bytes=1 << 60)
    seen = []
    while asked.first_revision < 402:
        answer = store.ask(asked)
        seen += [event.kv.mod_revision for event in answer.events]
        asked = History(answer.next_revision, b"k", b"l", limit_bytes=1 << 60)
    assert seen[:400] == list(range(2, 402))
    store.do(DeleteRange(b"k", b"l"))
    gone = store.revision
    with pytest.raises(InvalidRequest, match=f"above 20000 bytes.* watch from revision {gone + 1} on"):
        store.ask(History(gone, b"k", b"l"))


class Listener:
    """`Session`: what one watch is told."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.told: list[Response] = []

    def send(self, message: Response) -> None:
        self.told.append(message)

    def abort(self) -> None:
        raise AssertionError

    def events(self) -> list[tuple[int, bytes]]:
        found = []
        for message in self.told:
            assert isinstance(message, EventsResponse)
            events = msgspec.convert(msgspec.msgpack.decode(encode(message.events)), list[Event])
            found += [(event.kv.mod_revision, event.kv.key) for event in events]
        return found


def test_watches_read_from_history_what_is_too_much_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "MOST_WRITTEN_BYTES", 1_000)
    feed = Feed()
    store = AppliedStore(KeyValueMachine(feed=feed))
    hub = WatchHub(lambda question, done: done(store.machine.query(question)))
    one, some = Listener(), Listener()
    hub.begins(0)
    hub.add(one, WatchRequest(request_id=1, key=b"b", first_revision=1))
    hub.add(some, WatchRequest(request_id=1, key=b"k", end=b"l", first_revision=1))
    feed.take()
    store.do_all(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"k", b"3"))
    many = Txn([], [Put(b"k%d" % number, bytes(100)) for number in range(50)])
    store.do_all(Put(b"b", b"4"), many, Put(b"k", b"5"), many, DeleteRange(b"k", b"l"), Put(b"b", b"6"))
    changes = [change for change in feed.take() if isinstance(change, Changed)]
    assert [change.revision for change in changes if not change.written] == [5, 7, 8]
    hub.changed(changes)
    for now_ms in range(3):
        hub.tick(float(now_ms))
    assert one.events() == [(2, b"b"), (4, b"b"), (9, b"b")]
    keys = sorted([b"k%d" % number for number in range(50)])
    in_order = [b"k%d" % number for number in range(50)]
    assert some.events() == [
        (3, b"k"),
        *[(5, key) for key in in_order],
        (6, b"k"),
        *[(7, key) for key in in_order],
        *[(8, key) for key in (b"k", *keys)],
    ]
    store.do(Put(b"k", b"7"))
    hub.changed([change for change in feed.take() if isinstance(change, Changed)])
    assert some.events()[-1] == (10, b"k"), "it is in step again"


def test_a_watch_ends_at_a_revision_that_is_too_large_for_any_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would come back for it for ever."""
    monkeypatch.setattr(machine, "MAX_ANSWER_BYTES", 20_000)
    store = filled(2)
    hub = WatchHub(lambda question, done: done(store.machine.query(question)))
    hub.begins(store.revision)
    store.do(DeleteRange(b"k", b"l"))
    hub.delivered_revision = store.revision
    listener = Listener()
    hub.add(listener, WatchRequest(request_id=1, key=b"k", end=b"l", first_revision=store.revision))
    ended = listener.told[-1]
    assert isinstance(ended, ErrorResponse)
    assert ended.code == InvalidRequest.code
    assert f"watch from revision {store.revision + 1} on" in ended.message
    assert len(hub) == 0


class Unread(Listener):
    """A client that asks and does not read."""

    def send(self, message: Response) -> None:
        super().send(message)
        self.unsent_bytes += len(encode(message))


def test_answers_to_commands_that_nobody_reads_are_not_piled_up() -> None:
    """400 of 11 KB in all made a member grow to 1.8 GB. Those to questions wait for who reads."""
    nobody: Any = None
    store = service.KeyValueService(nobody, Feed(), service.StoreOptions(), lambda: 0.0)
    writes = Unread()
    for number in range(20):
        store._commanded(writes, number, requests.done(1, bytes(requests.MAX_ANSWER_BYTES // 2)))
    store._commanded(writes, 20, requests.done(1, (1, None)))
    kinds = [type(message) for message in writes.told]
    assert kinds[:20] == [AnswerResponse] * 4 + [ErrorResponse] * 16
    assert kinds[20] is AnswerResponse, "small ones always are"
    assert isinstance(error_of(cast(ErrorResponse, writes.told[4])), ResultUnknown)


# ---------------------------------------------------------------- what is not let in


def nested(ranged: Range, count: int) -> Txn:
    inner = Txn([], [ranged] * (count - 2), [ranged] * (count // 2))
    return Txn([], [PUT, inner], [ranged, Txn([], [ranged] * (count - 1))])


OPEN = Range(b"k", b"l", keys_only=True)


@pytest.mark.parametrize("ranged", [OPEN, Range(b"k", b"l", limit=10_001)])
def test_ranges_without_a_limit_in_a_transaction_that_writes_are_few(ranged: Range) -> None:
    for txn in (Txn([], [PUT, *[ranged] * 8], [ranged] * 8), nested(ranged, 8)):
        requests.check(txn, 100)
    for txn in (Txn([], [PUT, *[ranged] * 9]), Txn([], [PUT], [ranged] * 9), nested(ranged, 9)):
        with pytest.raises(InvalidRequest, match=r"at most 8 ranges .* this one has 9"):
            requests.check(txn, 100)


def test_inner_transactions_do_not_multiply_what_is_looked_over() -> None:
    """A thousand comparisons of everything answer with nothing, and take minutes."""
    holds = Compare(b"k", Target.VERSION, Relation.GREATER, 0, b"l")
    few = Range(b"k", b"l", limit=1, sort_by=Target.MOD)
    requests.check(Txn([holds] * 128, [PUT, *[few] * 127], [few] * 128), 100)
    inner = Txn([holds] * 20, [few] * 5)
    requests.check(Txn([holds] * 6, [inner] * 10, [inner] * 9), 100)
    for txn in (Txn([holds] * 7, [inner] * 10), Txn([holds] * 7, [], [inner] * 10)):
        with pytest.raises(InvalidRequest, match=r"at most 256 ranges, .* looks over 257"):
            requests.check(txn, 100)
    with pytest.raises(InvalidRequest, match="at most 256 ranges"):
        read_answer(AppliedStore().machine.query(encode(Txn([holds] * 7, [inner] * 10))), TxnAnswer)


def test_ranges_that_are_bounded_or_alone_are_as_many_as_ever() -> None:
    few = [Range(b"k"), Range(b"k", b"l", limit=10_000), Range(b"k", b"l", count_only=True)]
    requests.check(Txn([], [PUT, *few * 40]), 100)
    requests.check(Txn([], [OPEN] * 100), 100)


class Appends:
    """`NodeHandle`: what it is to append."""

    def __init__(self) -> None:
        self.entered: list[Callable[[], None]] = []
        self.appended: list[list[Command]] = []

    def enter(self, act: Callable[[], None]) -> None:
        self.entered.append(act)

    def append(self, batch: EntryBatch, *_: object) -> None:
        self.appended.append([decode_command(body) for body in batch.bodies()])


def test_a_command_that_may_answer_much_has_an_append_of_its_own() -> None:
    """Or others would lose their answers with it."""
    member = Appends()
    commands = CommandBatches(member)  # type: ignore[arg-type]
    small = [Put(b"a", b"1"), Txn([], [PUT, Range(b"a")]), DeleteRange(b"a", prev_kv=True)]
    large = [Txn([], [Txn([], [OPEN])]), DeleteRange(b"a", b"b", prev_kv=True)]
    order: list[Command] = [*small, large[0], *small, *large]
    for command in order:
        commands.add(encode(command), print, alone=requests.may_answer_much(command))
    for act in member.entered:
        act()
    assert member.appended == [small, [large[0]], small, [large[0]], [large[1]]]


@pytest.mark.parametrize("outcome", [requests.CARRIED_OUT, bytes(1_001)])
def test_who_is_told_of_it_is_told_by_an_error_that_old_clients_know(
    outcome: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where version 1 has built an answer that is too large to be sent."""
    monkeypatch.setattr(service, "MAX_ANSWER_BYTES", 1_000)
    listener = Listener()
    service.KeyValueService._commanded(None, listener, 5, outcome)  # type: ignore[arg-type]
    (message,) = listener.told
    assert isinstance(message, ErrorResponse)
    assert message.request_id == 5
    error = error_of(message)
    assert isinstance(error, ResultUnknown)
    assert "carried out" in str(error)
    assert not error.retriable


def test_a_log_may_hold_what_is_not_let_in_any_more() -> None:
    store = filled(2)
    assert store.do_all(Txn([], [PUT, *[EVERYTHING] * 100])) == [requests.CARRIED_OUT]
    assert store.get(b"z") == b"done"


# ---------------------------------------------------------------- an engine with a disk


def rocks(path: Path) -> tuple[RocksEngine, AppliedStore]:
    engine = RocksEngine(path)
    return engine, AppliedStore(KeyValueMachine(lambda: engine))


def fill(store: AppliedStore) -> None:
    for number in range(200):
        store.do(Put(b"k%03d" % number, b"%03d" % number + bytes(4000)))


def test_rocksdb_holds_little_of_what_one_command_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, store = rocks(tmp_path)
    fill(store)
    monkeypatch.setattr(rocks_engine, "MOST_PENDING_BYTES", 50_000)
    monkeypatch.setattr(keyspace, "SLICE_KEYS", 20)
    monkeypatch.setattr(keyspace, "MOST_WRITTEN_BYTES", 50_000)
    batch = store.batch(Txn([], [Put(b"a", b"1"), DeleteRange(b"k", b"l"), Range(b"a", FROM_KEY)]))
    assert built_by(lambda: store.machine.apply(batch, store.index)) < 300_000
    assert engine.applied() == Applied.of_last(batch)
    assert store.ask(Range(b"\0", FROM_KEY)).count == 1
    assert store.ask(Range(b"\0", FROM_KEY, revision=200)).count == 200
    other = AppliedStore()
    fill(other)
    other.machine.apply(batch, store.index)
    assert saved(store.machine) == saved(other.machine)
    engine.close()


@pytest.mark.parametrize("writes", [1, 2, 7])
def test_rocksdb_names_no_entry_while_it_has_a_part_of_one(tmp_path: Path, writes: int) -> None:
    rocksdb_names_no_entry_while_it_has_a_part_of_one(tmp_path, writes)


def rocksdb_names_no_entry_while_it_has_a_part_of_one(path: Path, writes: int = 2) -> None:
    """A process that ends there begins anew, from a snapshot and the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks_engine, "MOST_PENDING_BYTES", 50_000)
        _a_part_names_no_entry(path, writes)


def _a_part_names_no_entry(path: Path, writes: int) -> None:
    engine, store = rocks(path)
    fill(store)
    write, written = engine._write, 0

    def killed(named: bytes | None) -> None:
        nonlocal written
        write(named)
        written += 1
        if written == writes:
            raise MemoryError("the process ends")

    engine._write = killed  # type: ignore[method-assign]
    with pytest.raises(ApplyFailure):
        store.do(DeleteRange(b"k", b"l"))
    engine._db.flush()
    engine.close()
    engine, store = rocks(path)
    assert store.machine.applied() is None
    assert store.revision == 0, "nothing is left of it"
    assert store.ask(Range(b"\0", FROM_KEY)).count == 0
    engine.close()


def test_the_version_is_kept_with_what_follows_from_it(tmp_path: Path) -> None:
    engine, store = rocks(tmp_path)
    assert store.machine.kept_version() == 1
    store.do(PUT)
    store.machine.act_as(2)
    store.do(PUT)
    engine.close()
    engine, store = rocks(tmp_path)
    assert store.machine.kept_version() == 2
    store.index = 2
    store.do_all(*[Put(b"k%d" % number, bytes(100_000)) for number in range(6)])
    batch = store.batch(Txn([], [PUT, EVERYTHING]))
    assert store.machine.apply(batch, store.index).unkept == []
    copy = KeyValueMachine()
    copy.load(Saved(saved(store.machine)))
    assert copy.kept_version() == 1, "a snapshot names it, and who loads one says so"
    store.machine.clear()
    assert store.machine.kept_version() == 1
    engine.close()


def test_sweeping_leaves_nothing_uncommitted(tmp_path: Path) -> None:
    engine, store = rocks(tmp_path)
    for number in range(2000):
        store.do(Put(b"a", b"%d" % number))
    store.do(Compact(2000))
    while not store.ask(StoreStats()).swept:
        assert not engine._pending
    engine.close()
