"""No key is written twice by a transaction; who is refused is told the same key by every release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import (
    FROM_KEY,
    DeleteRange,
    KeyBounds,
    Operation,
    Put,
    Txn,
    check,
    check_written_once,
    contains,
    encode,
    written_by,
)


def naive(operations: Sequence[Operation]) -> tuple[set[bytes], list[KeyBounds]]:
    """As the first release looked for them; its words are kept in logs and snapshots."""
    puts: set[bytes] = set()
    deletes = [(each.key, each.end) for each in operations if isinstance(each, DeleteRange)]
    for operation in operations:
        if not isinstance(operation, Txn):
            continue
        then_puts, then_deletes = naive(operation.success)
        else_puts, else_deletes = naive(operation.failure)
        inner = then_puts | else_puts
        _refuse(puts & inner)
        _refuse({key for key in inner if any(contains(b, key) for b in deletes)})
        _refuse({key for key in puts if any(contains(b, key) for b in (*then_deletes, *else_deletes))})
        puts |= inner
        deletes += [*then_deletes, *else_deletes]
    for operation in operations:
        if isinstance(operation, Put):
            key = operation.key
            if key in puts or (deletes and any(contains(each, key) for each in deletes)):
                _refuse({key})
            puts.add(key)
    return puts, deletes


def _refuse(keys: set[bytes]) -> None:
    if keys:
        raise InvalidRequest(f"a transaction writes the key {min(keys)!r} twice")


keys = st.text("abc\0", min_size=1, max_size=3).map(str.encode)
simple = st.one_of(
    st.builds(Put, keys, st.just(b"")),
    st.builds(DeleteRange, keys, st.one_of(st.just(b""), st.just(FROM_KEY), keys)),
)
operation = st.recursive(
    simple,
    lambda inner: st.builds(Txn, st.just([]), st.lists(inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=9,
)


def outcome(look: object, operations: list[Operation]) -> str:
    try:
        look(operations)  # type: ignore[operator]
    except InvalidRequest as refusal:
        return str(refusal)
    return ""


@given(st.lists(operation, max_size=6))
def test_it_refuses_what_the_first_release_refused_in_the_same_words(
    operations: list[Operation],
) -> None:
    assert outcome(check_written_once, operations) == outcome(naive, operations)


@given(st.lists(simple, max_size=9), keys)
def test_ranges_hold_what_those_that_were_added_hold(operations: list[Operation], key: bytes) -> None:
    deletes = [each for each in operations if isinstance(each, DeleteRange)]
    written = written_by(deletes)
    assert (key in written.deleted) == any(contains((each.key, each.end), key) for each in deletes)
    starts = [start for start, _ in written.deleted]
    assert starts == sorted(set(starts))


def _names() -> Iterator[bytes]:
    return (number.to_bytes(3, "big") for number in count(1))


def test_a_request_of_many_inner_transactions_is_looked_through_at_once() -> None:
    """Key by key and range by range it would take minutes, on every member, again and again."""
    names = _names()

    def inner() -> Txn:
        half: list[Operation] = []
        for _ in range(21):
            half += [Put(next(names), b""), DeleteRange(b"\xff" + next(names))]
        return Txn([], half)

    txn = Txn([], [Txn([], [inner() for _ in range(42)]) for _ in range(42)])
    assert len(encode(txn)) < 1_000_000
    check(txn, len(encode(txn)))
    last = Txn([], [*txn.success, Txn([], [DeleteRange(b"\0", FROM_KEY)])])
    with pytest.raises(InvalidRequest, match="twice"):
        check(last, 100)
