"""What commands do to the store: keys, revisions, transactions, leases, history, compaction."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
)
from quorumlog.kv.requests import (
    FROM_KEY,
    Command,
    Compact,
    Compare,
    DeleteRange,
    Grant,
    History,
    KeyValue,
    LeaseKeys,
    Put,
    Question,
    Range,
    Relation,
    Revoke,
    StoreStats,
    Target,
    Txn,
    check,
    decode_command,
    decode_question,
    encode,
)
from quorumlog.kv.store.engine import CURRENT, Engine, MemoryEngine, RocksEngine
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.state_machine import Applied
from tests.kv.applied import AppliedStore, Saved, saved
from tests.store.made_logs import flip


@pytest.fixture(params=["memory", "rocksdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    made: list[Engine] = []

    def make() -> Engine:
        engine = MemoryEngine() if request.param == "memory" else RocksEngine(tmp_path / str(len(made)))
        made.append(engine)
        return engine

    yield make
    for each in made:
        each.close()


@pytest.fixture
def store(engine: Callable[[], Engine]) -> AppliedStore:
    return AppliedStore(KeyValueMachine(engine))


def test_a_revision_is_the_index_of_the_entry_that_changed_a_key(store: AppliedStore) -> None:
    store.index = 40
    store.do(Put(b"a", b"1"))
    store.do(Grant(5000))
    store.do(DeleteRange(b"nothing"))
    assert store.revision == 41, "what changes no key makes no revision"
    store.do(Put(b"a", b"2"))
    assert store.ask(Range(b"a")).kvs == [KeyValue(b"a", 41, 44, 2, b"2")]
    store.do(DeleteRange(b"a"))
    store.do(Put(b"a", b"3"))
    assert store.ask(Range(b"a")).kvs == [KeyValue(b"a", 46, 46, 1, b"3")]


def test_commands_of_one_batch_see_each_other(store: AppliedStore) -> None:
    first = Txn([Compare(b"a", Target.CREATE, Relation.EQUAL, 0)], [Put(b"a", b"1")], [Range(b"a")])
    answers = store.do_all(first, Put(b"b", b"2"), first)
    assert len(answers) == 3
    assert store.get(b"a") == b"1"
    assert store.ask(Range(b"a")).kvs[0].version == 1


def test_ranges_end_where_they_say(store: AppliedStore) -> None:
    keys = [b"\0", b"a", b"a\0", b"aa", b"ab", b"b", b"\xff"]
    store.do_all(*[Put(key, key) for key in keys])

    def found(asked: Range) -> list[bytes]:
        return [kv.key for kv in store.ask(asked).kvs]

    assert found(Range(b"\0", FROM_KEY)) == keys
    assert found(Range(b"a", b"b")) == [b"a", b"a\0", b"aa", b"ab"]
    assert found(Range(b"aa", FROM_KEY)) == [b"aa", b"ab", b"b", b"\xff"]
    assert found(Range(b"b", b"a")) == []
    assert found(Range(b"a", b"b", limit=2, descending=True)) == [b"ab", b"aa"]
    part = store.ask(Range(b"a", b"b", limit=3))
    assert (part.more, part.count, len(part.kvs)) == (True, 4, 3)
    assert store.ask(Range(b"a", b"b", count_only=True)).count == 4
    assert store.ask(Range(b"a", keys_only=True)).kvs[0].value == b""
    assert found(Range(b"a", b"b", sort_by=Target.MOD, descending=True, limit=1)) == [b"ab"]
    assert found(Range(b"\0", FROM_KEY, min_mod=3, max_mod=4)) == [b"a\0", b"aa"]


def test_a_transaction_takes_one_branch_at_one_revision(store: AppliedStore) -> None:
    store.do(Put(b"a", b"1"))
    txn = Txn(
        [Compare(b"a", Target.VALUE, Relation.EQUAL, b"1")],
        [Put(b"b", b"x", prev_kv=True), Range(b"b"), DeleteRange(b"a", prev_kv=True)],
        [Put(b"c", b"y")],
    )
    answer = store.do(txn)
    assert answer.succeeded
    put, ranged, deleted = answer.answers
    assert put.prev_kv is None
    assert ranged.kvs == [KeyValue(b"b", 2, 2, 1, b"x")], "it reads what it has written"
    assert deleted.prev_kvs == [KeyValue(b"a", 1, 1, 1, b"1")]
    assert not store.do(txn).succeeded
    assert store.get(b"c") == b"y"
    history = store.ask(History(1, b"\0", FROM_KEY))
    assert [(e.kv.mod_revision, e.kv.key, e.is_deletion) for e in history.events] == [
        (1, b"a", False),
        (2, b"b", False),
        (2, b"a", True),
        (3, b"c", False),
    ]


def test_a_missing_key_compares_as_zeros_and_has_no_value(store: AppliedStore) -> None:
    def holds(compare: Compare) -> bool:
        return bool(store.do(Txn([compare])).succeeded)

    assert holds(Compare(b"a", Target.VERSION, Relation.EQUAL, 0))
    assert holds(Compare(b"a", Target.MOD, Relation.LESS, 1))
    assert not holds(Compare(b"a", Target.VALUE, Relation.NOT_EQUAL, b"1"))
    store.do_all(Put(b"a1", b""), Put(b"a2", b""))
    assert holds(Compare(b"a", Target.VERSION, Relation.EQUAL, 1, b"b"))
    assert not holds(Compare(b"a", Target.CREATE, Relation.EQUAL, store.revision, b"b"))


def test_what_a_transaction_refuses_changes_nothing(store: AppliedStore) -> None:
    store.do(Put(b"a", b"1"))
    with pytest.raises(LeaseNotFound):
        store.do(Txn([], [Put(b"b", b"2"), Put(b"c", b"3", lease=99)]))
    with pytest.raises(KeyNotFound):
        store.do(Txn([], [Put(b"b", b"2"), Put(b"c", b"", keeps_value=True)]))
    with pytest.raises(FutureRevision):
        store.do(Txn([], [Put(b"b", b"2"), Range(b"c", revision=1000)]))
    assert store.revision == 1
    assert store.get(b"b") is None


def test_a_lease_ends_with_its_keys_at_one_revision(store: AppliedStore) -> None:
    lease = store.do(Grant(5000)).lease
    assert lease == 1
    store.do_all(
        Put(b"a", b"1", lease=lease), Put(b"b", b"2", lease=lease), Put(b"c", b"3", lease=lease)
    )
    store.do(Put(b"b", b"4"))  # parts from it
    store.do(Put(b"c", b"5", keeps_lease=True))
    with pytest.raises(LeaseExists):
        store.do(Grant(5000, lease))
    with pytest.raises(LeaseNotFound):
        store.do(Revoke(lease, granted_at=77))
    assert store.do(Revoke(lease)).deleted == 2
    assert [kv.key for kv in store.ask(Range(b"\0", FROM_KEY)).kvs] == [b"b"]
    events = store.ask(History(store.revision, b"\0", FROM_KEY)).events
    assert [(e.kv.key, e.is_deletion) for e in events] == [(b"a", True), (b"c", True)]
    with pytest.raises(LeaseNotFound):
        store.do(Put(b"d", b"6", lease=lease))


def test_the_past_is_read_until_it_is_compacted(store: AppliedStore) -> None:
    for number in range(1, 6):
        store.do(Put(b"a", b"%d" % number))
    store.do(DeleteRange(b"a"))
    store.do(Put(b"b", b""))
    assert [store.get(b"a", revision) for revision in range(1, 8)] == [
        b"1", b"2", b"3", b"4", b"5", None, None,
    ]  # fmt: skip
    assert [kv.value for kv in store.ask(Range(b"\0", FROM_KEY, revision=4)).kvs] == [b"4"]
    store.do(Compact(4))
    with pytest.raises(Compacted) as refusal:
        store.get(b"a", 3)
    assert refusal.value.compacted_revision == 4
    assert store.get(b"a", 4) == b"4", "what stood at the compacted revision is kept"
    with pytest.raises(Compacted):
        store.ask(History(3, b"a"))
    assert [e.kv.mod_revision for e in store.ask(History(4, b"a")).events] == [4, 5, 6]
    with pytest.raises(Compacted):
        store.do(Compact(4))
    store.do(Compact(4, leads=True))
    with pytest.raises(FutureRevision):
        store.do(Compact(1000))
    with pytest.raises(FutureRevision):
        store.get(b"a", 1000)


def test_a_page_looks_at_no_more_than_it_tells(
    store: AppliedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and at an earlier revision; others wait meanwhile."""
    store.do_all(*[Put(b"%03d" % number, b"") for number in range(200)])
    revision = store.revision
    store.do(DeleteRange(b"000", b"150"))
    engine = store.machine.keyspace.engine
    scan, looked = type(engine).scan, [0]

    def counting(*asked: object, **options: object) -> Iterator[tuple[bytes, bytes]]:
        for each in scan(*asked, **options):  # type: ignore[arg-type]
            looked[0] += 1
            yield each

    monkeypatch.setattr(type(engine), "scan", counting)
    for at, start, backwards in (
        (revision, b"020", False),
        (revision, b"020", True),
        (0, b"160", False),
    ):
        page = Range(start, FROM_KEY, 10, at, descending=backwards, without_count=True)
        looked[0] = 0
        found = store.ask(page)
        assert (len(found.kvs), found.more) == (10, True)
        assert looked[0] < 60
        counted = store.ask(msgspec.structs.replace(page, without_count=False))
        assert (counted.kvs, counted.count) == (found.kvs, 180 if at else 40)
    looked[0] = 0
    assert store.ask(StoreStats()).keys == 50
    assert store.ask(Range(b"\0", FROM_KEY, count_only=True)).count == 50
    assert not looked[0]


def test_compaction_frees_what_nobody_can_read_any_more(store: AppliedStore) -> None:
    for number in range(300):
        store.do_all(Put(b"a", b"%d" % number), Put(b"gone %d" % number, b""))
    store.do(DeleteRange(b"gone", b"gonf"))
    store.do(Put(b"a", b"last"))
    before = sum(1 for _ in store.machine.keyspace.engine.scan(1, b"", None))
    store.do(Compact(store.revision))
    for _ in range(1000):
        if store.ask(StoreStats()).swept:
            break
    engine = store.machine.keyspace.engine
    assert before > 600
    assert engine.count(1, b"", None) == 0
    assert engine.count(2, b"", None) == 1
    assert store.get(b"a") == b"last"


def test_a_saved_store_is_the_same_in_either_engine(engine: Callable[[], Engine]) -> None:
    store = AppliedStore(KeyValueMachine(engine))
    lease = store.do(Grant(5000)).lease
    for number in range(50):
        store.do(Put(b"key %d" % (number % 7), b"%d" % number, lease=lease if number % 3 else 0))
    store.do(DeleteRange(b"key 3"))
    store.do(Compact(20))
    data = saved(store.machine)
    for other in (AppliedStore(KeyValueMachine(engine)), AppliedStore(KeyValueMachine())):
        other.do(Put(b"of before", b""))
        other.machine.load(Saved(data))
        other.index = store.index
        assert saved(other.machine) == data
        assert other.get(b"key 1", 30) == store.get(b"key 1", 30)
        assert other.ask(History(20, b"\0", FROM_KEY)) == store.ask(History(20, b"\0", FROM_KEY))
        other.do(Revoke(lease))
        assert other.ask(Range(b"\0", FROM_KEY)).kvs != store.ask(Range(b"\0", FROM_KEY)).kvs
    store.do(Revoke(lease))
    assert saved(store.machine) == saved(other.machine)


def test_a_store_that_changes_while_it_is_saved_is_saved_as_it_was(
    engine: Callable[[], Engine],
) -> None:
    store = AppliedStore(KeyValueMachine(engine, slice_items=3))
    lease = store.do(Grant(5000)).lease
    for number in range(40):
        store.do(Put(b"key %d" % (number % 11), b"%d" % number, lease=lease * (number % 2)))
    store.do(DeleteRange(b"key 2", b"key 4"))
    data = saved(store.machine)
    writer = Saved()
    slices = store.machine.save_slices(writer)
    for number, _ in enumerate(slices):
        if number > 30:
            continue
        store.do(DeleteRange(b"key %d" % ((number * 5 + 1) % 11)))
        store.do(Put(b"key %d" % (number * 3 % 11), b"later"))
        store.do(Put(b"key 2", b"again", lease=lease))
    assert bytes(writer.data) == data
    other = AppliedStore(KeyValueMachine(engine))
    other.machine.load(Saved(bytes(writer.data)))
    assert saved(other.machine) == data


def test_rocksdb_goes_on_from_what_it_has_kept(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    store = AppliedStore(KeyValueMachine(lambda: engine))
    assert store.machine.applied() is None
    store.do_all(Put(b"a", b"1"), Grant(5000), Put(b"b", b"2", lease=2))
    kept = store.machine.applied()
    assert kept is not None and kept.index == 3
    engine.close()
    engine = RocksEngine(tmp_path)
    again = AppliedStore(KeyValueMachine(lambda: engine), index=3)
    assert again.machine.applied() == kept
    assert again.ask(StoreStats()).keys == 2
    assert again.do(Revoke(2)).deleted == 1
    assert again.ask(StoreStats()).keys == 1
    assert again.get(b"a") == b"1"
    engine.close()


def _given(engine: RocksEngine) -> RocksEngine:
    return engine


def _filled_rocks(path: Path) -> Applied:
    """Several files of data, so that a removal has several steps."""
    engine = RocksEngine(path)
    store = AppliedStore(KeyValueMachine(lambda: engine))
    for number in range(4):
        store.do(Put(b"%d" % number, b"x" * 100))
        engine._db.flush()
    applied = engine.applied()
    engine.close()
    assert applied is not None
    return applied


class _Killed(BaseException):
    """The process ended here."""


@contextmanager
def _killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[list[str]]:
    """Before so many changes of names; the list has those that were made."""
    made: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        done: Callable[..., object] = getattr(os, name)

        def change(*arguments: object, **options: object) -> object:
            if len(made) == step:
                raise _Killed
            made.append(name)
            return done(*arguments, **options)

        return change

    with monkeypatch.context() as patched:
        for name in ("rename", "mkdir", "unlink", "rmdir", "fsync"):
            patched.setattr(os, name, counted(name))
        yield made


@pytest.mark.parametrize("is_damaged", [False, True], ids=["clear", "cannot be opened"])
def test_rocksdb_opens_after_a_kill_at_any_step_of_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """As it was, or empty; what is damaged is set aside, once."""
    for step in count():
        path = tmp_path / str(step) / "kv-rocksdb"
        path.parent.mkdir()
        applied = _filled_rocks(path)
        if is_damaged:
            next(path.glob("*.sst")).unlink()
            shutil.copytree(path, f"{path}.set-aside")
        engine = None if is_damaged else RocksEngine(path)
        with _killed_at(monkeypatch, step) as made:
            try:
                if engine is None:
                    RocksEngine(path).close()
                else:
                    engine.clear()
                    engine.close()
            except _Killed:
                assert len(made) == step
        engine = RocksEngine(path)
        kept = engine.applied()
        assert kept is None or (kept == applied and not is_damaged), step
        machine = KeyValueMachine(partial(_given, engine))
        store = AppliedStore(machine, index=0 if kept is None else kept.index)
        store.do(Put(b"a", b"1"))
        assert store.get(b"a") == b"1"
        engine.close()
        held = sorted(each.name for each in path.parent.iterdir())
        assert held == (["kv-rocksdb", "kv-rocksdb.set-aside"] if is_damaged else ["kv-rocksdb"]), step
        if len(made) < step:
            break
    assert step > 5


def test_a_rocksdb_directory_that_cannot_be_opened_is_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kv-rocksdb"
    for name in ("MANIFEST", "CURRENT", "0"):
        _filled_rocks(path)
        next(path.glob(f"{name}*")).unlink()
        engine = RocksEngine(path)
        assert engine.applied() is None
        engine.close()
        assert f"{path} cannot be opened" in caplog.records[-1].getMessage()
        assert f"set aside as {path}.set-aside" in caplog.records[-1].getMessage()
        assert next(Path(f"{path}.set-aside").glob("LOCK")).exists()
        shutil.rmtree(path)
    monkeypatch.setattr("quorumlog.kv.store.engine.MAX_SET_ASIDE_BYTES", 1000)
    _filled_rocks(path)
    next(path.glob("MANIFEST*")).unlink()
    RocksEngine(path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["kv-rocksdb"]


@pytest.mark.parametrize("reverse", [False, True])
def test_damage_within_rocksdb_ends_no_scan_early_and_is_loaded_anew(
    tmp_path: Path, reverse: bool
) -> None:
    path = tmp_path / "kv-rocksdb"
    engine = RocksEngine(path)
    store = AppliedStore(KeyValueMachine(lambda: engine))
    for number in range(200):
        store.do(Put(b"%03d" % number, os.urandom(300)))
    engine._db.flush()
    engine.close()
    (file,) = path.glob("*.sst")
    flip(file, file.stat().st_size // 2)
    engine = RocksEngine(path)
    with pytest.raises(Exception, match="Corruption"):
        list(engine.scan(CURRENT, b"", None, reverse=reverse))
    engine.close()
    engine = RocksEngine(path)
    assert engine.applied() is None and not list(engine.scan(CURRENT, b"", None))
    engine.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kv-rocksdb", "kv-rocksdb.set-aside"]


def test_a_rocksdb_directory_that_cannot_say_what_it_holds_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "kv-rocksdb"
    _filled_rocks(path)
    for file in path.glob("*.sst"):
        flip(file, 10)
    engine = RocksEngine(path)
    assert engine.applied() is None
    engine.close()


def test_a_rocksdb_directory_that_is_only_out_of_reach_is_left_alone(tmp_path: Path) -> None:
    applied = _filled_rocks(tmp_path / "kv-rocksdb")
    engine = RocksEngine(tmp_path / "kv-rocksdb")
    with pytest.raises(Exception, match="lock hold by current process"):
        RocksEngine(tmp_path / "kv-rocksdb")
    assert engine.applied() == applied
    engine.close()


numbers = st.sampled_from([0, 1, 2, 3, 2**32, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1])
names = st.sampled_from([b"", b"\0", b"a", b"\xff"])
any_range = st.builds(
    Range, names, names, numbers, numbers, st.sampled_from(list(Target)), st.booleans(), st.booleans(),
    st.booleans(), numbers, numbers, numbers, numbers,
)  # fmt: skip
any_compare = st.builds(
    Compare,
    names,
    st.sampled_from([target for target in Target if target is not Target.KEY]),
    st.sampled_from(list(Relation)),
    numbers,
    names,
)
any_command = st.one_of(
    st.builds(Put, names, st.just(b""), numbers),
    st.builds(DeleteRange, names, names),
    st.builds(Txn, st.lists(any_compare, max_size=1), st.lists(any_range, max_size=2)),
    st.builds(Grant, numbers, numbers),
    st.builds(Revoke, numbers),
    st.builds(Compact, numbers, st.booleans()),
)
any_question = any_range | st.builds(History, numbers, names, names) | st.builds(LeaseKeys, numbers)


@settings(max_examples=300, deadline=None)
@given(st.lists(any_command, max_size=8), any_question)
@example([Grant(5000, 2**63 - 1), Put(b"a", b"", 2**63 - 1), Revoke(2**63 - 1)], LeaseKeys(1))
@example([Txn(success=[Range(b"a", FROM_KEY, limit=2**63 - 1)])], LeaseKeys(1))
@example([Put(b"a", b""), Txn([Compare(b"a", Target.VALUE, Relation.GREATER, 0)])], LeaseKeys(1))
@example(
    [Put(b"a", b""), Txn(success=[DeleteRange(b"a"), Put(b"a", b"", keeps_value=True)])], LeaseKeys(1)
)
@example([Put(b"a", b""), Txn([Compare(b"a", Target.LEASE, Relation.LESS, b"")])], LeaseKeys(1))
def test_no_number_stops_the_store(commands: list[Command], question: Question) -> None:
    """What one member cannot apply, none can, ever."""
    store = AppliedStore()
    for command in commands:
        store.do_all(command)
        store.machine.query(encode(question))


def test_what_is_nested_too_deeply_is_refused() -> None:
    body = b"\x94\x04\x90\x91" * 20_000 + b"\x94\x04\x90\x90\x90" + b"\x90" * 20_000
    for decode in (decode_command, decode_question):
        with pytest.raises(InvalidRequest, match="nested deeper"):
            decode(body)


def test_inner_transactions_count(store: AppliedStore) -> None:
    def nested(outer: int, inner: int) -> Txn:
        put = [Put(b"%d" % number, b"") for number in range(inner)]
        return Txn(success=[Txn(success=put), *[Range(b"a")] * (outer - 1)])

    check(nested(28, 100), 0)
    with pytest.raises(InvalidRequest, match="128 operations"):
        check(nested(29, 100), 0)


changes = st.builds(Put, st.sampled_from([b"a", b"ab", b"b"]), st.just(b"v")) | st.builds(
    DeleteRange, st.sampled_from([b"a", b"ab", b"b"]), st.sampled_from([b"", b"c"])
)
stories = st.lists(changes | st.integers(0, 8).map(lambda back: -back), max_size=30)


@settings(max_examples=150, deadline=None)
@given(before=stories, meanwhile=stories)
def test_what_is_saved_in_slices_is_the_state_at_the_first(
    before: list[Put | DeleteRange | int], meanwhile: list[Put | DeleteRange | int]
) -> None:
    """A number is how far back history is compacted."""
    store = AppliedStore(KeyValueMachine(slice_items=2))

    def do(each: Put | DeleteRange | int) -> None:
        store.do_all(Compact(max(0, store.revision + each)) if isinstance(each, int) else each)

    store.do(Put(b"a", b""))
    for each in before:
        do(each)
    expected = saved(store.machine)
    writer = Saved()
    left = list(meanwhile)
    for _ in store.machine.save_slices(writer):
        if left:
            do(left.pop())
    assert bytes(writer.data) == expected
    other = AppliedStore(KeyValueMachine())
    other.machine.load(Saved(bytes(writer.data)))
    assert saved(other.machine) == expected
    while other.ask(StoreStats()).swept is False:
        pass
    assert saved(other.machine) == expected
